// Single-pass manifold hyper-connections: the hc residual streams around every sublayer.
#pragma once

#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

/// Mixing coefficients of one site from the un-collapsed streams.
///
///   v = flatten(x[t]) (stream-major), m = (fn · v) · rsqrt(mean(v²) + norm_eps)
///   pre[s]  = sigmoid(m[s] · scale[0] + base[s]) + hc_eps
///   post[s] = 2 · sigmoid(m[hc + s] · scale[1] + base[hc + s])
///   A[j][k] = m[2hc + j·hc + k] · scale[2] + base[2hc + j·hc + k];  comb = sinkhorn(A)
///   sinkhorn: softmax over k, + hc_eps; divide by column sums + hc_eps; then (iters − 1) times
///   divide by row sums + hc_eps, by column sums + hc_eps
///
/// x      [num_rows, hc, D]                   bf16, dense rows
/// fn     [(2 + hc) · hc, hc · D]             f32
/// base   [(2 + hc) · hc]  scale [3]          f32
/// pre    [num_rows, hc], post [num_rows, hc], comb [num_rows, hc, hc]   accumulator type, dense
///
/// Numerics  all fp32 (fp64 exact table), one fixed order; nothing is rounded to bf16.
/// Edges     hc <= 8. NaN stays in its row.
/// Cost      reads the streams once: 2 · num_rows · hc · D bytes, 2 · (2+hc)·hc · hc·D flops a row.
/// Source    model spec 3.4; TileKernels' mHC has another data flow (same-site pre), do not copy
/// it.
using MhcMixesOp = void (*)(Stream& stream,
                            const Tensor& x,
                            const Tensor& fn,
                            const Tensor& base,
                            const Tensor& scale,
                            int sinkhorn_iters,
                            float hc_eps,
                            float norm_eps,
                            Tensor pre,
                            Tensor post,
                            Tensor comb);

/// out[t, :] = bf16(Σ_s pre[t, s] · x[t, s, :])       x [T, hc, D] bf16, pre [T, hc] acc, out [T,
/// D] bf16
using MhcCollapseOp = void (*)(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out);

/// out[t, k, :] = bf16(post[t, k] · y[t, :] + Σ_j comb[t, j, k] · x[t, j, :])
/// y [T, D] bf16; x, out [T, hc, D] bf16; out must not alias x.
using MhcExpandOp = void (*)(Stream& stream,
                             const Tensor& y,
                             const Tensor& x,
                             const Tensor& post,
                             const Tensor& comb,
                             Tensor out);

/// The end of one site and the beginning of the next in one pass over the streams:
///
///   out = mhc_expand(y, x, post, comb);  u = rms_norm(mhc_collapse(out, pre), weight, eps)
///   uq  = quant_q8(u), unless empty
///
/// y [T, D], x, out [T, hc, D] bf16 as mhc_expand; post, comb, pre as there; weight [D] f32;
/// u, uq [T, D] bf16, any row stride. out must not alias x.
///
/// Numerics  the bits of the four ops one after the other.
/// Cost      2 · T · D · (2 · hc + 3) bytes: bandwidth bound; one launch instead of four.
using MhcStepOp = void (*)(Stream& stream,
                           const Tensor& y,
                           const Tensor& x,
                           const Tensor& post,
                           const Tensor& comb,
                           const Tensor& pre,
                           const Tensor& weight,
                           float eps,
                           Tensor out,
                           Tensor u,
                           Tensor uq);

/// out[t, :] = bf16(mean over streams of x[t]): the DSpark taps. x [T, hc, D] bf16, out [T, D]
/// bf16, any row stride.
using StreamsMeanOp = void (*)(Stream& stream, const Tensor& x, Tensor out);

template <typename Acc>
void mhc_mixes_ref(Stream& stream,
                   const Tensor& x,
                   const Tensor& fn,
                   const Tensor& base,
                   const Tensor& scale,
                   int sinkhorn_iters,
                   float hc_eps,
                   float norm_eps,
                   Tensor pre,
                   Tensor post,
                   Tensor comb);
template <typename Acc>
void mhc_collapse_ref(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out);
template <typename Acc>
void mhc_expand_ref(Stream& stream,
                    const Tensor& y,
                    const Tensor& x,
                    const Tensor& post,
                    const Tensor& comb,
                    Tensor out);
template <typename Acc>
void streams_mean_ref(Stream& stream, const Tensor& x, Tensor out);

/// The Sinkhorn normalisation alone, on one hc × hc matrix in place (row-major A[j][k]).
template <typename Acc>
void sinkhorn_ref(Acc* a, int hc, int iters, float hc_eps);

}  // namespace deepinfer
