// Hyper-connections on the device.
//
// mixes runs in two launches: up to kSplits blocks a row sum fixed slices of the flattened streams
// (so that one row alone still uses many multiprocessors and the 2 MB of fn comes at full speed),
// then one warp a row adds the slices in order, applies the sigmoids and normalises. The split
// depends on hc · D only.
//
// With four streams the slice sums run on the tensor cores: fn = hi + mid + lo with three bf16
// parts is exact for every fp32 with a normal lowest part, the streams are bf16 already, so only
// the order of the fp32 sums differs from plain fp32 code. Other stream counts take the plain
// kernel.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSplits = 64;
constexpr int kMixThreads = 128;
constexpr int kMaxHc = 8;

/// Values of one slice: a multiple of 32, so that slices are whole operand blocks.
__host__ __device__ inline int slice_values(int v) {
    return (v + 32 * kSplits - 1) / (32 * kSplits) * 32;
}
__host__ __device__ inline int slice_count(int v) {
    return (v + slice_values(v) - 1) / slice_values(v);
}

/// partial[row][slice][0 .. mixes] = slice dots, then the slice's sum of squares. Plain: one block
/// a (slice, row).
__global__ void __launch_bounds__(kMixThreads) mixes_plain_kernel(const uint16_t* __restrict__ x,
                                                                  const float* __restrict__ fn,
                                                                  int v,
                                                                  int mixes,
                                                                  float* partial) {
    begin_kernel();
    __shared__ float shared[kMixThreads / 32];
    const int begin = static_cast<int>(blockIdx.x) * slice_values(v),
              end = min(v, begin + slice_values(v));
    const uint16_t* row = x + static_cast<int64_t>(blockIdx.y) * v;
    float* dst =
        partial + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * (mixes + 1);
    for (int m = 0; m <= mixes; ++m) {
        float dot = 0.0f;
        for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kMixThreads) {
            const float a = bf16_value(row[i]);
            dot = fmaf(m < mixes ? fn[static_cast<int64_t>(m) * v + i] : a, a, dot);
        }
        dot = block_sum<kMixThreads>(dot, shared);
        if (threadIdx.x == 0) dst[m] = dot;
    }
}

constexpr int kMixes = 24;  ///< (2 + 4) · 4
constexpr int kMixTiles = kMixes / 8;
constexpr int kMixRowBlocks = 4;  ///< row blocks of 64 that share one conversion of the slice of fn

