// RMS normalisation over the last dimension.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, :] = x[t, :] · rsqrt(mean(x[t, :]²) + eps) · weight
///
/// x       [num_rows, n]  bf16, any row stride
/// weight  [n]            f32
/// out     [num_rows, n]  bf16, any row stride, may alias x
///
/// Numerics  fp32 (fp64 in the exact table); one rounding, at the store. A row never depends on
/// num_rows. Edges     num_rows == 0 returns at once. A zero row gives zeros (eps 1e-20 must not be
/// flushed).
///           NaN or Inf stays inside its row.
/// Cost      4 · num_rows · n bytes: bandwidth bound.
/// Source    model spec 3.1; tensors *_norm.weight, norm.weight.
using RmsNormOp =
    void (*)(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out);

/// outq = quant_q8(rms_norm(x, weight, eps)), and the unquantized rows in `out` unless it is empty.
/// n % 32 == 0; out and outq may alias x. Numerics: the bits of the two ops one after the other.
using RmsNormQ8Op = void (*)(
    Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out, Tensor outq);

template <typename Acc>
void rms_norm_ref(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out);

}  // namespace deepinfer
