// Router on the device: one warp a row picks the experts, all choices stay there.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxExperts = 32 * 64;  ///< one bit a lane and pass marks what is taken

__global__ void __launch_bounds__(256)
    score_kernel(float* scores, int64_t total, float temperature, bool sigmoid) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= total) return;
    const float x = scores[i] / temperature;
    if (sigmoid)
        scores[i] = 1.0f / (1.0f + expf(-x));
    else
        scores[i] = sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

/// One block a row.
__global__ void __launch_bounds__(256) softmax_kernel(float* scores, int n, float temperature) {
    begin_kernel();
    __shared__ float partial[8];
    __shared__ float tops[8];
    float* row = scores + static_cast<int64_t>(blockIdx.x) * n;
    float top = -INFINITY;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
        top = fmaxf(top, row[i] / temperature);
    top = group_max<32>(top);
    if ((threadIdx.x & 31) == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int i = 0; i < 8; ++i) top = fmaxf(top, tops[i]);
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
        sum += expf(row[i] / temperature - top);
    sum = block_sum<256>(sum, partial);
    for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
        row[i] = expf(row[i] / temperature - top) / sum;
}

/// Larger float, larger integer; NaN is the smallest; -0 equals +0.
__device__ uint32_t ordered(float x) {
    if (isnan(x)) return 0;
    const uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

__global__ void __launch_bounds__(kThreads) topk_kernel(const float* __restrict__ scores,
                                                        const float* __restrict__ bias,
                                                        const float* __restrict__ bias_vl,
                                                        const uint8_t* __restrict__ image_rows,
                                                        int64_t num_rows,
                                                        int experts,
                                                        int k,
                                                        int32_t* ids) {
    begin_kernel();
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
    if (row >= num_rows) return;
    const float* b = image_rows != nullptr && image_rows[row] != 0 ? bias_vl : bias;
    const float* s = scores + row * experts;
    uint64_t taken = 0;  // bit j: expert j · 32 + lane
    for (int round = 0; round < k; ++round) {
        // Key: score, then the smaller id. Bit 63 keeps every free expert above "none".
        uint64_t best = 0;
        for (int e = lane, j = 0; e < experts; e += 32, ++j) {
            if ((taken >> j & 1) != 0) continue;
            const uint64_t key = (static_cast<uint64_t>(ordered(s[e] + b[e])) << 31 |
                                  static_cast<uint32_t>(0x7FFFFFFF - e)) |
                                 1ull << 63;
            best = key > best ? key : best;
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            const uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, best, d);
            best = other > best ? other : best;
        }
        const int winner = 0x7FFFFFFF - static_cast<int>(best & 0x7FFFFFFFu);
        if ((winner & 31) == lane) taken |= 1ull << (winner / 32);
    }
    int written = 0;
    for (int base = 0, j = 0; base < experts; base += 32, ++j) {
        const bool mine = (taken >> j & 1) != 0;
        const uint32_t mask = __ballot_sync(0xFFFFFFFFu, mine);
        if (mine) ids[row * k + written + __popc(mask & ((1u << lane) - 1u))] = base + lane;
        written += __popc(mask);
    }
}

__global__ void __launch_bounds__(kThreads) weights_kernel(const float* __restrict__ scores,
                                                           const int32_t* __restrict__ ids,
                                                           int64_t num_rows,
                                                           int experts,
                                                           int k,
                                                           bool normalize,
                                                           float scale,
                                                           float* weights) {
    begin_kernel();
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (row >= num_rows) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += scores[row * experts + ids[row * k + i]];
    for (int i = 0; i < k; ++i) {
        const float s = scores[row * experts + ids[row * k + i]];
        weights[row * k + i] = (normalize ? s / (sum + 1e-20f) : s) * scale;
    }
}

}  // namespace

void router_scores(Stream& stream,
                   const Tensor& u,
                   const WeightMatrix& gate,
                   float temperature,
                   ScoringFunc func,
                   Tensor scores) {
    DI_CHECK(scores.dense() && scores.dtype == DType::kF32);
    linear(stream, u, gate, scores);
    if (func == ScoringFunc::kSoftmax) {
        launch(stream,
               "router_softmax",
               softmax_kernel,
               dim3(static_cast<unsigned>(scores.dim(0))),
               dim3(256),
               0,
               scores.ptr<float>(),
               static_cast<int>(scores.dim(1)),
               temperature);
    } else {
        launch(stream,
               "router_scores",
               score_kernel,
               dim3(div_up(scores.numel(), 256)),
               dim3(256),
               0,
               scores.ptr<float>(),
               scores.numel(),
               temperature,
               func == ScoringFunc::kSigmoid);
    }
}

void router_topk(Stream& stream,
                 const Tensor& scores,
                 const Tensor& bias,
                 const Tensor& bias_vl,
                 const Tensor& image_rows,
                 Tensor ids) {
    DI_CHECK(scores.dense() && ids.dense());
    DI_CHECK_LE(scores.dim(1), kMaxExperts);
    DI_CHECK_LE(ids.dim(1), scores.dim(1));
    launch(stream,
           "router_topk",
           topk_kernel,
           dim3(div_up(scores.dim(0), kThreads / 32)),
           dim3(kThreads),
           0,
           scores.ptr<float>(),
           bias.ptr<float>(),
           bias_vl.ptr<float>(),
           image_rows ? image_rows.ptr<uint8_t>() : nullptr,
           scores.dim(0),
           static_cast<int>(scores.dim(1)),
           static_cast<int>(ids.dim(1)),
           ids.ptr<int32_t>());
}

void router_weights(Stream& stream,
                    const Tensor& scores,
                    const Tensor& ids,
                    bool normalize,
                    float scale,
                    Tensor weights) {
    DI_CHECK(scores.dense() && ids.dense() && weights.dense());
    launch(stream,
           "router_weights",
           weights_kernel,
           dim3(div_up(scores.dim(0), kThreads)),
           dim3(kThreads),
           0,
           scores.ptr<float>(),
           ids.ptr<int32_t>(),
           scores.dim(0),
           static_cast<int>(scores.dim(1)),
           static_cast<int>(ids.dim(1)),
           normalize,
           scale,
           weights.ptr<float>());
}

}  // namespace deepinfer::cuda