/// The same for four streams: a warp takes 16 rows. Lane t of a quad holds eight neighbouring
/// values of each 32, for rows and coefficients alike (any order of k serves, as long as both
/// agree).
__global__ void __launch_bounds__(kMixThreads) mixes_mma_kernel(const uint16_t* __restrict__ x,
                                                                const float* __restrict__ fn,
                                                                int64_t num_rows,
                                                                int v,
                                                                float* partial) {
    begin_kernel();
    extern __shared__ __align__(16) uint16_t parts[];  // [3][24][pitch]
    const int slice = slice_values(v), pitch = (slice + 63) / 64 * 64 + 32;
    const int begin = static_cast<int>(blockIdx.x) * slice, end = min(v, begin + slice);
    const int quads = slice / 4;
#pragma unroll 5
    for (int i = static_cast<int>(threadIdx.x); i < kMixes * quads; i += kMixThreads) {
        const int m = i / quads, at = i % quads * 4;
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (begin + at < end)
            f = *reinterpret_cast<const float4*>(fn + static_cast<int64_t>(m) * v + begin + at);
        float rest[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int part = 0; part < 3; ++part) {
            const uint32_t lo = cvt_bf16x2(rest[0], rest[1]), hi = cvt_bf16x2(rest[2], rest[3]);
            *reinterpret_cast<uint2*>(parts + (part * kMixes + m) * pitch + at) =
                make_uint2(lo, hi);
            rest[0] -= bf16_value(static_cast<uint16_t>(lo));
            rest[1] -= bf16_value(static_cast<uint16_t>(lo >> 16));
            rest[2] -= bf16_value(static_cast<uint16_t>(hi));
            rest[3] -= bf16_value(static_cast<uint16_t>(hi >> 16));
        }
    }
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32,
              g = lane / 4, t = lane % 4;
    for (int block = 0; block < kMixRowBlocks; ++block) {
        const int64_t row0 =
            ((static_cast<int64_t>(blockIdx.y) * kMixRowBlocks + block) * 4 + warp) * 16;
        if (row0 >= num_rows) break;
        const bool live0 = row0 + g < num_rows, live1 = row0 + g + 8 < num_rows;
        const uint16_t* x0 = x + (row0 + g) * v;
        const uint16_t* x1 = x0 + static_cast<int64_t>(8) * v;
        float acc[kMixTiles][4] = {};
        float squares0 = 0.0f, squares1 = 0.0f;
#pragma unroll 2
        for (int k = begin; k < end; k += 32) {
            const int at = k + 8 * t;
            uint4 a0 = make_uint4(0, 0, 0, 0), a1 = a0;
            if (live0 && at < end) a0 = *reinterpret_cast<const uint4*>(x0 + at);
            if (live1 && at < end) a1 = *reinterpret_cast<const uint4*>(x1 + at);
            const uint32_t w0[4] = {a0.x, a0.y, a0.z, a0.w}, w1[4] = {a1.x, a1.y, a1.z, a1.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float p = bf16_value(static_cast<uint16_t>(w0[i])),
                            q = bf16_value(static_cast<uint16_t>(w0[i] >> 16));
                const float r = bf16_value(static_cast<uint16_t>(w1[i])),
                            s = bf16_value(static_cast<uint16_t>(w1[i] >> 16));
                squares0 = fmaf(q, q, fmaf(p, p, squares0));
                squares1 = fmaf(s, s, fmaf(r, r, squares1));
            }
            const uint32_t first[4] = {w0[0], w1[0], w0[1], w1[1]},
                           second[4] = {w0[2], w1[2], w0[3], w1[3]};
#pragma unroll
            for (int n = 0; n < kMixTiles; ++n) {
#pragma unroll
                for (int part = 0; part < 3; ++part) {
                    const uint4 b = *reinterpret_cast<const uint4*>(
                        parts + (part * kMixes + n * 8 + g) * pitch + at - begin);
                    mma_m16n8k16(acc[n], first, b.x, b.y);
                    mma_m16n8k16(acc[n], second, b.z, b.w);
                }
            }
        }
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
            squares0 += __shfl_xor_sync(0xFFFFFFFFu, squares0, d);
            squares1 += __shfl_xor_sync(0xFFFFFFFFu, squares1, d);
        }
        float* dst0 = partial + ((row0 + g) * gridDim.x + blockIdx.x) * (kMixes + 1);
        float* dst1 = dst0 + static_cast<int64_t>(8) * gridDim.x * (kMixes + 1);
#pragma unroll
        for (int n = 0; n < kMixTiles; ++n) {
            if (live0) {
                dst0[n * 8 + 2 * t] = acc[n][0];
                dst0[n * 8 + 2 * t + 1] = acc[n][1];
            }
            if (live1) {
                dst1[n * 8 + 2 * t] = acc[n][2];
                dst1[n * 8 + 2 * t + 1] = acc[n][3];
            }
        }
        if (t == 0 && live0) dst0[kMixes] = squares0;
        if (t == 0 && live1) dst1[kMixes] = squares1;
    }
}

