// Fake quantization of activations: values are rounded to a block format and kept as bf16 (exact).
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, :] = dequantize(q8(x[t, :])): blocks of 32, E4M3, power-of-two scale
/// (tensor/quant_block.h)
///
/// x    [num_rows, k]  bf16, any row stride, k % 32 == 0
/// out  [num_rows, k]  bf16, any row stride, may alias x
///
/// Numerics  exact: every implementation gives the same bits. A row never depends on another.
/// Source    model spec 3.1 q8.
using QuantQ8Op = void (*)(Stream& stream, const Tensor& x, Tensor out);

/// The same with q4m (E2M1, blocks of 32), for index queries. x, out [num_rows, k] as above.
using QuantQ4mOp = void (*)(Stream& stream, const Tensor& x, Tensor out);

/// out[t, j] = bf16(x[t, j] · factor). x, out [num_rows, n] bf16, may alias.
/// Source: model spec 3.7, the indexer's head weights.
using ScaleBf16Op = void (*)(Stream& stream, const Tensor& x, float factor, Tensor out);

void quant_q8_ref(Stream& stream, const Tensor& x, Tensor out);
void quant_q4m_ref(Stream& stream, const Tensor& x, Tensor out);
void scale_bf16_ref(Stream& stream, const Tensor& x, float factor, Tensor out);

}  // namespace deepinfer
