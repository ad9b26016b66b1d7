// Batch: one step's rows as plain host data. The engine builds it from a StepPlan; forward() reads
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace deepinfer {

/// The rows of one sequence in this step: num_tokens consecutive positions from start_pos.
struct SequenceChunk {
    int32_t slot = 0;          ///< ring and tail slot
    int32_t start_pos = 0;     ///< position of the first row
    int32_t num_tokens = 0;    ///< rows, >= 1
    int32_t window_floor = 0;  ///< replay: window reads never go below this position
    /// Entries and index keys of positions below this are not written again (prefix hit under
    /// replay); 0 = write all. A group is written if its last position is >= this.
    int32_t write_from = 0;
    /// Length of the prompt that ModelLimits::truncation applies to; 0 = all rows run through all
    /// layers. Rows below it may have logits only if they reach the head: the last one does.
    int32_t prompt_tokens = 0;
    std::vector<int32_t> block_ids;  ///< blocks covering positions [0, start_pos + num_tokens)
    /// The up to (max_ngram − 1) token ids before start_pos, oldest first; -1 = inside an image
    /// span (dead). Shorter only if the sequence starts there.
    std::vector<int32_t> lookback;
};

struct Batch {
    std::vector<SequenceChunk> seqs;  ///< in row order
    std::vector<int32_t> token_ids;   ///< [T] concatenated
    std::vector<uint8_t> image_rows;  ///< [T] 1 inside an image span, or empty
    /// One per row inside a span, in row order: its embedding [D], in host memory that stays valid
    /// until forward() returns (model/vision_encoder.h, EncodedImage::rows).
    std::vector<const bf16*> image_embeds;
    std::vector<int32_t> logit_rows;  ///< [L] rows whose logits are wanted, ascending
    /// A model that drafts: the rows go into the stages' window rings. Without, the rings hold
    /// nothing up to the rows' end (DraftSequence::window_floor).
    bool draft_windows = true;

    int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
};

}  // namespace deepinfer
