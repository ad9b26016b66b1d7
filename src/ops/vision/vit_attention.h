// Attention of the vision tower: every patch of a picture sees every patch of that picture.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// out[t, h] = Σ_j softmax_j(q[t, h] · k[j, h] · scale) · v[j, h]   over the patches j of t's
/// picture
///
/// qkv      [num_rows, 3, H, dh]  bf16: q, k (both rotated already) and v; dense rows, any row
/// stride cu_rows  [B + 1]               i32 ascending from 0 to num_rows: picture b has rows
///                                [cu_rows[b], cu_rows[b + 1]); an empty picture is allowed
/// out      [num_rows, H · dh]    bf16
/// scale                          a double: dh^-0.5 need not be an fp32 number
///
/// Numerics  scores, softmax and sums in fp32 (fp64 exact table), probabilities not rounded; keys
/// in
///           ascending order, split into blocks counted from the picture's first row: a picture's
///           bits do not depend on the pictures beside it. One rounding, at the store.
/// Edges     num_rows == 0 returns at once. A NaN in q stays in its row, one in k or v reaches
/// every
///           row of its picture and no other picture.
/// Cost      4 · H · dh · Σ n_b² flops: compute bound, dominates the tower from 5,000 patches on.
/// Source    vision spec 6.
using VitAttentionOp =
    void (*)(Stream& stream, const Tensor& qkv, const Tensor& cu_rows, double scale, Tensor out);

template <typename Acc>
void vit_attention_ref(
    Stream& stream, const Tensor& qkv, const Tensor& cu_rows, double scale, Tensor out);

}  // namespace deepinfer
