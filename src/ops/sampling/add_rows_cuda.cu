// Row-wise addition on the device.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) add_rows_kernel(
    const float* __restrict__ x, int64_t x_stride, int64_t n, float* out, int64_t out_stride) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < n) out[blockIdx.y * out_stride + i] += x[blockIdx.y * x_stride + i];
}

}  // namespace

void add_rows(Stream& stream, const Tensor& x, Tensor out) {
    DI_CHECK(x.dtype == DType::kF32 && out.dtype == DType::kF32);
    DI_CHECK(x.dim(0) == out.dim(0) && x.dim(1) == out.dim(1));
    launch(stream,
           "add_rows",
           add_rows_kernel,
           dim3(div_up(x.dim(1), kThreads), static_cast<unsigned>(x.dim(0))),
           dim3(kThreads),
           0,
           x.ptr<float>(),
           x.stride[0],
           x.dim(1),
           out.ptr<float>(),
           out.stride[0]);
}

}  // namespace deepinfer::cuda
