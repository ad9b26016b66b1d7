// What the linear twins share: activations times a run of weight rows. Only *_ref.cpp files include
// this.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer::twin {

/// out[t, j] = Σ_i x[t, i] · w[first_row + j, i] for j < out.dim(1); dtypes as in linear.
template <typename Acc>
void multiply_weight_rows(
    Stream& stream, const Tensor& x, const WeightMatrix& w, int64_t first_row, Tensor out);

}  // namespace deepinfer::twin
