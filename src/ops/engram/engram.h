// Engram: hashed n-gram memory in front of a block.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// Rows of one Engram layer's table for every token.
///
///   R = T_0 · mult[0]; for i = 1..max_ngram−1: R ^= T_i · mult[i], and for head h:
///   ids[t, (i−1)·heads + h] = (R mod prime[(i−1)·heads + h]) + offset[(i−1)·heads + h]
///
/// ngrams       [num_rows, max_ngram]  i32 compressed ids T_0 (own token), T_1 (one back), …; the
/// caller
///                                     has put the pad id where look-back ends (start, image span)
/// multipliers  [max_ngram]            i64 (odd, may exceed 2^53)
/// primes       [cols]  i64;  offsets [cols] i64
/// ids          [num_rows, cols]       i32, cols = (max_ngram − 1) · heads
///
/// Numerics  int64, exact; products stay below 2^63. Source: model spec 3.10.
using EngramHashOp = void (*)(Stream& stream,
                              const Tensor& ngrams,
                              const Tensor& multipliers,
                              const Tensor& primes,
                              const Tensor& offsets,
                              Tensor ids);

/// out[t, c·ed : (c+1)·ed] = bf16(table row ids[t, c])  (E4M3 with one UE8M0 per 32 columns; exact
/// in bf16)
///
/// table  [rows, ed]  FP8 weight with scale [rows, ed/32] (not 32×32 tiles!)
/// ids    [num_rows, cols] i32, each < rows;  out [num_rows, cols · ed] bf16
using EngramLookupOp = void (*)(Stream& stream,
                                const WeightMatrix& table,
                                const Tensor& ids,
                                Tensor out);

/// x_s += gate_s · value, gated per stream, in place:
///   dot_s = Σ_d x_s[d] · (q[s,d] · k[s,d]) · key_s[d] · rsqrt(mean x_s² + eps) · rsqrt(mean key_s²
///   + eps) · D^-0.5 gate_s = sigmoid(copysign(sqrt(max(|dot_s|, 1e-6)), dot_s)), 0 where dead[t]
///   x_s ← bf16(x_s + gate_s · value)
///
/// x     [num_rows, hc, D]        bf16, in place
/// kv    [num_rows, (hc + 1) · D] bf16: key of stream s at s·D, value at hc·D
/// q_weight, k_weight [hc, D]     f32;  dead [num_rows] u8 (1 inside an image span) or empty (none)
///
/// Numerics  fp32 (fp64 exact table), one rounding at the store. NaN stays in its row.
using EngramGateOp = void (*)(Stream& stream,
                              Tensor x,
                              const Tensor& kv,
                              const Tensor& q_weight,
                              const Tensor& k_weight,
                              const Tensor& dead,
                              float eps);

void engram_hash_ref(Stream& stream,
                     const Tensor& ngrams,
                     const Tensor& multipliers,
                     const Tensor& primes,
                     const Tensor& offsets,
                     Tensor ids);
void engram_lookup_ref(Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out);
template <typename Acc>
void engram_gate_ref(Stream& stream,
                     Tensor x,
                     const Tensor& kv,
                     const Tensor& q_weight,
                     const Tensor& k_weight,
                     const Tensor& dead,
                     float eps);

}  // namespace deepinfer
