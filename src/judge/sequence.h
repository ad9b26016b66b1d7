// One sequence alone with a model: caches of exactly its size, blocks in order, slot 0. For judges
// only; the engine's caches are managed by src/kvcache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/deepseek_v41.h"
#include "model/vision_encoder.h"

namespace deepinfer {

/// A model loaded from a directory, with its backend and checkpoint.
struct LoadedModel {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Checkpoint> checkpoint;
    std::unique_ptr<DeepseekV41> model;
};

/// `max_positions` 0 = the config's. Reads the directory's tokenizer for the Engram token map.
/// limits.max_draft_seqs is a wish: 0 in the model's limits if the checkpoint or the backend does
/// not draft.
Result<LoadedModel> load_model(const std::string& dir,
                               const std::string& backend,
                               const BackendOptions& options,
                               ModelLimits limits);

class LoneSequence {
  public:
    /// Caches for up to max_tokens positions.
    static Result<std::unique_ptr<LoneSequence>> create(DeepseekV41& model, int64_t max_tokens);

    /// The pictures among the tokens to come: spans by position, ascending, with their rows. Tokens
    /// of a span carry the image token id. `images` must outlive the sequence.
    struct Span {
        int64_t begin = 0;
        const EncodedImage* image = nullptr;
        int64_t end() const { return begin + image->num_tokens; }
    };
    void set_images(std::vector<Span> spans) { spans_ = std::move(spans); }

    /// Appends tokens and returns the logits [L, V] of the wanted rows (indices into `tokens`),
    /// device memory.
    Tensor append(const std::vector<int32_t>& tokens,
                  const std::vector<int32_t>& logit_rows,
                  const ForwardHooks* hooks = nullptr);
    /// Proposes the tokens after `anchor`, which is the next token and not appended yet.
    DraftResult draft(int32_t anchor, const DraftChooser& choose = {}, int block_size = 0);
    /// Forgets everything (the next append starts at position 0).
    void reset() { ids_.clear(); }
    /// Takes the newest tokens back: at most ModelLimits::ring_extra, or all.
    void truncate(int64_t length);

    /// Whether draft() may be called.
    bool drafting() const { return model_.limits().max_draft_seqs > 0; }
    int64_t length() const { return static_cast<int64_t>(ids_.size()); }
    const CacheView& cache() const { return cache_; }
    DeepseekV41& model() { return model_; }

  private:
    explicit LoneSequence(DeepseekV41& model) : model_(model) {}
    Status allocate(int64_t max_tokens);
    Tensor take(DType t, std::initializer_list<int64_t> dims, Status& status);

    DeepseekV41& model_;
    CacheView cache_;
    std::vector<Buffer> buffers_;
    /// Embedding of a position inside a span, null elsewhere.
    const bf16* image_row(int64_t position) const;

    std::vector<int32_t> ids_;
    std::vector<Span> spans_;
};

/// Copies a device tensor to the host.
std::vector<uint8_t> to_host(Backend& backend, const Tensor& t);
/// The elements of a device tensor of F32 or F64 as doubles.
std::vector<double> acc_to_host(Backend& backend, const Tensor& t);

}  // namespace deepinfer
