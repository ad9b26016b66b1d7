// StepInputs: a Batch flattened into the arrays that the ops read, on the device.
//
// Everything here follows from token ids, positions and block tables alone, so it can be built
// before the step runs. Fixed buffers of the model's limits; their addresses never change.
#pragma once

#include <map>
#include <vector>

#include "checkpoint/hf_config.h"
#include "device/device.h"
#include "model/batch.h"
#include "model/deepseek_v41.h"
#include "ops/batch_view.h"

namespace deepinfer {

/// Groups of `ratio` tokens that this step completes, over all sequences in row order.
struct EntryInputs {
    Tensor rows;       ///< i32 [E] batch row of each group's last token
    Tensor positions;  ///< i32 [E] position of each group's first token (its rotation)
    Tensor slots;      ///< i64 [E] row in the source's pools, -1 = not written
};

class StepInputs {
  public:
    StepInputs(const ModelConfig& config,
               const ModelLimits& limits,
               std::vector<int32_t> token_map);

    /// Bytes of device memory for the limits, and the carving of it.
    size_t device_bytes() const;
    void bind(void* device_memory);

    /// Fills the arrays for this step and queues their copies. Host staging stays valid until the
    /// next build.
    void build(const Batch& batch, const CacheGeometry& geometry, Device& device);

    BatchView view;
    Tensor token_ids;                        ///< i32 [T]
    Tensor ngrams;                           ///< i32 [T, max_ngram] compressed ids
    Tensor image_rows;                       ///< u8 [T], empty when the step has no image row
    Tensor logit_rows;                       ///< i32 [L]
    std::map<int64_t, EntryInputs> entries;  ///< by compress ratio
    int64_t max_end = 0;                     ///< largest end position of the step's sequences

  private:
    struct Array {
        size_t offset = 0, bytes = 0;
    };
    Array reserve(size_t bytes);
    template <typename T>
    T* host(const Array& a) {
        return reinterpret_cast<T*>(staging_.data() + a.offset);
    }
    void* device(const Array& a) const { return static_cast<uint8_t*>(device_) + a.offset; }
    void build_ngrams(const Batch& batch);

    const ModelConfig& config_;
    ModelLimits limits_;
    std::vector<int32_t> token_map_;
    std::vector<int64_t> ratios_;
    int64_t max_blocks_ = 0;
    std::vector<uint8_t> staging_;
    void* device_ = nullptr;
    size_t used_ = 0;
    Array positions_, row_seq_, seq_rows_, seq_start_, seq_slot_, window_floor_, block_table_;
    Array token_ids_, ngrams_, image_rows_, logit_rows_;
    std::map<int64_t, Array> entry_rows_, entry_positions_, entry_slots_;
};

}  // namespace deepinfer
