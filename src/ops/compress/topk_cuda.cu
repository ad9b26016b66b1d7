// Exact selection on the device: the K largest of a row by (value descending, index ascending), listed ascending.
//
// One block a row. Four passes of eight bits find the K-th largest key and how many of its equals are taken;
// a last pass in index order writes the list. Integer counts only, so the order of threads never shows.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 1024;

/// Larger float, larger key; −inf and NaN give 0 (never picked); −0 equals +0.
__device__ uint32_t selection_key(float x) {
    if (!(x > -INFINITY)) return 0;
    const uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

struct EntryKeys {
    const float* row;
    __device__ uint32_t operator()(int64_t i) const { return selection_key(row[i]); }
};

struct BlockKeys {
    const float* row;
    int64_t visible;
    int block_size;
    int64_t newest;
    __device__ uint32_t operator()(int64_t i) const {
        if (i == newest) return 0xFFFFFFFFu;
        float best = -INFINITY;
        const int64_t end = min((i + 1) * block_size, visible);
        for (int64_t j = i * block_size; j < end; ++j) best = fmaxf(best, row[j]);
        return selection_key(best);
    }
};

/// Exclusive prefix sum over the block; `total` is the sum. `shared` holds 32 ints.
__device__ int block_exclusive_sum(int v, int* shared, int& total) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    int inclusive = v;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int up = __shfl_up_sync(0xFFFFFFFFu, inclusive, d);
        if (lane >= d) inclusive += up;
    }
    if (lane == 31) shared[warp] = inclusive;
    __syncthreads();
    int before = 0;
    total = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
        if (w < warp) before += shared[w];
        total += shared[w];
    }
    __syncthreads();
    return before + inclusive - v;
}

template <typename Keys>
__device__ void select(const Keys& keys, int64_t n, int k, int32_t* list) {
    __shared__ int histogram[256];
    __shared__ uint32_t prefix_shared;
    __shared__ int want_shared;
    __shared__ int scan[kThreads / 32];
    uint32_t prefix = 0;
    int want = k;  // how many of the keys that share `prefix` are still to be taken
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) histogram[i] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += kThreads) {
            const uint32_t key = keys(i);
            if (key != 0 && (shift == 24 || key >> (shift + 8) == prefix)) atomicAdd(&histogram[key >> shift & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Lane l owns bins 255 - 8l .. 248 - 8l; the first bin from above where the count reaches `want`.
            const int lane = static_cast<int>(threadIdx.x);
            int sum = 0;
            for (int j = 0; j < 8; ++j) sum += histogram[255 - lane * 8 - j];
            int inclusive = sum;
            for (int d = 1; d < 32; d *= 2) {
                const int up = __shfl_up_sync(0xFFFFFFFFu, inclusive, d);
                if (lane >= d) inclusive += up;
            }
            const uint32_t reached = __ballot_sync(0xFFFFFFFFu, inclusive >= want);
            if (reached == 0) {
                if (lane == 0) {
                    prefix_shared = 0;
                    want_shared = -1;  // fewer than k keys exist: take every one
                }
            } else if (lane == __ffs(static_cast<int>(reached)) - 1) {
                int above = inclusive - sum;
                int bin = 255 - lane * 8;
                while (above + histogram[bin] < want) above += histogram[bin--];
                prefix_shared = prefix << 8 | static_cast<uint32_t>(bin);
                want_shared = want - above;
            }
        }
        __syncthreads();
        prefix = prefix_shared;
        want = want_shared;
        __syncthreads();
        if (want < 0) break;
    }
    const bool all = want < 0;
    int written = 0, ties = 0;
    for (int64_t base = 0; base < n; base += kThreads) {
        const int64_t i = base + threadIdx.x;
        const uint32_t key = i < n ? keys(i) : 0;
        int tie_total = 0;
        bool pick = key != 0 && (all || key > prefix);
        if (!all) {
            const bool tie = key != 0 && key == prefix;
            const int rank = block_exclusive_sum(tie ? 1 : 0, scan, tie_total);
            pick = pick || (tie && ties + rank < want);
        }
        int total = 0;
        const int at = block_exclusive_sum(pick ? 1 : 0, scan, total);
        if (pick) list[written + at] = static_cast<int32_t>(i);
        written += total;
        ties += tie_total;
    }
    for (int i = written + static_cast<int>(threadIdx.x); i < k; i += kThreads) list[i] = -1;
}

__global__ void __launch_bounds__(kThreads) topk_kernel(const float* __restrict__ scores, int64_t stride, int64_t n, int k, int32_t* lists,
                                                        int64_t list_stride) {
    select(EntryKeys{scores + blockIdx.x * stride}, n, k, lists + blockIdx.x * list_stride);
}

__global__ void __launch_bounds__(kThreads) blocks_kernel(const float* __restrict__ scores, int64_t stride,
                                                          const int32_t* __restrict__ positions, int ratio, int block_size, int c,
                                                          int32_t* blocks, int64_t block_stride) {
    const int64_t visible = (static_cast<int64_t>(positions[blockIdx.x]) + 1) / ratio;
    const int64_t n = (visible + block_size - 1) / block_size;
    select(BlockKeys{scores + blockIdx.x * stride, visible, block_size, n - 1}, n, c, blocks + blockIdx.x * block_stride);
}

}  // namespace

void topk_select(Stream& stream, const Tensor& scores, Tensor lists) {
    DI_CHECK(scores.dtype == DType::kF32 && lists.dtype == DType::kI32);
    launch(stream, "topk_select", topk_kernel, dim3(static_cast<unsigned>(scores.dim(0))), dim3(kThreads), 0, scores.ptr<float>(),
           scores.stride[0], scores.dim(1), static_cast<int>(lists.dim(1)), lists.ptr<int32_t>(), lists.stride[0]);
}

void candidate_blocks(Stream& stream, const Tensor& scores, const Tensor& positions, int ratio, int block_size, Tensor blocks) {
    DI_CHECK(scores.dtype == DType::kF32 && blocks.dtype == DType::kI32 && positions.dtype == DType::kI32);
    launch(stream, "candidate_blocks", blocks_kernel, dim3(static_cast<unsigned>(scores.dim(0))), dim3(kThreads), 0, scores.ptr<float>(),
           scores.stride[0], positions.ptr<int32_t>(), ratio, block_size, static_cast<int>(blocks.dim(1)), blocks.ptr<int32_t>(),
           blocks.stride[0]);
}

}  // namespace deepinfer::cuda
