// The most likely token of every row: greedy choice of drafts on the device.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// ids[t] = position of the largest x[t, :], the smallest position on a tie
///
/// x    [num_rows, n]  accumulator type, any row stride, n >= 1
/// ids  [num_rows]     i32
///
/// Numerics  exact: every implementation gives the same ids. A row never depends on num_rows.
/// Edges     num_rows == 0 returns at once. NaN loses against everything; a row without a value
///           above −inf gives 0, so an id is always in [0, n).
/// Cost      bandwidth bound: num_rows · n elements.
/// Source    model spec 5.3; tie rule as everywhere: smaller id first (model spec 3.7, 3.9).
using ArgmaxRowsOp = void (*)(Stream& stream, const Tensor& x, Tensor ids);

template <typename Acc>
void argmax_rows_ref(Stream& stream, const Tensor& x, Tensor ids);

}  // namespace deepinfer
