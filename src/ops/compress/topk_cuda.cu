// Exact selection on the device: the K largest of a row by (value descending, index ascending),
// listed ascending.
//
// One block a row. Three passes of 11, 11 and 10 bits find the K-th largest key and how many of its
// equals are taken; then every warp counts and writes its own run of indices. Integer counts only,
// so the order of threads never shows.
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

/// Narrows the K-th largest key by `Bits` more bits. On entry keys with key >> (shift + Bits) ==
/// prefix are the ones in question and `want` of them are taken; on return the same one level down.
/// want < 0: fewer keys than wanted.
template <int Bits, typename Keys>
__device__ void narrow(const Keys& keys,
                       int64_t n,
                       int shift,
                       uint32_t& prefix,
                       int& want,
                       int* histogram,
                       int* scan) {
    __shared__ uint32_t prefix_shared;
    __shared__ int want_shared;
    constexpr int kBins = 1 << Bits;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) histogram[i] = 0;
    if (threadIdx.x == 0) want_shared = -1;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
        const uint32_t key = keys(i);
        const bool mine = key != 0 && (shift + Bits == 32 || key >> (shift + Bits) == prefix);
        if (mine) atomicAdd(&histogram[key >> shift & (kBins - 1)], 1);
    }
    __syncthreads();
    // Thread i owns the kBins / kThreads bins from the top; the first bin where the count reaches
    // `want` is it.
    constexpr int kOwn = kBins / kThreads;
    int sum = 0, total = 0;
    for (int j = 0; j < kOwn; ++j)
        sum += histogram[kBins - 1 - (static_cast<int>(threadIdx.x) * kOwn + j)];
    int above = block_exclusive_sum(sum, scan, total);
    if (above < want && above + sum >= want) {
        int bin = kBins - 1 - static_cast<int>(threadIdx.x) * kOwn;
        while (above + histogram[bin] < want) above += histogram[bin--];
        prefix_shared = prefix << Bits | static_cast<uint32_t>(bin);
        want_shared = want - above;
    }
    __syncthreads();
    prefix = prefix_shared;
    want = want_shared;
    __syncthreads();
}

template <typename Keys>
__device__ void select(const Keys& keys, int64_t n, int k, int32_t* list) {
    __shared__ int histogram[2048];
    __shared__ int scan[kThreads / 32];
    __shared__ int greater_counts[kThreads / 32], tie_counts[kThreads / 32];
    uint32_t prefix = 0;
    int want = k;  // how many of the keys that share `prefix` are still to be taken
    narrow<11>(keys, n, 21, prefix, want, histogram, scan);
    if (want >= 0) {
        narrow<11>(keys, n, 10, prefix, want, histogram, scan);
        narrow<10>(keys, n, 0, prefix, want, histogram, scan);
    }
    if (want < 0) {  // every key above 0 is taken
        prefix = 0;
        want = 0;
    }
    // Each warp owns a run of indices: it counts, learns what stands before it, then writes.
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t run = (n + kThreads - 1) / kThreads * 32, begin = warp * run,
                  end = min(n, begin + run);
    int greater = 0, ties = 0;
#pragma unroll 4
    for (int64_t base = begin; base < end; base += 32) {
        const uint32_t key = base + lane < end ? keys(base + lane) : 0;
        greater += __popc(__ballot_sync(0xFFFFFFFFu, key > prefix));
        ties += __popc(__ballot_sync(0xFFFFFFFFu, key != 0 && key == prefix));
    }
    if (lane == 0) {
        greater_counts[warp] = greater;
        tie_counts[warp] = ties;
    }
    __syncthreads();
    int greater_before = 0, ties_before = 0, greater_all = 0, ties_all = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
        if (w < warp) {
            greater_before += greater_counts[w];
            ties_before += tie_counts[w];
        }
        greater_all += greater_counts[w];
        ties_all += tie_counts[w];
    }
    const uint32_t below = (1u << lane) - 1u;
#pragma unroll 4
    for (int64_t base = begin; base < end; base += 32) {
        const uint32_t key = base + lane < end ? keys(base + lane) : 0;
        const bool is_greater = key > prefix, is_tie = key != 0 && key == prefix;
        const uint32_t greater_mask = __ballot_sync(0xFFFFFFFFu, is_greater),
                       tie_mask = __ballot_sync(0xFFFFFFFFu, is_tie);
        const int tie_rank = ties_before + __popc(tie_mask & below);
        if (is_greater || (is_tie && tie_rank < want)) {
            list[greater_before + __popc(greater_mask & below) + min(tie_rank, want)] =
                static_cast<int32_t>(base + lane);
        }
        greater_before += __popc(greater_mask);
        ties_before += __popc(tie_mask);
    }
    for (int i = greater_all + min(ties_all, want) + static_cast<int>(threadIdx.x); i < k;
         i += kThreads)
        list[i] = -1;
}

__global__ void __launch_bounds__(kThreads) topk_kernel(const float* __restrict__ scores,
                                                        int64_t stride,
                                                        int64_t n,
                                                        int k,
                                                        int32_t* lists,
                                                        int64_t list_stride) {
    begin_kernel();
    select(EntryKeys{scores + blockIdx.x * stride}, n, k, lists + blockIdx.x * list_stride);
}

__global__ void __launch_bounds__(kThreads) blocks_kernel(const float* __restrict__ scores,
                                                          int64_t stride,
                                                          const int32_t* __restrict__ positions,
                                                          int ratio,
                                                          int block_size,
                                                          int c,
                                                          int32_t* blocks,
                                                          int64_t block_stride) {
    begin_kernel();
    const int64_t visible = (static_cast<int64_t>(positions[blockIdx.x]) + 1) / ratio;
    const int64_t n = (visible + block_size - 1) / block_size;
    select(BlockKeys{scores + blockIdx.x * stride, visible, block_size, n - 1},
           n,
           c,
           blocks + blockIdx.x * block_stride);
}

}  // namespace

void topk_select(Stream& stream, const Tensor& scores, Tensor lists) {
    DI_CHECK(scores.dtype == DType::kF32 && lists.dtype == DType::kI32);
    launch(stream,
           "topk_select",
           topk_kernel,
           dim3(static_cast<unsigned>(scores.dim(0))),
           dim3(kThreads),
           0,
           scores.ptr<float>(),
           scores.stride[0],
           scores.dim(1),
           static_cast<int>(lists.dim(1)),
           lists.ptr<int32_t>(),
           lists.stride[0]);
}

void candidate_blocks(Stream& stream,
                      const Tensor& scores,
                      const Tensor& positions,
                      int ratio,
                      int block_size,
                      Tensor blocks) {
    DI_CHECK(scores.dtype == DType::kF32 && blocks.dtype == DType::kI32 &&
             positions.dtype == DType::kI32);
    launch(stream,
           "candidate_blocks",
           blocks_kernel,
           dim3(static_cast<unsigned>(scores.dim(0))),
           dim3(kThreads),
           0,
           scores.ptr<float>(),
           scores.stride[0],
           positions.ptr<int32_t>(),
           ratio,
           block_size,
           static_cast<int>(blocks.dim(1)),
           blocks.ptr<int32_t>(),
           blocks.stride[0]);
}

}  // namespace deepinfer::cuda
