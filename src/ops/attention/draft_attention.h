// Attention of DSpark draft blocks: a fixed window of committed rows and the whole block, both
// ways.
#pragma once

#include "device/stream.h"
#include "ops/attention/sparse_attention.h"
#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, h, :] = Σ_j softmax_j(scale · q[t, h] · key_j) · key_j with the sink in the denominator.
/// The key list of every row of a block that starts at position s is the same: the committed window
/// rows of positions max(0, floor, s − W) .. s − 1 by position, then all rows of the block in row
/// order (later ones too: a block is drafted in one pass and sees itself both ways). The window
/// does not slide inside the block. K = V.
///
/// q      [T, H, dh] bf16, rotated
/// batch  sequence b is one block: rows seq_rows[b] .. seq_rows[b + 1], seq_start[b] the position
///        of its first row (the anchor, not yet run through the target); seq_slot and window_floor
///        as ever. Blocks may differ in length. block_table is not read.
/// cache  step_rows [T, window_row_bytes(dh)]: the block rows in cache format; window_ring: the
///        committed rows; window = W. kv_pool is not read.
/// sink   [H] f32: unscaled logit without a value
/// out    [T, H, dh] bf16
///
/// Numerics  as sparse_attention: fp32 over blocks of 64 list entries in list order (fp64, one
///           pass, exact table), one rounding to bf16. A block never depends on other blocks.
/// Edges     T == 0 returns at once. No committed row (s = 0, or floor >= s): the block sees
///           itself alone. NaN stays in its block.
/// Requires  ring_len >= W + the rows that were written beyond s and taken back.
/// Cost      4 · T · H · dh · (W + block) flops; reads W + block packed rows a block.
/// Source    model spec 5.2.
using DraftAttentionOp = void (*)(Stream& stream,
                                  const Tensor& q,
                                  const BatchView& batch,
                                  const AttentionCache& cache,
                                  const Tensor& sink,
                                  double scale,
                                  Tensor out);

template <typename Acc>
void draft_attention_ref(Stream& stream,
                         const Tensor& q,
                         const BatchView& batch,
                         const AttentionCache& cache,
                         const Tensor& sink,
                         double scale,
                         Tensor out);

}  // namespace deepinfer