__device__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/// Sinkhorn of one 4 × 4 matrix: lane l of the first 16 holds A[l / 4][l % 4].
__device__ float sinkhorn4(float a, int iters, float eps) {
    auto row_sum = [](float v) {
        v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
        return v + __shfl_xor_sync(0xFFFFFFFFu, v, 2);
    };
    auto column_sum = [](float v) {
        v += __shfl_xor_sync(0xFFFFFFFFu, v, 4);
        return v + __shfl_xor_sync(0xFFFFFFFFu, v, 8);
    };
    float top = fmaxf(a, __shfl_xor_sync(0xFFFFFFFFu, a, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    a = expf(a - top);
    a = a / row_sum(a) + eps;
    a /= column_sum(a) + eps;
    for (int it = 1; it < iters; ++it) {
        a /= row_sum(a) + eps;
        a /= column_sum(a) + eps;
    }
    return a;
}

/// Any stream count, in shared memory: lane j < hc owns row j, then column j; sums run in ascending
/// index.
__device__ void sinkhorn_shared(float* a, int hc, int iters, float eps, int lane) {
    if (lane < hc) {
        float top = a[lane * hc];
        for (int k = 1; k < hc; ++k) top = fmaxf(top, a[lane * hc + k]);
        float sum = 0.0f;
        for (int k = 0; k < hc; ++k) sum += a[lane * hc + k] = expf(a[lane * hc + k] - top);
        for (int k = 0; k < hc; ++k) a[lane * hc + k] = a[lane * hc + k] / sum + eps;
    }
    __syncwarp();
    for (int it = 0; it < iters; ++it) {
        if (it > 0 && lane < hc) {
            float sum = 0.0f;
            for (int k = 0; k < hc; ++k) sum += a[lane * hc + k];
            for (int k = 0; k < hc; ++k) a[lane * hc + k] /= sum + eps;
        }
        __syncwarp();
        if (lane < hc) {
            float sum = 0.0f;
            for (int j = 0; j < hc; ++j) sum += a[j * hc + lane];
            for (int j = 0; j < hc; ++j) a[j * hc + lane] /= sum + eps;
        }
        __syncwarp();
    }
}

/// One block a row: four warps add a quarter of the slices each, then the quarters are added in
/// order.
__global__ void __launch_bounds__(128) mixes_finish_kernel(const float* __restrict__ partial,
                                                           const float* __restrict__ base,
                                                           const float* __restrict__ scale,
                                                           int v,
                                                           int hc,
                                                           int iters,
                                                           float hc_eps,
                                                           float norm_eps,
                                                           float* pre,
                                                           float* post,
                                                           float* comb) {
    begin_kernel();
    constexpr int kMost = kMaxHc * (kMaxHc + 2) + 1;
    __shared__ float quarter[4][kMost];
    __shared__ float m[kMost];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
    const int64_t row = blockIdx.x;
    const int mixes = (2 + hc) * hc, slices = slice_count(v), each = (slices + 3) / 4,
              end = min(slices, (warp + 1) * each);
    for (int i = lane; i <= mixes; i += 32) {
        float s = 0.0f;
#pragma unroll 16
        for (int k = warp * each; k < end; ++k) s += partial[(row * slices + k) * (mixes + 1) + i];
        quarter[warp][i] = s;
    }
    __syncthreads();
    if (warp != 0) return;
    for (int i = lane; i <= mixes; i += 32)
        m[i] = ((quarter[0][i] + quarter[1][i]) + quarter[2][i]) + quarter[3][i];
    __syncwarp();
    const float rr = 1.0f / sqrtf(m[mixes] / static_cast<float>(v) + norm_eps);
    __syncwarp();
    for (int i = lane; i < mixes; i += 32) {
        const float t = m[i] * rr;
        if (i < hc)
            pre[row * hc + i] = sigmoid(t * scale[0] + base[i]) + hc_eps;
        else if (i < 2 * hc)
            post[row * hc + i - hc] = 2.0f * sigmoid(t * scale[1] + base[i]);
        else
            m[i] = t * scale[2] + base[i];
    }
    __syncwarp();
    float* a = m + 2 * hc;
    if (hc == 4) {
        const float c = sinkhorn4(a[lane & 15], iters, hc_eps);
        if (lane < 16) comb[row * 16 + lane] = c;
        return;
    }
    sinkhorn_shared(a, hc, iters, hc_eps, lane);
    for (int i = lane; i < hc * hc; i += 32) comb[row * hc * hc + i] = a[i];
}

/// Eight columns a thread; the row's last columns one by one when d is no multiple of 8.
__global__ void __launch_bounds__(kThreads) collapse_kernel(const uint16_t* __restrict__ x,
                                                            const float* __restrict__ pre,
                                                            int hc,
                                                            int d,
                                                            bool aligned,
                                                            Bf16Rows out,
                                                            float factor) {
    begin_kernel();
    const int64_t row = blockIdx.y;
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (i >= d) return;
    const int count = min(8, d - i);
    float sum[8] = {};
    for (int s = 0; s < hc; ++s) {
        const uint16_t* src = x + (row * hc + s) * d + i;
        const float w = pre != nullptr ? pre[row * hc + s] : 1.0f;
        if (count == 8) {
            const Bf16x8 v = load8(src, aligned);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[j] += w * bf16_value(v.v[j]);
        } else {
            for (int j = 0; j < count; ++j) sum[j] += w * bf16_value(src[j]);
        }
    }
    Bf16x8 r;
#pragma unroll
    for (int j = 0; j < 8; ++j) r.v[j] = round_bf16_bits(sum[j] * factor);
    if (count == 8)
        store8(out.row(row) + i, r, out.aligned);
    else
        for (int j = 0; j < count; ++j) out.row(row)[i + j] = r.v[j];
}

template <int HC>
__global__ void __launch_bounds__(kThreads) expand_kernel(Bf16Rows y,
                                                          const uint16_t* __restrict__ x,
                                                          const float* __restrict__ post,
                                                          const float* __restrict__ comb,
                                                          int hc,
                                                          int d,
                                                          bool aligned,
                                                          uint16_t* out) {
    begin_kernel();
    const int64_t row = blockIdx.y;
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (i >= d) return;
    const bool whole = i + 8 <= d;
    const int n = HC > 0 ? HC : hc;
    auto load = [&](const uint16_t* p, bool vector) {
        if (whole) return load8(p, vector);
        Bf16x8 v{};
        for (int j = 0; j < d - i; ++j) v.v[j] = p[j];
        return v;
    };
    Bf16x8 xs[HC > 0 ? HC : kMaxHc];
#pragma unroll
    for (int j = 0; j < (HC > 0 ? HC : kMaxHc); ++j) {
        if (j < n) xs[j] = load(x + (row * n + j) * d + i, aligned);
    }
    const Bf16x8 yv = load(y.row(row) + i, y.aligned);
    for (int k = 0; k < n; ++k) {
        const float p = post[row * n + k];
        float sum[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] = p * bf16_value(yv.v[c]);
#pragma unroll
        for (int j = 0; j < (HC > 0 ? HC : kMaxHc); ++j) {
            if (j >= n) break;
            const float w = comb[(row * n + j) * n + k];
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] += w * bf16_value(xs[j].v[c]);
        }
        Bf16x8 r;
#pragma unroll
        for (int c = 0; c < 8; ++c) r.v[c] = round_bf16_bits(sum[c]);
        uint16_t* dst = out + (row * n + k) * d + i;
        if (whole)
            store8(dst, r, aligned);
        else
            for (int c = 0; c < d - i; ++c) dst[c] = r.v[c];
    }
}

dim3 row_grid(int64_t rows, int64_t d) {
    return dim3(div_up(d, 8 * kThreads), static_cast<unsigned>(rows));
}
bool streams_aligned(const Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.dim(2) % 8 == 0;
}

void collapse(
    Stream& stream, const char* name, const Tensor& x, const float* pre, float factor, Tensor out) {
    DI_CHECK(x.dtype == DType::kBF16 && x.dense());
    launch(stream,
           name,
           collapse_kernel,
           row_grid(x.dim(0), x.dim(2)),
           dim3(kThreads),
           0,
           x.ptr<uint16_t>(),
           pre,
           static_cast<int>(x.dim(1)),
           static_cast<int>(x.dim(2)),
           streams_aligned(x),
           bf16_rows(out),
           factor);
}

}  // namespace

