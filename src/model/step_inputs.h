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

/// Rows of the step that go on together (model/prefill_truncation.h). The sequences of `view` are
/// those of the step; one without rows here has equal neighbours in seq_rows.
struct RowSet {
    BatchView view;
    Tensor from;        ///< i32 [rows] which row of the level before each one is; empty at level 0
    Tensor ngrams;      ///< i32 [rows, max_ngram] compressed ids
    Tensor image_rows;  ///< u8 [rows], empty when the step has no image row
};

class StepInputs {
  public:
    StepInputs(const ModelConfig& config,
               const ModelLimits& limits,
               std::vector<int32_t> token_map);

    /// Bytes of device memory (and of staging) for the limits, and the carving of them.
    size_t device_bytes() const;
    void bind(void* device_memory, HostBuffer staging);

    /// Fills the arrays for this step and queues their copies. Host staging stays valid until the
    /// next build, which waits for nothing: the step that reads it must be done by then.
    ///
    /// `padded`: sizes that change from step to step are rounded up, so that equal shapes() mean
    /// equal calls with equal arguments: max_end to kEndGrid, the entries of a ratio (if there is
    /// any) to one a row, with slot -1. Results are the same.
    void build(const Batch& batch, const CacheGeometry& geometry, Device& device, bool padded);

    /// Every size that an op's call depends on.
    std::vector<int64_t> shapes() const;
    static constexpr int64_t kEndGrid = 1024;

    /// Row sets by level. Level 0 alone when no row of the step belongs to a prompt that is cut.
    std::vector<RowSet> row_sets;
    Tensor token_ids;                        ///< i32 [T]
    Tensor logit_rows;                       ///< i32 [L] into the rows of the last level
    Tensor image_embeds;                     ///< bf16 [K, D] embeddings of the image rows
    Tensor image_row_ids;                    ///< i32 [K] their rows
    std::map<int64_t, EntryInputs> entries;  ///< by compress ratio
    bool draft_windows = true;               ///< Batch::draft_windows
    int64_t max_end = 0;  ///< largest end position of the step's sequences, or the next of the grid

  private:
    struct Array {
        size_t offset = 0, bytes = 0;
    };
    /// One level's arrays. Positions, floors and starts are its own, slots and blocks the step's.
    struct LevelArrays {
        Array positions, row_seq, seq_rows, seq_start, window_floor, from, ngrams, image_rows;
    };
    Array reserve(size_t bytes);
    LevelArrays reserve_level();
    RowSet set_of(const LevelArrays& arrays, int64_t rows, int64_t seqs, bool images) const;
    void build_levels(const Batch& batch);
    template <typename T>
    T* host(const Array& a) {
        return reinterpret_cast<T*>(staging_.data() + a.offset);
    }
    void* device(const Array& a) const { return static_cast<uint8_t*>(device_) + a.offset; }
    void build_ngrams(const Batch& batch);
    void build_images(const Batch& batch, Device& device);

    const ModelConfig& config_;
    ModelLimits limits_;
    std::vector<int32_t> token_map_;
    std::vector<int64_t> ratios_;
    int64_t max_blocks_ = 0;
    int64_t table_blocks_ = 0;  ///< of this step: blocks up to max_end
    HostBuffer staging_;
    void* device_ = nullptr;
    size_t used_ = 0;
    size_t level_begin_ = 0;  ///< of the levels above 0, behind all other arrays
    std::vector<LevelArrays> levels_;
    Array seq_slot_, block_table_, token_ids_, image_row_ids_, logit_rows_;
    /// Embeddings of image rows, behind everything else and copied only if there are any.
    std::vector<bf16> image_staging_;
    std::map<int64_t, Array> entry_rows_, entry_positions_, entry_slots_;
};

}  // namespace deepinfer
