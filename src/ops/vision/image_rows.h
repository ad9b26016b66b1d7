// Row movement of pictures: tower rows into projector inputs, finished rows into the text streams.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[n, c · r² + i] = cells[n, i] < 0 ? 0 : x[cells[n, i], c]     (channel outermost)
///
/// x      [num_patches, D]  bf16
/// cells  [n, r²]           i32: the patches of an output cell in the order dy, dx; −1 = beyond the
///                          picture's edge, which contributes exact zeros
/// out    [n, D · r²]       bf16
///
/// Source  vision spec 6.1 (3 × 3 pixel-unshuffle).
using PixelUnshuffleOp = void (*)(Stream& stream, const Tensor& x, const Tensor& cells, Tensor out);

/// x[rows[i], s, :] = src[i, :] for every stream s: picture rows replace token embeddings
///
/// src   [K, D]      bf16;  rows [K] i32, distinct, each below T;  x [T, hc, D] bf16
using PlaceRowsOp = void (*)(Stream& stream, const Tensor& src, const Tensor& rows, Tensor x);

void pixel_unshuffle_ref(Stream& stream, const Tensor& x, const Tensor& cells, Tensor out);
void place_rows_ref(Stream& stream, const Tensor& src, const Tensor& rows, Tensor x);

}  // namespace deepinfer
