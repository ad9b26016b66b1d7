// Row movement: token embedding into the residual streams, and row gathers.
#pragma once

#include "device/stream.h"
#include "ops/weight_matrix.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, s, :] = embed[ids[t], :] for every stream s
///
/// embed [V, D] BF16 or F32 (rounded to bf16);  ids [num_rows] i32, each in [0, V);  out [num_rows,
/// hc, D] bf16
using EmbedStreamsOp = void (*)(Stream& stream,
                                const WeightMatrix& embed,
                                const Tensor& ids,
                                Tensor out);

/// out[i, :] = src[rows[i], :]
///
/// src [T, …] any dtype, dense rows;  rows [L] i32;  out [L, …] same dtype, dense; must not alias
/// src
using GatherRowsOp = void (*)(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out);

void embed_streams_ref(Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out);
void gather_rows_ref(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out);

}  // namespace deepinfer
