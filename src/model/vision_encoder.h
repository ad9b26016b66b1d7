// VisionEncoder: DeepSeek-ViT and the aligner (vision spec 6). Patches of pictures in, rows of the
// language model's input out.
//
// Needs vision.* and aligner.* alone, so it can be loaded without the language model. Work is cut
// into stages (patch embedding, one per block, aligner), so a large picture can be encoded between
// the steps of others. Start reading at vision_encoder.cpp, advance().
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "deepinfer/status.h"
#include "model/deepseek_v41.h"
#include "ops/backend.h"

namespace deepinfer {

/// A picture's patches as bytes (vision/image_preprocess.h).
struct EncoderPicture {
    int64_t grid_h = 0, grid_w = 0;
    const uint8_t* patches = nullptr;  ///< [grid_h · grid_w, 3 · patch_size²], host memory

    int64_t num_patches() const { return grid_h * grid_w; }
};

/// The rows of one span: START, then per grid row its cells and a NEWLINE, END.
struct EncodedImage {
    std::vector<bf16> rows;  ///< [num_tokens, hidden_size], host memory
    int64_t num_tokens = 0;
};

/// One thread at a time, the one that runs the model on this backend.
class VisionEncoder {
  public:
    /// Binds the weights and allocates for batches of up to max_patches patches (at least what one
    /// picture of the largest plan has). kInvalidArgument: the checkpoint takes no pictures;
    /// kUnimplemented: the backend has no picture ops.
    static Result<std::unique_ptr<VisionEncoder>> load(const Checkpoint& checkpoint,
                                                       Backend& backend,
                                                       int64_t max_patches);
    ~VisionEncoder();

    const VisionConfig& config() const;
    /// Patches of the largest picture that the config allows.
    static int64_t largest_picture(const VisionConfig& config);
    int64_t max_patches() const;
    /// Bytes of activations held.
    size_t workspace_bytes() const;
    /// advance() calls of one stage that a batch takes.
    int num_stages() const;

    /// Starts a batch; no batch is under way. Together at most max_patches. A picture's rows never
    /// depend on the others of its batch.
    void begin(std::span<const EncoderPicture> pictures);
    /// Runs up to `stages` more stages. True when the batch is done.
    bool advance(int stages);
    /// The spans of the finished batch, in order; ends it.
    std::vector<EncodedImage> take();
    bool busy() const;

    /// begin, advance to the end, take.
    std::vector<EncodedImage> encode(std::span<const EncoderPicture> pictures);

    /// Watches "patches", "patch_embed", "block" (layer = its number), "tower", "rows" of the
    /// batches to come. May be null.
    void watch(const ForwardHooks* hooks);

  private:
    struct Impl;
    explicit VisionEncoder(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
