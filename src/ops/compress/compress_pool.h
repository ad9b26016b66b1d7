// KV compressor for ratios above 1: softmax-weighted pooling of aligned groups of `ratio` tokens.
#pragma once

#include "device/stream.h"
#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// Pooled latent of every group that this step completes:
///   out[e, c] = bf16(Σ_i w_i · z_i[c]),  w = softmax over the group's ratio tokens of g_i[c], per
///   channel
///
/// z, g        [T, dh]   accumulator type: compressor.wkv and .wgate outputs of this step's rows
/// tail        [num_slots, tail_len, 2, dh] accumulator type: z then g of older tokens, at position
/// mod tail_len entry_rows  [E] i32   batch row of the group's last token; the group is positions
/// p−ratio+1 .. p out         [E, dh]   bf16
///
/// A group member before seq_start of its sequence is read from the tail, else from z and g.
/// Numerics  fp32 (fp64 exact table); one rounding to bf16. Depends on the group alone, never on
/// the chunking. Source    model spec 3.6 (r > 1). tail_len >= ratio − 1 + tokens that may be
/// rolled back.
using CompressPoolOp = void (*)(Stream& stream,
                                const Tensor& z,
                                const Tensor& g,
                                const BatchView& batch,
                                const Tensor& tail,
                                int ratio,
                                const Tensor& entry_rows,
                                Tensor out);

/// Commits z and g of each sequence's last tail_len rows of this step to the tail (after
/// compress_pool).
using CompressTailStoreOp =
    void (*)(Stream& stream, const Tensor& z, const Tensor& g, const BatchView& batch, Tensor tail);

template <typename Acc>
void compress_pool_ref(Stream& stream,
                       const Tensor& z,
                       const Tensor& g,
                       const BatchView& batch,
                       const Tensor& tail,
                       int ratio,
                       const Tensor& entry_rows,
                       Tensor out);
template <typename Acc>
void compress_tail_store_ref(
    Stream& stream, const Tensor& z, const Tensor& g, const BatchView& batch, Tensor tail);

}  // namespace deepinfer
