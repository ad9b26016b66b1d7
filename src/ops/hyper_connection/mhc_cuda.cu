// Hyper-connections on the device.
//
// mixes runs in two launches: `kSplits` blocks a row sum fixed slices of the flattened streams (so that one
// row alone still uses many multiprocessors and the 2 MB of fn comes at full speed), then one warp a row adds
// the slices in order, applies the sigmoids and normalises. The split depends on hc · D only.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSplits = 16;
constexpr int kMixThreads = 128;
constexpr int kMaxHc = 8;
constexpr int kDotsPerPass = 8;  ///< coefficients that share one reading of the slice

/// partial[row][split][0 .. mixes] = slice dots, then the slice's sum of squares.
/// `Rows` rows share each reading of fn; a row's own order does not depend on it.
template <int Rows>
__global__ void __launch_bounds__(kMixThreads) mixes_partial_kernel(const uint16_t* __restrict__ x, const float* __restrict__ fn,
                                                                    int64_t num_rows, int v, int mixes, float* partial) {
    __shared__ float shared[kMixThreads / 32][Rows][kDotsPerPass + 1];
    const int slice = (v / 8 + kSplits - 1) / kSplits * 8;
    const int begin = static_cast<int>(blockIdx.x) * slice;
    const int end = min(v, begin + slice);
    const int64_t row0 = static_cast<int64_t>(blockIdx.y) * Rows;
    for (int m0 = 0; m0 < mixes; m0 += kDotsPerPass) {
        float dot[Rows][kDotsPerPass + 1] = {};
        for (int i = begin + static_cast<int>(threadIdx.x) * 4; i < end; i += kMixThreads * 4) {
            float a[Rows][4];
#pragma unroll
            for (int r = 0; r < Rows; ++r) {
                const int64_t row = min(row0 + r, num_rows - 1);
                const uint2 bits = *reinterpret_cast<const uint2*>(x + row * v + i);
                a[r][0] = bf16_value(static_cast<uint16_t>(bits.x));
                a[r][1] = bf16_value(static_cast<uint16_t>(bits.x >> 16));
                a[r][2] = bf16_value(static_cast<uint16_t>(bits.y));
                a[r][3] = bf16_value(static_cast<uint16_t>(bits.y >> 16));
            }
#pragma unroll
            for (int m = 0; m < kDotsPerPass; ++m) {
                if (m0 + m >= mixes) break;
                const float4 f = *reinterpret_cast<const float4*>(fn + static_cast<int64_t>(m0 + m) * v + i);
#pragma unroll
                for (int r = 0; r < Rows; ++r) {
                    dot[r][m] = fmaf(f.x, a[r][0], dot[r][m]);
                    dot[r][m] = fmaf(f.y, a[r][1], dot[r][m]);
                    dot[r][m] = fmaf(f.z, a[r][2], dot[r][m]);
                    dot[r][m] = fmaf(f.w, a[r][3], dot[r][m]);
                }
            }
            if (m0 == 0) {
#pragma unroll
                for (int r = 0; r < Rows; ++r) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) dot[r][kDotsPerPass] = fmaf(a[r][j], a[r][j], dot[r][kDotsPerPass]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
#pragma unroll
            for (int m = 0; m <= kDotsPerPass; ++m) {
                const float s = warp_sum(dot[r][m]);
                if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32][r][m] = s;
            }
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < Rows * (kDotsPerPass + 1); i += kMixThreads) {
            const int r = i / (kDotsPerPass + 1), m = i % (kDotsPerPass + 1);
            if (row0 + r >= num_rows) continue;
            float s = 0.0f;
            for (int w = 0; w < kMixThreads / 32; ++w) s += shared[w][r][m];
            float* dst = partial + ((row0 + r) * kSplits + blockIdx.x) * (mixes + 1);
            if (m < kDotsPerPass && m0 + m < mixes) dst[m0 + m] = s;
            if (m == kDotsPerPass && m0 == 0) dst[mixes] = s;
        }
        __syncthreads();
    }
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// One warp a row: lane j holds A[j / hc][j % hc] (two of them when hc · hc > 32).
__global__ void __launch_bounds__(128) mixes_finish_kernel(const float* __restrict__ partial, const float* __restrict__ base,
                                                           const float* __restrict__ scale, int64_t num_rows, int v, int hc,
                                                           int iters, float hc_eps, float norm_eps, float* pre, float* post,
                                                           float* comb) {
    __shared__ float all[4][kMaxHc * (kMaxHc + 2) + 1];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * 4 + warp;
    if (row >= num_rows) return;
    const int mixes = (2 + hc) * hc;
    float* m = all[warp];
    for (int i = lane; i <= mixes; i += 32) {
        float s = 0.0f;
        for (int k = 0; k < kSplits; ++k) s += partial[(row * kSplits + k) * (mixes + 1) + i];
        m[i] = s;
    }
    __syncwarp();
    const float rr = 1.0f / sqrtf(m[mixes] / static_cast<float>(v) + norm_eps);
    __syncwarp();
    for (int i = lane; i < mixes; i += 32) {
        const float t = m[i] * rr;
        if (i < hc) pre[row * hc + i] = sigmoid(t * scale[0] + base[i]) + hc_eps;
        else if (i < 2 * hc) post[row * hc + i - hc] = 2.0f * sigmoid(t * scale[1] + base[i]);
        else m[i] = t * scale[2] + base[i];
    }
    __syncwarp();
    float* a = m + 2 * hc;
    // hc <= 8: lane j < hc owns row j (or column j) in turn; sums run in ascending index.
    if (lane < hc) {
        float top = a[lane * hc];
        for (int k = 1; k < hc; ++k) top = fmaxf(top, a[lane * hc + k]);
        float sum = 0.0f;
        for (int k = 0; k < hc; ++k) sum += a[lane * hc + k] = expf(a[lane * hc + k] - top);
        for (int k = 0; k < hc; ++k) a[lane * hc + k] = a[lane * hc + k] / sum + hc_eps;
    }
    __syncwarp();
    for (int it = 0; it < iters; ++it) {
        if (it > 0 && lane < hc) {
            float sum = 0.0f;
            for (int k = 0; k < hc; ++k) sum += a[lane * hc + k];
            for (int k = 0; k < hc; ++k) a[lane * hc + k] /= sum + hc_eps;
        }
        __syncwarp();
        if (lane < hc) {
            float sum = 0.0f;
            for (int j = 0; j < hc; ++j) sum += a[j * hc + lane];
            for (int j = 0; j < hc; ++j) a[j * hc + lane] /= sum + hc_eps;
        }
        __syncwarp();
    }
    for (int i = lane; i < hc * hc; i += 32) comb[row * hc * hc + i] = a[i];
}

__global__ void __launch_bounds__(kThreads) collapse_kernel(const uint16_t* __restrict__ x, const float* __restrict__ pre, int hc,
                                                            int d, uint16_t* out, int64_t out_stride, float factor) {
    const int64_t row = blockIdx.y;
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 2;
    if (i >= d) return;
    float a = 0.0f, b = 0.0f;
    for (int s = 0; s < hc; ++s) {
        const uint32_t bits = *reinterpret_cast<const uint32_t*>(x + (row * hc + s) * d + i);
        const float w = pre != nullptr ? pre[row * hc + s] : 1.0f;
        a += w * bf16_value(static_cast<uint16_t>(bits));
        b += w * bf16_value(static_cast<uint16_t>(bits >> 16));
    }
    out[row * out_stride + i] = round_bf16_bits(a * factor);
    out[row * out_stride + i + 1] = round_bf16_bits(b * factor);
}

__global__ void __launch_bounds__(kThreads) expand_kernel(Bf16Rows y, const uint16_t* __restrict__ x, const float* __restrict__ post,
                                                          const float* __restrict__ comb, int hc, int d, uint16_t* out) {
    const int64_t row = blockIdx.y;
    const int i = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 2;
    if (i >= d) return;
    float xs[kMaxHc][2];
#pragma unroll
    for (int j = 0; j < kMaxHc; ++j) {
        if (j >= hc) break;
        const uint32_t bits = *reinterpret_cast<const uint32_t*>(x + (row * hc + j) * d + i);
        xs[j][0] = bf16_value(static_cast<uint16_t>(bits));
        xs[j][1] = bf16_value(static_cast<uint16_t>(bits >> 16));
    }
    const float y0 = bf16_value(y.row(row)[i]), y1 = bf16_value(y.row(row)[i + 1]);
    for (int k = 0; k < hc; ++k) {
        const float p = post[row * hc + k];
        float a = p * y0, b = p * y1;
#pragma unroll
        for (int j = 0; j < kMaxHc; ++j) {
            if (j >= hc) break;
            const float c = comb[(row * hc + j) * hc + k];
            a += c * xs[j][0];
            b += c * xs[j][1];
        }
        *reinterpret_cast<uint32_t*>(out + (row * hc + k) * d + i) =
            static_cast<uint32_t>(round_bf16_bits(a)) | (static_cast<uint32_t>(round_bf16_bits(b)) << 16);
    }
}

dim3 row_grid(int64_t rows, int64_t d) { return dim3(div_up(d, 2 * kThreads), static_cast<unsigned>(rows)); }

void collapse(Stream& stream, const char* name, const Tensor& x, const float* pre, float factor, Tensor out) {
    DI_CHECK(x.dtype == DType::kBF16 && x.dense() && x.dim(2) % 2 == 0);
    launch(stream, name, collapse_kernel, row_grid(x.dim(0), x.dim(2)), dim3(kThreads), 0, x.ptr<uint16_t>(), pre,
           static_cast<int>(x.dim(1)), static_cast<int>(x.dim(2)), out.ptr<uint16_t>(), out.stride[0], factor);
}

}  // namespace

