// Grouped low-rank output projection wo_a: every group of heads has its own matrix.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, g·ol + j] = Σ_i o[t, g, i] · wo_a[g·ol + j, i]
///
/// o     [num_rows, groups · in]  bf16 (heads of a group are neighbours)
/// wo_a  [groups · ol, in]        FP8; read as exact bf16 values, activations are NOT quantized
/// out   [num_rows, groups · ol]  bf16
///
/// Numerics  as linear: fixed order per element, fp32 (fp64 exact), one rounding to bf16.
/// Source    model spec 3.8.
using GroupedOProjOp =
    void (*)(Stream& stream, const Tensor& o, const WeightMatrix& wo_a, int groups, Tensor out);

template <typename Acc>
void grouped_o_proj_ref(
    Stream& stream, const Tensor& o, const WeightMatrix& wo_a, int groups, Tensor out);

}  // namespace deepinfer
