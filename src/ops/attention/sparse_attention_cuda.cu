// Sparse attention on the device, any head size: one block a (row, head). The plain kernel;
// head_dim 512 with aligned rows goes to sparse_attention_512_cuda.cu.
//
// Blocks of 64 list entries in list order with a running maximum, as the contract says. A warp
// computes the scores of 16 entries, then every thread owns some of the output's dims.
#include "backends/cuda/attention.cuh"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "tensor/quant_block.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxDims = 1024;

__device__ float key_value(const uint8_t* row, bool window, int dh, int i) {
    if (window) return e4m3_value(row[i]) * ue8m0_value(row[dh + i / 32]);
    const uint32_t code = row[i / 2] >> (4 * (i & 1)) & 15u;
    return e2m1_value(code) * e4m3_value(row[dh / 2 + i / 16]);
}

__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionParams p) {
    begin_kernel();
    __shared__ float query[kMaxDims];
    __shared__ float scores[kAttentionBlock];
    __shared__ const uint8_t* rows[kAttentionBlock];
    const int head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) & 31;
    const int t = static_cast<int>(blockIdx.y);
    const KeyList list(p, t);
    const int n = list.size_of_block(p, t);
    const uint16_t* q = p.q + t * p.q_stride + static_cast<int64_t>(head) * p.dh;
    for (int i = static_cast<int>(threadIdx.x); i < p.dh; i += kThreads)
        query[i] = bf16_value(q[i]);
    float acc[kMaxDims / kThreads] = {};
    float top = p.sink[head], sum = 1.0f;
    for (int first = 0; first < n; first += kAttentionBlock) {
        const int count = min(kAttentionBlock, n - first);
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < count)
            rows[threadIdx.x] = list.row(p, t, first + static_cast<int>(threadIdx.x));
        __syncthreads();
        for (int j = static_cast<int>(threadIdx.x) / 32; j < count; j += kThreads / 32) {
            float dot = 0.0f;
            for (int i = lane; i < p.dh; i += 32)
                dot = fmaf(query[i], key_value(rows[j], first + j < list.window, p.dh, i), dot);
            dot = warp_sum(dot);
            if (lane == 0) scores[j] = dot * p.scale;
        }
        __syncthreads();
        float new_top = top;
        for (int j = 0; j < count; ++j) new_top = fmaxf(new_top, scores[j]);
        const float shrink = expf(top - new_top);
        sum *= shrink;
#pragma unroll
        for (int d = 0; d < kMaxDims / kThreads; ++d) acc[d] *= shrink;
        for (int j = 0; j < count; ++j) {
            const float w = expf(scores[j] - new_top);
            sum += w;
#pragma unroll
            for (int d = 0; d < kMaxDims / kThreads; ++d) {
                const int i = d * kThreads + static_cast<int>(threadIdx.x);
                if (i < p.dh)
                    acc[d] = fmaf(w, key_value(rows[j], first + j < list.window, p.dh, i), acc[d]);
            }
        }
        top = new_top;
    }
#pragma unroll
    for (int d = 0; d < kMaxDims / kThreads; ++d) {
        const int i = d * kThreads + static_cast<int>(threadIdx.x);
        if (i < p.dh)
            p.out[t * p.out_stride + static_cast<int64_t>(head) * p.dh + i] =
                round_bf16_bits(acc[d] / sum);
    }
}

AttentionParams attention_params(const Tensor& q,
                                 const BatchView& batch,
                                 const AttentionCache& cache,
                                 const Tensor& lists,
                                 const Tensor& sink,
                                 double scale,
                                 const Tensor& out) {
    const int64_t dh = q.dim(2);
    DI_CHECK(q.dtype == DType::kBF16 && out.dtype == DType::kBF16 && sink.dtype == DType::kF32);
    DI_CHECK(q.stride[1] == dh && out.stride[1] == dh && dh % 32 == 0);
    DI_CHECK_LE(dh, kMaxDims);
    DI_CHECK_EQ(cache.step_rows.dim(1), window_row_bytes(dh));
    AttentionParams p{};
    p.q = q.ptr<uint16_t>();
    p.q_stride = q.stride[0];
    p.batch = batch_pointers(batch);
    p.step_rows = cache.step_rows.ptr<uint8_t>();
    p.step_stride = cache.step_rows.stride[0];
    p.ring = cache.window_ring.ptr<uint8_t>();
    p.ring_slot_stride = cache.window_ring ? cache.window_ring.stride[0] : 0;
    p.ring_row_stride = cache.window_ring ? cache.window_ring.stride[1] : 0;
    p.ring_len = cache.window_ring ? static_cast<int>(cache.window_ring.dim(1)) : 1;
    p.pool = cache.kv_pool.ptr<uint8_t>();
    p.pool_stride = cache.kv_pool ? cache.kv_pool.stride[0] : 0;
    p.entries_per_block = cache.entries_per_block;
    p.window = cache.window;
    p.lists = lists ? lists.ptr<int32_t>() : nullptr;
    p.list_stride = lists ? lists.stride[0] : 0;
    p.list_len = lists ? static_cast<int>(lists.dim(1)) : 0;
    p.sink = sink.ptr<float>();
    p.scale = static_cast<float>(scale);
    p.out = out.ptr<uint16_t>();
    p.out_stride = out.stride[0];
    p.num_rows = static_cast<int>(q.dim(0));
    p.heads = static_cast<int>(q.dim(1));
    p.dh = static_cast<int>(dh);
    return p;
}

void run(Stream& stream, const char* name, const AttentionParams& p) {
    if (p.num_rows == 0) return;
    if (sparse_attention_512_takes(p)) return sparse_attention_512(stream, p);
    launch(stream,
           name,
           attention_kernel,
           dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.num_rows)),
           dim3(kThreads),
           0,
           p);
}

}  // namespace

void sparse_attention(Stream& stream,
                      const Tensor& q,
                      const BatchView& batch,
                      const AttentionCache& cache,
                      const Tensor& lists,
                      const Tensor& sink,
                      double scale,
                      Tensor out) {
    run(stream, "sparse_attention", attention_params(q, batch, cache, lists, sink, scale, out));
}

void draft_attention(Stream& stream,
                     const Tensor& q,
                     const BatchView& batch,
                     const AttentionCache& cache,
                     const Tensor& sink,
                     double scale,
                     Tensor out) {
    AttentionParams p = attention_params(q, batch, cache, Tensor(), sink, scale, out);
    p.draft = true;
    run(stream, "draft_attention", p);
}

}  // namespace deepinfer::cuda