void mhc_mixes(Stream& stream,
               const Tensor& x,
               const Tensor& fn,
               const Tensor& base,
               const Tensor& scale,
               int sinkhorn_iters,
               float hc_eps,
               float norm_eps,
               Tensor pre,
               Tensor post,
               Tensor comb) {
    const int64_t rows = x.dim(0);
    const int hc = static_cast<int>(x.dim(1)), v = static_cast<int>(x.dim(1) * x.dim(2)),
              mixes = (2 + hc) * hc;
    DI_CHECK(x.dense() && fn.dense() && pre.dtype == DType::kF32);
    DI_CHECK_LE(hc, kMaxHc);
    DI_CHECK_EQ(v % 8, 0);
    if (rows == 0) return;
    const int slices = slice_count(v);
    auto* partial = static_cast<float*>(
        cuda_stream(stream).scratch(static_cast<size_t>(rows) * static_cast<size_t>(slices) *
                                    static_cast<size_t>(mixes + 1) * sizeof(float)));
    if (partial == nullptr) return;
    if (hc == 4 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0) {
        const size_t smem = static_cast<size_t>(3 * kMixes) *
                            static_cast<size_t>((slice_values(v) + 63) / 64 * 64 + 32) * 2;
        launch(stream,
               "mhc_mixes_partial",
               mixes_mma_kernel,
               dim3(static_cast<unsigned>(slices), div_up(rows, 64 * kMixRowBlocks)),
               dim3(kMixThreads),
               smem,
               x.ptr<uint16_t>(),
               fn.ptr<float>(),
               rows,
               v,
               partial);
    } else {
        launch(stream,
               "mhc_mixes_partial",
               mixes_plain_kernel,
               dim3(static_cast<unsigned>(slices), static_cast<unsigned>(rows)),
               dim3(kMixThreads),
               0,
               x.ptr<uint16_t>(),
               fn.ptr<float>(),
               v,
               mixes,
               partial);
    }
    launch(stream,
           "mhc_mixes_finish",
           mixes_finish_kernel,
           dim3(static_cast<unsigned>(rows)),
           dim3(128),
           0,
           partial,
           base.ptr<float>(),
           scale.ptr<float>(),
           v,
           hc,
           sinkhorn_iters,
           hc_eps,
           norm_eps,
           pre.ptr<float>(),
           post.ptr<float>(),
           comb.ptr<float>());
}

void mhc_collapse(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out) {
    collapse(stream, "mhc_collapse", x, pre.ptr<float>(), 1.0f, out);
}

void streams_mean(Stream& stream, const Tensor& x, Tensor out) {
    collapse(stream, "streams_mean", x, nullptr, 1.0f / static_cast<float>(x.dim(1)), out);
}

void mhc_expand(Stream& stream,
                const Tensor& y,
                const Tensor& x,
                const Tensor& post,
                const Tensor& comb,
                Tensor out) {
    DI_CHECK(x.dense() && out.dense());
    DI_CHECK_LE(x.dim(1), kMaxHc);
    const bool aligned = streams_aligned(x) && streams_aligned(out);
    launch(stream,
           "mhc_expand",
           x.dim(1) == 4 ? expand_kernel<4> : expand_kernel<0>,
           row_grid(x.dim(0), x.dim(2)),
           dim3(kThreads),
           0,
           bf16_rows(y),
           x.ptr<uint16_t>(),
           post.ptr<float>(),
           comb.ptr<float>(),
           static_cast<int>(x.dim(1)),
           static_cast<int>(x.dim(2)),
           aligned,
           out.ptr<uint16_t>());
}

}  // namespace deepinfer::cuda
