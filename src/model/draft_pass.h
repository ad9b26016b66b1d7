// DraftPass: one draft in flight, and the arrays of its block rows.
//
// Short-lived like ForwardPass: made by DeepseekV41::draft, holds views only (draft_pass.cpp).
#pragma once

#include "device/device.h"
#include "model/block_pass.h"
#include "model/dspark.h"
#include "ops/batch_view.h"

namespace deepinfer {

/// A DraftBatch flattened into the arrays that the ops read. Fixed buffers of the model's limits.
class DraftInputs {
  public:
    DraftInputs(const ModelConfig& config, const ModelLimits& limits);

    size_t device_bytes() const { return staging_.size() * sizeof(int32_t); }
    void bind(void* device_memory) { device_ = static_cast<int32_t*>(device_memory); }
    /// Fills the arrays and queues their copy. Host staging stays valid until the next build.
    void build(const DraftBatch& batch, Device& device);

    BatchView view;     ///< every sequence is a block; block_table stays empty
    Tensor token_ids;   ///< i32 [S] anchor, noise, noise, …
    Tensor anchors;     ///< i32 [R]
    int64_t block = 0;  ///< rows of a block

  private:
    const ModelConfig& config_;
    int64_t max_seqs_ = 0;
    std::vector<int32_t> staging_;
    int32_t* device_ = nullptr;
};

struct DraftPass : BlockPass {
    const DraftInputs& in;

    DraftResult run(const ModelWeights& weights,
                    const Tensor& freqs_window,
                    const Tensor& pre_onehot,
                    const DraftChooser& choose);
    /// One stage: a block whose attention sees the stage's window and the whole draft block.
    void stage(int m, const LayerWeights& w, const Tensor& cs, const Tensor* next_norm);
    /// Base logits, then position after position: Markov bias, choice, confidence.
    DraftResult heads(const ModelWeights& weights, const DraftChooser& choose);
};

}  // namespace deepinfer
