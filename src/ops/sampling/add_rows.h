// Row-wise addition of fp32 rows: Markov bias onto the base logits, the two halves of the
// confidence.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, :] += x[t, :]
///
/// x    [num_rows, n]  accumulator type, any row stride
/// out  [num_rows, n]  accumulator type, any row stride; must not overlap x
///
/// Numerics  one addition an element, nothing is rounded further. A row never depends on num_rows.
/// Edges     num_rows == 0 returns at once. NaN stays in its element.
/// Cost      bandwidth bound: 3 · num_rows · n elements.
/// Source    model spec 5.3: logits_i = base_i + markov_i.
using AddRowsOp = void (*)(Stream& stream, const Tensor& x, Tensor out);

template <typename Acc>
void add_rows_ref(Stream& stream, const Tensor& x, Tensor out);

}  // namespace deepinfer
