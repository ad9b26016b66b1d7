// Rotary position embedding on the trailing dims, adjacent pairs ("interleaved").
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// cos_sin[t, i, :] = cos(a), sin(a) with a = fp32(fp32(positions[t]) · freqs[i])
///
/// positions  [num_rows]             i32, up to 2^20
/// freqs      [rd/2]                 f32 (model/rope_frequencies.h)
/// cos_sin    [num_rows, rd/2, 2]    accumulator type (f32; f64 in the exact table)
///
/// Numerics  the angle is rounded to fp32 (visible near position 10^6, reproduced on purpose); cos
/// and
///           sin of that angle with full range reduction, correct to 1 ulp of fp32 (fp64 exact
///           table).
/// Source    model spec 3.2.
using RopeTableOp = void (*)(Stream& stream,
                             const Tensor& positions,
                             const Tensor& freqs,
                             Tensor cos_sin);

/// Rotates the last rd dims of every head in place: even' = e·cos − o·sin, odd' = e·sin + o·cos;
/// inverse: sin → −sin.
///
/// x        [num_rows, heads, d]   bf16, row stride any, heads dense; changed in place
/// cos_sin  [num_rows, rd/2, 2]    from rope_table
///
/// Numerics  fp32 (fp64 exact): two products, one sum, one rounding to bf16.
using RopeOp = void (*)(Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse);

template <typename Acc>
void rope_table_ref(Stream& stream, const Tensor& positions, const Tensor& freqs, Tensor cos_sin);
template <typename Acc>
void rope_ref(Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse);

}  // namespace deepinfer
