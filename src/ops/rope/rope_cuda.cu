// Rotary embedding on the device: one thread a pair; the sums are written out so that nothing is
// fused.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) rope_table_kernel(const int32_t* __restrict__ positions,
                                                              const float* __restrict__ freqs,
                                                              int64_t total,
                                                              int half,
                                                              float2* cos_sin) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const float angle = __fmul_rn(static_cast<float>(positions[i / half]), freqs[i % half]);
    // In double and rounded once: below one ulp of fp32 whatever the compiler's fast-math state.
    double s, c;
    sincos(static_cast<double>(angle), &s, &c);
    cos_sin[i] = make_float2(static_cast<float>(c), static_cast<float>(s));
}

__global__ void __launch_bounds__(kThreads) rope_kernel(uint16_t* x,
                                                        int64_t row_stride,
                                                        int64_t head_stride,
                                                        int heads,
                                                        int d,
                                                        const float2* __restrict__ cos_sin,
                                                        int half,
                                                        bool inverse,
                                                        int64_t total) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int pair = static_cast<int>(i % half);
    const int head = static_cast<int>(i / half % heads);
    const int64_t row = i / half / heads;
    const float2 cs = cos_sin[row * half + pair];
    const float sine = inverse ? -cs.y : cs.y;
    uint16_t* p = x + row * row_stride + head * head_stride + d - 2 * half + 2 * pair;
    const float e = bf16_value(p[0]), o = bf16_value(p[1]);
    p[0] = round_bf16_bits(__fsub_rn(__fmul_rn(e, cs.x), __fmul_rn(o, sine)));
    p[1] = round_bf16_bits(__fadd_rn(__fmul_rn(e, sine), __fmul_rn(o, cs.x)));
}

/// The same for four neighbouring pairs a thread: 16-byte accesses.
__global__ void __launch_bounds__(kThreads) rope_wide_kernel(uint16_t* x,
                                                             int64_t row_stride,
                                                             int64_t head_stride,
                                                             int heads,
                                                             int d,
                                                             const float4* __restrict__ cos_sin,
                                                             int half,
                                                             bool inverse,
                                                             int total) {
    begin_kernel();
    const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (i >= total) return;
    const int fours = half / 4, quad = i % fours, head = i / fours % heads, row = i / fours / heads;
    uint16_t* p = x + row * row_stride + head * head_stride + d - 2 * half + 8 * quad;
    const float4* table = cos_sin + (static_cast<int64_t>(row) * half + 4 * quad) / 2;
    const float4 first = table[0], second = table[1];
    const float c[4] = {first.x, first.z, second.x, second.z},
                s[4] = {first.y, first.w, second.y, second.w};
    Bf16x8 v = load8(p, true);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float sine = inverse ? -s[j] : s[j];
        const float e = bf16_value(v.v[2 * j]), o = bf16_value(v.v[2 * j + 1]);
        v.v[2 * j] = round_bf16_bits(__fsub_rn(__fmul_rn(e, c[j]), __fmul_rn(o, sine)));
        v.v[2 * j + 1] = round_bf16_bits(__fadd_rn(__fmul_rn(e, sine), __fmul_rn(o, c[j])));
    }
    store8(p, v, true);
}

}  // namespace

void rope_table(Stream& stream, const Tensor& positions, const Tensor& freqs, Tensor cos_sin) {
    DI_CHECK(cos_sin.dtype == DType::kF32 && cos_sin.dense());
    const int64_t half = freqs.numel(), total = positions.dim(0) * half;
    launch(stream,
           "rope_table",
           rope_table_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           positions.ptr<int32_t>(),
           freqs.ptr<float>(),
           total,
           static_cast<int>(half),
           cos_sin.ptr<float2>());
}

void rope(Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse) {
    DI_CHECK(x.dtype == DType::kBF16 && x.ndim == 3 && cos_sin.dtype == DType::kF32);
    const int half = static_cast<int>(cos_sin.dim(1));
    const int64_t total = x.dim(0) * x.dim(1) * half;
    const auto address = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data); };
    if (half % 4 == 0 && (x.dim(2) - 2 * half) % 8 == 0 && x.stride[0] % 8 == 0 &&
        x.stride[1] % 8 == 0 && address(x) % 16 == 0 && address(cos_sin) % 16 == 0 &&
        cos_sin.dense() && total / 4 < int64_t{1} << 31) {
        launch(stream,
               "rope",
               rope_wide_kernel,
               dim3(div_up(total / 4, kThreads)),
               dim3(kThreads),
               0,
               x.ptr<uint16_t>(),
               x.stride[0],
               x.stride[1],
               static_cast<int>(x.dim(1)),
               static_cast<int>(x.dim(2)),
               cos_sin.ptr<float4>(),
               half,
               inverse,
               static_cast<int>(total / 4));
        return;
    }
    launch(stream,
           "rope",
           rope_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           x.ptr<uint16_t>(),
           x.stride[0],
           x.stride[1],
           static_cast<int>(x.dim(1)),
           static_cast<int>(x.dim(2)),
           cos_sin.ptr<float2>(),
           half,
           inverse,
           total);
}

}  // namespace deepinfer::cuda
