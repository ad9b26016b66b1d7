// The most likely token of every row: one block a row, larger value first, then the smaller
// position.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;

/// One comparable number: value (NaN and -inf are 0, -0 equals +0), then the smaller position.
__device__ uint64_t key(float x, int64_t i) {
    if (!(x > -INFINITY)) return 0;
    const uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);
    const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
    return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(i));
}

__global__ void __launch_bounds__(kThreads)
    argmax_rows_kernel(const float* __restrict__ x, int64_t stride, int64_t n, int32_t* ids) {
    begin_kernel();
    __shared__ uint64_t best_of_warp[kThreads / 32];
    uint64_t best = 0;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
        const uint64_t k = key(x[blockIdx.x * stride + i], i);
        best = k > best ? k : best;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        const uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, best, d);
        best = other > best ? other : best;
    }
    if ((threadIdx.x & 31) == 0) best_of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kThreads / 32; ++w) best = best_of_warp[w] > best ? best_of_warp[w] : best;
    ids[blockIdx.x] =
        best == 0 ? 0 : static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(best));
}

}  // namespace

void argmax_rows(Stream& stream, const Tensor& x, Tensor ids) {
    DI_CHECK(x.dtype == DType::kF32 && ids.dtype == DType::kI32);
    DI_CHECK_GE(x.dim(1), 1);
    DI_CHECK_EQ(ids.dim(0), x.dim(0));
    launch(stream,
           "argmax_rows",
           argmax_rows_kernel,
           dim3(static_cast<unsigned>(x.dim(0))),
           dim3(kThreads),
           0,
           x.ptr<float>(),
           x.stride[0],
           x.dim(1),
           ids.ptr<int32_t>());
}

}  // namespace deepinfer::cuda
