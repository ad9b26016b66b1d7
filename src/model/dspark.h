// DSpark: drafts of a block of tokens for many sequences at once (model spec 5).
//
// The stages read the taps of committed rows through their own window rings, which forward() fills
// when the model was loaded for drafting (ModelLimits::max_draft_seqs). DeepseekV41::draft
// proposes; verifying, accepting and rolling back are the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tensor/tensor.h"

namespace deepinfer {

/// One sequence to draft for. Its positions 0 .. position − 1 have been run by forward().
struct DraftSequence {
    int32_t slot = 0;
    int32_t position = 0;  ///< of the anchor, the newest sampled token: not yet run by forward()
    int32_t anchor = 0;    ///< its id
    int32_t window_floor = 0;  ///< rings hold nothing below this position (as in SequenceChunk)
};

struct DraftBatch {
    std::vector<DraftSequence> seqs;
    /// Proposals per sequence, 1 .. dspark_block_size; 0 = dspark_block_size. All rows of a block
    /// see each other, so a shorter block is not the beginning of a longer one.
    int block_size = 0;
};

/// Device memory, valid until the next draft(). Row k proposes for the position anchor + 1 + k.
struct DraftResult {
    Tensor tokens;      ///< i32 [block, R]
    Tensor confidence;  ///< accumulator type [block, R]: raw logits. sigmoid = estimated
                        ///< probability that the token is accepted given that those before it are
};

/// Chooses the tokens of one position of all sequences: writes tokens [R] (i32) from logits [R, V]
/// (accumulator type), both device memory. Called for k = 0, 1, …; what it writes is the
/// predecessor of position k + 1. May change the logits.
using DraftChooser = std::function<void(int k, const Tensor& logits, Tensor tokens)>;

}  // namespace deepinfer
