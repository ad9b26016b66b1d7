// Token choice on the device: one block a row, two passes. The arithmetic is sampling_math.h's, so
// a row's token is the CPU's. Compiled with -fmad=false, as that file wants it.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "ops/sampling/sample_rows.h"
#include "ops/sampling/sampling_math.h"

namespace deepinfer::cuda {
namespace {

namespace sm = sampling_math;

constexpr int kThreads = 1024;

/// A candidate: larger score first, then the smaller id.
struct Best {
    double score;
    int id;
};
__device__ __forceinline__ bool beats(const Best& a, const Best& b) {
    return a.id >= 0 && (b.id < 0 || a.score > b.score || (a.score == b.score && a.id < b.id));
}
__device__ Best block_best(Best v, Best* shared) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        const Best o{__shfl_xor_sync(0xFFFFFFFFu, v.score, d),
                     __shfl_xor_sync(0xFFFFFFFFu, v.id, d)};
        if (beats(o, v)) v = o;
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int w = 1; w < kThreads / 32; ++w) {
        if (beats(shared[w], v)) v = shared[w];
    }
    __syncthreads();
    return v;
}

/// At least the score of a token with noise word x (the sampler's score_bound): tokens below what
/// is to beat skip the logarithms.
__device__ __forceinline__ float score_bound(float logit, float max, float inv, uint32_t x) {
    const float s = (logit - max) * inv;
    const float log2_low =
        static_cast<float>(static_cast<int32_t>(__float_as_uint(static_cast<float>(x)))) * 0x1p-23f;
    const float noise = (159.0f - log2_low) * 0.69314724f;
    return s + noise + (1e-3f - s * 1e-6f);
}

__global__ void __launch_bounds__(kThreads) sample_rows_kernel(const float* __restrict__ logits,
                                                               int64_t stride,
                                                               int vocab,
                                                               const SampleRequest* requests,
                                                               SampleChoice* choices) {
    begin_kernel();
    __shared__ Best shared[kThreads / 32];
    __shared__ int nans;
    const SampleRequest r = requests[blockIdx.x];
    const float* row = logits + r.row * stride;
    if (threadIdx.x == 0) nans = 0;
    __syncthreads();
    Best top{-INFINITY, -1};
    int mine = 0;
    for (int v = static_cast<int>(threadIdx.x); v < vocab; v += kThreads) {
        const float l = row[v];
        if (l != l) ++mine;
        if (l > -INFINITY && (top.id < 0 || static_cast<double>(l) > top.score)) top = {l, v};
    }
    if (mine > 0) atomicAdd(&nans, mine);
    top = block_best(top, shared);
    Best best = top;
    if (top.id >= 0 && r.greedy == 0 && !isinf(top.score)) {
        const NoiseKey key{
            r.seed, r.position, static_cast<uint32_t>(NoiseStream::kTarget), r.sub_sequence};
        const double max = top.score;
        const float max32 = static_cast<float>(max), inv32 = static_cast<float>(r.inv_temperature);
        // The likeliest token's own score is what every other has to beat.
        best.score = sm::gumbel_score(
            max32, max, r.inv_temperature, sm::gumbel_noise(key, static_cast<uint32_t>(top.id)));
        for (int first = static_cast<int>(threadIdx.x) * 4; first < vocab; first += kThreads * 4) {
            const float s = static_cast<float>(best.score);
            const float need = s - 1e-3f - fabsf(s) * 1e-6f;
            const PhiloxWords words = philox4x32_10(
                {{key.position, key.stream, static_cast<uint32_t>(first) >> 2, key.sub_sequence}},
                static_cast<uint32_t>(key.seed),
                static_cast<uint32_t>(key.seed >> 32));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int v = first + i;
                if (v >= vocab) break;
                const float l = row[v];
                if (!(l > -INFINITY) || !(score_bound(l, max32, inv32, words.w[i]) >= need))
                    continue;
                const Best b{
                    sm::gumbel_score(
                        l, max, r.inv_temperature, sm::gumbel_noise(key, static_cast<uint32_t>(v))),
                    v};
                if (beats(b, best)) best = b;
            }
        }
        best = block_best(best, shared);
    }
    if (threadIdx.x == 0) choices[blockIdx.x] = {best.id, nans};
}

}  // namespace

void sample_rows(Stream& stream, const Tensor& logits, const Tensor& requests, Tensor choices) {
    DI_CHECK(logits.dtype == DType::kF32 && requests.dense() && choices.dense());
    DI_CHECK_EQ(requests.bytes(), requests.dim(0) * static_cast<int64_t>(sizeof(SampleRequest)));
    DI_CHECK_EQ(choices.bytes(), requests.dim(0) * static_cast<int64_t>(sizeof(SampleChoice)));
    launch(stream,
           "sample_rows",
           sample_rows_kernel,
           dim3(static_cast<unsigned>(requests.dim(0))),
           dim3(kThreads),
           0,
           logits.ptr<float>(),
           logits.stride[0],
           static_cast<int>(logits.dim(1)),
           requests.ptr<SampleRequest>(),
           choices.ptr<SampleChoice>());
}

}  // namespace deepinfer::cuda
