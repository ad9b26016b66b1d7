// BatchView: which sequence and position each row of a step belongs to. Device memory, plain data.
//
// A step processes T rows (tokens) of B sequences; the rows of one sequence are consecutive and
// have consecutive positions. Every op that needs more than its own row reads it from here.
#pragma once

#include "tensor/tensor.h"

namespace deepinfer {

struct BatchView {
    Tensor positions;     ///< i32 [T]     absolute position of each row, 0-based
    Tensor row_seq;       ///< i32 [T]     sequence index in [0, B)
    Tensor seq_rows;      ///< i32 [B+1]   first row of each sequence, then T
    Tensor seq_start;     ///< i32 [B]     position of the sequence's first row in this step
    Tensor seq_slot;      ///< i32 [B]     slot of its window rings and compressor tails
    Tensor window_floor;  ///< i32 [B]     window reads never go below this position (0 unless
                          ///< replaying)
    Tensor block_table;   ///< i32 [B, max_blocks]  blocks of the sequence in order; unused entries
                          ///< are -1

    int64_t num_rows() const { return positions.dim(0); }
    int64_t num_seqs() const { return seq_start.dim(0); }
};

/// Row-parallel ops over a part of the step: rows [begin, end). Sequence data stays whole, so
/// row_seq and seq_rows keep their meaning relative to the whole step.
inline BatchView batch_rows(BatchView b, int64_t begin, int64_t end) {
    b.positions = b.positions.rows(begin, end);
    b.row_seq = b.row_seq.rows(begin, end);
    return b;
}

}  // namespace deepinfer
