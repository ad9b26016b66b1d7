// RMS norm on the device: one block a row, one fixed tree, two passes over the row (the second from
// cache).
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(Bf16Rows x, const float* __restrict__ weight, float eps, int n, Bf16Rows out) {
    begin_kernel();
    __shared__ float partial[kThreads / 32];
    const uint16_t* row = x.row(blockIdx.x);
    uint16_t* dst = out.row(blockIdx.x);
    const int whole = n / 8 * 8;
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x) * 8; i < whole; i += kThreads * 8) {
        const Bf16x8 v = load8(row + i, x.aligned);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float a = bf16_value(v.v[j]);
            sum = fmaf(a, a, sum);
        }
    }
    for (int i = whole + static_cast<int>(threadIdx.x); i < n; i += kThreads) {
        const float a = bf16_value(row[i]);
        sum = fmaf(a, a, sum);
    }
    const float total = block_sum<kThreads>(sum, partial);
    const float inverse = 1.0f / sqrtf(total / static_cast<float>(n) + eps);
    // Each thread overwrites only what it alone reads, so out may alias x.
    for (int i = static_cast<int>(threadIdx.x) * 8; i < whole; i += kThreads * 8) {
        Bf16x8 v = load8(row + i, x.aligned);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v.v[j] = round_bf16_bits(bf16_value(v.v[j]) * inverse * weight[i + j]);
        store8(dst + i, v, out.aligned);
    }
    for (int i = whole + static_cast<int>(threadIdx.x); i < n; i += kThreads) {
        dst[i] = round_bf16_bits(bf16_value(row[i]) * inverse * weight[i]);
    }
}

}  // namespace

void rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out) {
    const int64_t rows = x.dim(0), n = x.dim(1);
    DI_CHECK_EQ(weight.numel(), n);
    launch(stream,
           "rms_norm",
           rms_norm_kernel,
           dim3(static_cast<unsigned>(rows)),
           dim3(kThreads),
           0,
           bf16_rows(x),
           weight.ptr<float>(),
           eps,
           static_cast<int>(n),
           bf16_rows(out));
}

}  // namespace deepinfer::cuda
