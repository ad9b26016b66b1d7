// Engram on the device: hashes in int64, table rows widened to bf16, and the per-stream gate.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

/// Small integer tables come as i32 or i64.
struct Ints {
    const void* data;
    bool wide;
    __device__ int64_t operator[](int i) const {
        return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
    }
};
Ints ints(const Tensor& t) {
    DI_CHECK(t.dtype == DType::kI64 || t.dtype == DType::kI32);
    return {t.data, t.dtype == DType::kI64};
}

__global__ void __launch_bounds__(kThreads) hash_kernel(const int32_t* __restrict__ ngrams,
                                                        int max_ngram,
                                                        Ints multipliers,
                                                        Ints primes,
                                                        Ints offsets,
                                                        int cols,
                                                        int64_t total,
                                                        int32_t* ids) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int64_t row = i / cols;
    const int col = static_cast<int>(i % cols);
    const int order = col / (cols / (max_ngram - 1)) + 1;  // this column hashes T_0 .. T_order
    int64_t r = static_cast<int64_t>(ngrams[row * max_ngram]) * multipliers[0];
    for (int j = 1; j <= order; ++j)
        r ^= static_cast<int64_t>(ngrams[row * max_ngram + j]) * multipliers[j];
    ids[i] = static_cast<int32_t>(r % primes[col] + offsets[col]);
}

/// Four columns a thread; ed is a multiple of 32.
__global__ void __launch_bounds__(kThreads) lookup_kernel(const uint8_t* __restrict__ table,
                                                          const uint8_t* __restrict__ scale,
                                                          int ed,
                                                          const int32_t* __restrict__ ids,
                                                          int cols,
                                                          int64_t total,
                                                          uint16_t* out,
                                                          int64_t out_stride) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= total) return;
    const int quads = ed / 4;
    const int d = static_cast<int>(i % quads) * 4;
    const int64_t cell = i / quads;
    const int64_t id = ids[cell];
    const float s = ue8m0_value(scale[id * (ed / 32) + d / 32]);
    const uint8_t* src = table + id * ed + d;
    uint16_t* dst = out + cell / cols * out_stride + cell % cols * ed + d;
#pragma unroll
    for (int j = 0; j < 4; ++j) dst[j] = round_bf16_bits(e4m3_value(src[j]) * s);
}

/// One block a (row, stream).
__global__ void __launch_bounds__(kThreads) gate_kernel(uint16_t* x,
                                                        const uint16_t* __restrict__ kv,
                                                        int64_t kv_stride,
                                                        int hc,
                                                        int d,
                                                        const float* __restrict__ qw,
                                                        const float* __restrict__ kw,
                                                        const uint8_t* __restrict__ dead,
                                                        float eps) {
    begin_kernel();
    __shared__ float partial[kThreads / 32];
    const int s = static_cast<int>(blockIdx.x);
    const int64_t row = blockIdx.y;
    uint16_t* xs = x + (row * hc + s) * d;
    const uint16_t* key = kv + row * kv_stride + static_cast<int64_t>(s) * d;
    const uint16_t* value = kv + row * kv_stride + static_cast<int64_t>(hc) * d;
    float dot = 0.0f, xx = 0.0f, kk = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < d; i += kThreads) {
        const float a = bf16_value(xs[i]), k = bf16_value(key[i]);
        dot = fmaf(a * (qw[s * d + i] * kw[s * d + i]), k, dot);
        xx = fmaf(a, a, xx);
        kk = fmaf(k, k, kk);
    }
    dot = block_sum<kThreads>(dot, partial);
    xx = block_sum<kThreads>(xx, partial);
    kk = block_sum<kThreads>(kk, partial);
    const float n = static_cast<float>(d);
    const float scaled =
        dot * (1.0f / sqrtf(xx / n + eps)) * (1.0f / sqrtf(kk / n + eps)) * (1.0f / sqrtf(n));
    // The clamp keeps a NaN: fmaxf would hide it.
    const float mag = fabsf(scaled) < 1e-6f ? 1e-6f : fabsf(scaled);
    float gate = 1.0f / (1.0f + expf(-copysignf(sqrtf(mag), scaled)));
    if (dead != nullptr && dead[row] != 0) gate = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < d; i += kThreads) {
        xs[i] = round_bf16_bits(bf16_value(xs[i]) + gate * bf16_value(value[i]));
    }
}

}  // namespace

void engram_hash(Stream& stream,
                 const Tensor& ngrams,
                 const Tensor& multipliers,
                 const Tensor& primes,
                 const Tensor& offsets,
                 Tensor ids) {
    DI_CHECK(ngrams.dense() && ids.dense());
    const int max_ngram = static_cast<int>(ngrams.dim(1)), cols = static_cast<int>(ids.dim(1));
    DI_CHECK(max_ngram > 1 && cols % (max_ngram - 1) == 0);
    launch(stream,
           "engram_hash",
           hash_kernel,
           dim3(div_up(ids.numel(), kThreads)),
           dim3(kThreads),
           0,
           ngrams.ptr<int32_t>(),
           max_ngram,
           ints(multipliers),
           ints(primes),
           ints(offsets),
           cols,
           ids.numel(),
           ids.ptr<int32_t>());
}

void engram_lookup(Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out) {
    DI_CHECK(table.dtype == DType::kFP8E4M3 && table.k % 32 == 0 && ids.dense());
    const int64_t total = ids.numel() * (table.k / 4);
    launch(stream,
           "engram_lookup",
           lookup_kernel,
           dim3(div_up(total, kThreads)),
           dim3(kThreads),
           0,
           static_cast<const uint8_t*>(table.weight),
           table.scale,
           static_cast<int>(table.k),
           ids.ptr<int32_t>(),
           static_cast<int>(ids.dim(1)),
           total,
           out.ptr<uint16_t>(),
           out.stride[0]);
}

void engram_gate(Stream& stream,
                 Tensor x,
                 const Tensor& kv,
                 const Tensor& q_weight,
                 const Tensor& k_weight,
                 const Tensor& dead,
                 float eps) {
    DI_CHECK(x.dtype == DType::kBF16 && x.dense());
    launch(stream,
           "engram_gate",
           gate_kernel,
           dim3(static_cast<unsigned>(x.dim(1)), static_cast<unsigned>(x.dim(0))),
           dim3(kThreads),
           0,
           x.ptr<uint16_t>(),
           kv.ptr<uint16_t>(),
           kv.stride[0],
           static_cast<int>(x.dim(1)),
           static_cast<int>(x.dim(2)),
           q_weight.ptr<float>(),
           k_weight.ptr<float>(),
           dead ? dead.ptr<uint8_t>() : nullptr,
           eps);
}

}  // namespace deepinfer::cuda
