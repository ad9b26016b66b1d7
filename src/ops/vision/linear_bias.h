// Linear layer with a bias: the vision tower's and aligner's products.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, j] = Σ_i x[t, i] · w[j, i] + bias[j]
///
/// x     [num_rows, k]  bf16, any row stride
/// w     [n, k]         BF16 or F32
/// bias  [n]            f32
/// out   [num_rows, n]  bf16, any row stride; must not alias x
///
/// Numerics  the sum as in linear (its order is fixed by k and the format alone, so a row never
///           depends on num_rows), the bias added in fp32 (fp64 exact table), one rounding to bf16.
/// Edges     num_rows == 0 returns at once. NaN stays inside its row.
/// Cost      2 · num_rows · n · k flops.
/// Source    vision spec 6.
using LinearBiasOp = void (*)(
    Stream& stream, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Tensor out);

template <typename Acc>
void linear_bias_ref(
    Stream& stream, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Tensor out);

}  // namespace deepinfer