void mhc_mixes(Stream& stream, const Tensor& x, const Tensor& fn, const Tensor& base, const Tensor& scale, int sinkhorn_iters,
               float hc_eps, float norm_eps, Tensor pre, Tensor post, Tensor comb) {
    const int64_t rows = x.dim(0);
    const int hc = static_cast<int>(x.dim(1)), v = static_cast<int>(x.dim(1) * x.dim(2)), mixes = (2 + hc) * hc;
    DI_CHECK(x.dense() && fn.dense() && pre.dtype == DType::kF32);
    DI_CHECK_LE(hc, kMaxHc);
    DI_CHECK_EQ(v % 8, 0);
    if (rows == 0) return;
    auto* partial = static_cast<float*>(
        cuda_stream(stream).scratch(static_cast<size_t>(rows) * kSplits * static_cast<size_t>(mixes + 1) * sizeof(float)));
    if (rows >= 64) {
        constexpr int kRows = 4;
        launch(stream, "mhc_mixes_partial", mixes_partial_kernel<kRows>, dim3(kSplits, div_up(rows, kRows)), dim3(kMixThreads), 0,
               x.ptr<uint16_t>(), fn.ptr<float>(), rows, v, mixes, partial);
    } else {
        launch(stream, "mhc_mixes_partial", mixes_partial_kernel<1>, dim3(kSplits, static_cast<unsigned>(rows)), dim3(kMixThreads),
               0, x.ptr<uint16_t>(), fn.ptr<float>(), rows, v, mixes, partial);
    }
    launch(stream, "mhc_mixes_finish", mixes_finish_kernel, dim3(div_up(rows, 4)), dim3(128), 0, partial, base.ptr<float>(),
           scale.ptr<float>(), rows, v, hc, sinkhorn_iters, hc_eps, norm_eps, pre.ptr<float>(), post.ptr<float>(),
           comb.ptr<float>());
}

void mhc_collapse(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out) {
    collapse(stream, "mhc_collapse", x, pre.ptr<float>(), 1.0f, out);
}

void streams_mean(Stream& stream, const Tensor& x, Tensor out) {
    collapse(stream, "streams_mean", x, nullptr, 1.0f / static_cast<float>(x.dim(1)), out);
}

void mhc_expand(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& post, const Tensor& comb, Tensor out) {
    DI_CHECK(x.dense() && out.dense() && x.dim(2) % 2 == 0);
    DI_CHECK_LE(x.dim(1), kMaxHc);
    launch(stream, "mhc_expand", expand_kernel, row_grid(x.dim(0), x.dim(2)), dim3(kThreads), 0, bf16_rows(y), x.ptr<uint16_t>(),
           post.ptr<float>(), comb.ptr<float>(), static_cast<int>(x.dim(1)), static_cast<int>(x.dim(2)), out.ptr<uint16_t>());
}

}  // namespace deepinfer::cuda
