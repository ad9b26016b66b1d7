// Linear layer: activations times a stored weight, any weight format.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, j] = Σ_i x[t, i] · w[j, i]
///
/// x    [num_rows, k]  bf16, any row stride. For FP8 and FP4 weights the caller has passed it
/// through
///                     quant_q8 first (the model's lin8 = quant_q8 + linear).
/// w    [n, k]         FP8 32×32, FP4, BF16 or F32 (ops/weight_matrix.h), widened exactly
/// out  [num_rows, n]  bf16 or the table's accumulator type (f32; f64 in the exact table), any row
///                     stride; must not alias x
///
/// Numerics  products are exact in fp32 (bf16 × bf16), sums in fp32 (fp64 exact table). The order
/// of
///           the sum of one output element is fixed by (k, weight format) alone, so a row never
///           depends on num_rows. One rounding to bf16 when out is bf16.
/// Edges     num_rows == 0 returns at once.
/// Requires  k % 32 == 0 for FP8 and FP4.
/// Cost      2 · num_rows · n · k flops, w.bytes() + num_rows · (2k + 2n) bytes.
/// Source    model spec 3.1 (lin8, linb, linf).
using LinearOp = void (*)(Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out);

template <typename Acc>
void linear_ref(Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out);

/// One weight value, widened: the twins' only way to read a WeightMatrix.
float weight_value(const WeightMatrix& w, int64_t row, int64_t col);
/// One whole row, widened into out[k].
void weight_row(const WeightMatrix& w, int64_t row, float* out);

}  // namespace deepinfer
