// CSA2 attention core: sliding window rows plus selected compressed entries, one latent head, a
// sink per head.
#pragma once

#include "device/stream.h"
#include "ops/batch_view.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// The caches one layer's attention reads.
struct AttentionCache {
    Tensor step_rows;    ///< [T, window_row_bytes(dh)] u8: this step's window rows
    Tensor window_ring;  ///< [num_slots, ring_len, window_row_bytes(dh)] u8: rows before seq_start
    Tensor kv_pool;  ///< [num_entries, kv_entry_bytes(dh)] u8, any row stride; empty for ratio 0
    int entries_per_block = 0;  ///< as in IndexCache
    int window = 0;  ///< W: a row at p sees window positions max(0, floor, p − W + 1) .. p
};

/// out[t, h, :] = Σ_j softmax_j(scale · q[t, h] · key_j) · key_j over the row's key list, with the
/// sink in the denominator: the list is the window rows by position, then the selected entries in
/// list order. K = V.
///
/// q     [T, H, dh] bf16, rotated;  lists [T, K] i32 from topk_select (-1 padded) or empty (window
/// only) sink  [H] f32: unscaled logit without a value;  out [T, H, dh] bf16 scale is a double
/// because dh^-0.5 is not always an fp32 number (dh 512) and the exact table uses all of it
///
/// Numerics  scores, max, sum and values in fp32 over blocks of 64 list entries in list order,
/// probabilities
///           unrounded (fp64, one pass, exact table); one rounding to bf16. A row never depends on
///           others nor on how the prompt was cut: keys of this step are read in cache format.
/// Edges     the sink is part of the max. A row always sees at least itself. NaN stays in its row.
/// Cost      4 · T · H · dh · (W + K) flops; reads (W + K) packed rows a token.
/// Source    model spec 3.8.
using SparseAttentionOp = void (*)(Stream& stream,
                                   const Tensor& q,
                                   const BatchView& batch,
                                   const AttentionCache& cache,
                                   const Tensor& lists,
                                   const Tensor& sink,
                                   double scale,
                                   Tensor out);

template <typename Acc>
void sparse_attention_ref(Stream& stream,
                          const Tensor& q,
                          const BatchView& batch,
                          const AttentionCache& cache,
                          const Tensor& lists,
                          const Tensor& sink,
                          double scale,
                          Tensor out);

/// The core on one row and a gathered key list: q [H, dh], keys n × dh fp32, y [H, dh] (unit
/// vectors).
template <typename Acc>
void attention_row_ref(const bf16* q,
                       int64_t heads,
                       int64_t dh,
                       const float* keys,
                       int64_t n,
                       const float* sink,
                       double scale,
                       bf16* y);

}  // namespace deepinfer
