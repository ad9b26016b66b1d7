// RMS norm on the device: one block a row, one fixed order (row_squares.cuh), two passes over the
// row (the second from cache). With Q8 the normed row is rounded to the activation format as it is
// stored.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/row_squares.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

template <bool Q8>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(
    Bf16Rows x, const float* __restrict__ weight, float eps, int n, Bf16Rows out, Bf16Rows outq) {
    begin_kernel();
    __shared__ float runs[kMaxSquareRuns];
    const uint16_t* row = x.row(blockIdx.x);
    const int num_runs = square_runs(n);
    for (int run = static_cast<int>(threadIdx.x) / 32; run < num_runs; run += kThreads / 32) {
        const int i = (run * 32 + static_cast<int>(threadIdx.x) % 32) * 8;
        float sum = 0.0f;
        if (i + 8 <= n) {
            sum = group_squares(load8(row + i, x.aligned));
        } else {
            for (int j = i; j < n; ++j) sum = fmaf(bf16_value(row[j]), bf16_value(row[j]), sum);
        }
        store_run(sum, run, runs);
    }
    __syncthreads();
    const float inverse = inverse_rms(runs, num_runs, n, eps);
    // Each thread overwrites only what it alone reads, so out may alias x.
    const int padded = (n / 8 + 31) / 32 * 256;  // whole warps take part in the shuffles
    for (int i = static_cast<int>(threadIdx.x) * 8; i < padded; i += kThreads * 8) {
        const bool live = i + 8 <= n;
        Bf16x8 v{};
        if (live) v = load8(row + i, x.aligned);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v.v[j] = live ? round_bf16_bits(bf16_value(v.v[j]) * inverse * weight[i + j]) : 0;
        if (live && out.data != nullptr) store8(out.row(blockIdx.x) + i, v, out.aligned);
        if constexpr (Q8) {
            v = q8_group(v);
            if (live) store8(outq.row(blockIdx.x) + i, v, outq.aligned);
        }
    }
    for (int i = n / 8 * 8 + static_cast<int>(threadIdx.x); i < n; i += kThreads) {
        out.row(blockIdx.x)[i] = round_bf16_bits(bf16_value(row[i]) * inverse * weight[i]);
    }
}

}  // namespace

void rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out) {
    const int64_t rows = x.dim(0), n = x.dim(1);
    DI_CHECK_EQ(weight.numel(), n);
    DI_CHECK_LE(square_runs(static_cast<int>(n)), kMaxSquareRuns);
    launch(stream,
           "rms_norm",
           rms_norm_kernel<false>,
           dim3(static_cast<unsigned>(rows)),
           dim3(kThreads),
           0,
           bf16_rows(x),
           weight.ptr<float>(),
           eps,
           static_cast<int>(n),
           bf16_rows(out),
           Bf16Rows{});
}

void rms_norm_q8(
    Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out, Tensor outq) {
    const int64_t rows = x.dim(0), n = x.dim(1);
    DI_CHECK_EQ(weight.numel(), n);
    DI_CHECK_EQ(n % 32, 0);
    DI_CHECK_LE(square_runs(static_cast<int>(n)), kMaxSquareRuns);
    launch(stream,
           "rms_norm_q8",
           rms_norm_kernel<true>,
           dim3(static_cast<unsigned>(rows)),
           dim3(kThreads),
           0,
           bf16_rows(x),
           weight.ptr<float>(),
           eps,
           static_cast<int>(n),
           out ? bf16_rows(out) : Bf16Rows{},
           bf16_rows(outq));
}

}  // namespace deepinfer::cuda
