// Mixture-of-experts feed-forward: routed FP4 experts plus the shared FP8 expert.
#pragma once

#include <span>

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, j] = bf16(silu(min(g, limit)) · clamp(up, −limit, limit) · weight[t])
///
/// gate, up [rows, I] bf16;  weight [rows] accumulator type or empty (shared expert: 1);  out
/// [rows, I] bf16 limit <= 0 switches the clamps off. Numerics: fp32 (fp64 exact table), one
/// rounding. Source: model spec 3.9.
using SwigluOp = void (*)(Stream& stream,
                          const Tensor& gate,
                          const Tensor& up,
                          const Tensor& weight,
                          float limit,
                          Tensor out);

/// out[t] = bf16(Σ over the row's experts, ascending id, of expert(u[t], weight) + shared(u[t]))
///   expert(u, w) = lin8(swiglu(lin8(u, w1), lin8(u, w3), w), w2), every lin8 output rounded to
///   bf16, lin8 = quant_q8 + linear; the sum over experts and the shared expert is fp32 in every
///   table.
///
/// u        [T, D] bf16 (not yet quantized);  ids [T, k] i32 ascending;  weights [T, k] accumulator
/// type experts  E of them;  shared: one;  out [T, D] bf16, must not alias u
///
/// Numerics  a row never depends on the other rows of its expert. Its twin calls the twins of the
/// parts. Edges     T == 0 returns at once; experts without rows are not touched. Cost      6 · D ·
/// I · (k + 1) flops a row; the bytes of the experts that are used. Source    model spec 3.9.
using MoeFfnOp = void (*)(Stream& stream,
                          const Tensor& u,
                          const Tensor& ids,
                          const Tensor& weights,
                          std::span<const ExpertWeights> experts,
                          const ExpertWeights& shared,
                          float limit,
                          Tensor out);

template <typename Acc>
void swiglu_ref(Stream& stream,
                const Tensor& gate,
                const Tensor& up,
                const Tensor& weight,
                float limit,
                Tensor out);
template <typename Acc>
void moe_ffn_ref(Stream& stream,
                 const Tensor& u,
                 const Tensor& ids,
                 const Tensor& weights,
                 std::span<const ExpertWeights> experts,
                 const ExpertWeights& shared,
                 float limit,
                 Tensor out);

}  // namespace deepinfer
