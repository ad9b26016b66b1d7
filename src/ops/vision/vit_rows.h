// The vision tower's row-wise steps: rotation, SwiGLU, residual addition, GELU. Unlike in the
// language model every one of them rounds to bf16.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// Rotates every head in place, element i with element i + d/2 ("half split"):
///   x_i' = x_i · cos_i − x_{i+d/2} · sin_i,   x_{i+d/2}' = x_{i+d/2} · cos_i + x_i · sin_i
///
/// x        [num_rows, heads, d]  bf16, row stride any, heads dense
/// cos_sin  [num_rows, d/2, 2]    accumulator type, from rope_table: row angles, then column angles
///
/// Numerics  fp32 (fp64 exact table): two products, one sum, one rounding to bf16.
/// Source    vision spec 6 (2D-RoPE).
using VitRopeOp = void (*)(Stream& stream, Tensor x, const Tensor& cos_sin);

/// out = bf16(bf16(silu(gate)) · up), gate = the first half of a row, up = the second; no clamp
///
/// gate_up [num_rows, 2 · I] bf16;  out [num_rows, I] bf16
using VitSwigluOp = void (*)(Stream& stream, const Tensor& gate_up, Tensor out);

/// x = bf16(x + y);  both [num_rows, n] bf16
using AddBf16Op = void (*)(Stream& stream, Tensor x, const Tensor& y);

/// x = bf16(x/2 · (1 + erf(x / √2))) in place: the exact form;  x [num_rows, n] bf16
using GeluOp = void (*)(Stream& stream, Tensor x);

template <typename Acc>
void vit_rope_ref(Stream& stream, Tensor x, const Tensor& cos_sin);
template <typename Acc>
void vit_swiglu_ref(Stream& stream, const Tensor& gate_up, Tensor out);
template <typename Acc>
void add_bf16_ref(Stream& stream, Tensor x, const Tensor& y);
template <typename Acc>
void gelu_ref(Stream& stream, Tensor x);

}  // namespace deepinfer
