// Sparse attention for head_dim 512 on Hopper's wgmma. docs/kernels/cuda_sparse_attention.md has
// the sums.
//
// A block owns a row and up to 64 heads. Per 64 list entries: packed rows arrive by cp.async one
// block ahead, are widened to bf16 in shared memory (K and V are the same rows), scores = Q · K^T
// (each of four warpgroups 16 keys), softmax step in fp32 with the heads' maximum and sum, O += P ·
// V (each warpgroup 128 dims, O in registers). P enters the product as two bf16 parts (value and
// remainder), so probabilities keep 16 bits, as the contract's unrounded ones need.
//
// For many rows; sparse_attention_512_cuda.cu takes few. A head's sums are the same in both: scores
// walk the dims in steps of 16, the denominator adds 16 partial sums of four neighbours in one
// tree, values walk the entries in steps of 16, first part of P before the second
// (CacheGpu.AttentionRowIgnoresItsBatch compares the bits).
#include "backends/cuda/attention_512.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/sm90/wgmma.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = kAttention512Threads;
constexpr int kDim = kAttentionDim;
constexpr int kBlock = kAttentionBlock;
constexpr int kSubtile = 64 * 128;  ///< bytes of 64 rows × 64 values in the 128-byte swizzle
constexpr int kScorePitch = kBlock + 4;

template <int MT>
struct Layout {
    static constexpr int kHeads = 16 * MT;  ///< live ones; operands are 64 tall
    static constexpr int kQuery = 0;
    static constexpr int kKeys = kQuery + 8 * kSubtile;
    static constexpr int kScores =
        kKeys + 8 * kSubtile;  ///< fp32 scores, overlaid by both parts of the probabilities
    static constexpr int kRaw = kScores + 64 * kScorePitch * 4;
    static constexpr int kFactors = kRaw + 2 * kBlock * kWindowBytes;
    static constexpr int kPointers =
        kFactors + 64 * 4;  ///< packed rows of the next kTable list entries
    static constexpr int kTotal = kPointers + kTable * 8 + 1024;  ///< room to align
};
static_assert(2 * kSubtile <= 64 * kScorePitch * 4, "probabilities must fit over the scores");

/// Byte offset of value `col` of row `row` in the swizzled layout (64 columns a subtile).
__device__ __forceinline__ int swizzled(int row, int col) {
    return col / 64 * kSubtile + row * 128 + ((col % 64 / 8 ^ (row & 7)) << 4) + col % 8 * 2;
}

template <int MT>
__global__ void __launch_bounds__(kThreads, 1)
    attention_512_wide_kernel(const __grid_constant__ AttentionParams p) {
    begin_kernel();
    using L = Layout<MT>;
    extern __shared__ uint8_t unaligned[];
    uint8_t* shared = unaligned + ((1024u - (shared_address(unaligned) & 1023u)) & 1023u);
    auto* scores = reinterpret_cast<float*>(shared + L::kScores);
    uint8_t* prob_hi = shared + L::kScores;
    uint8_t* prob_lo = prob_hi + kSubtile;
    auto* factors = reinterpret_cast<float*>(shared + L::kFactors);
    auto** table = reinterpret_cast<const uint8_t**>(shared + L::kPointers);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int group = warp / 4;  // warpgroup: 16 keys of the scores, 128 dims of the output
    const int row0 =
        warp % 4 * 16 + lane / 4;  // first of this thread's two heads in an accumulator
    const int t = static_cast<int>(blockIdx.x), head0 = static_cast<int>(blockIdx.y) * L::kHeads;

    const KeyList list(p, t);
    const int n = list.size_of_block(p, t);
    look_up_rows(p, list, t, n, 0, table);
    __syncthreads();
    fetch_rows(list, n, 0, table, shared + L::kRaw);
    cp_async_commit();
    for (int i = static_cast<int>(threadIdx.x); i < 64 * (kDim / 8); i += kThreads) {
        const int h = i / (kDim / 8), c = i % (kDim / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < L::kHeads && head0 + h < p.heads) {
            v = *reinterpret_cast<const uint4*>(p.q + t * p.q_stride +
                                                static_cast<int64_t>(head0 + h) * kDim + c);
        }
        *reinterpret_cast<uint4*>(shared + L::kQuery + swizzled(h, c)) = v;
    }

    // Softmax state: kGroup lanes own a head; all of them hold the same top and sum.
    constexpr int kGroup = kThreads / L::kHeads < 16 ? kThreads / L::kHeads : 16,
                  kMine = kBlock / kGroup;
    const bool softens = static_cast<int>(threadIdx.x) < L::kHeads * kGroup;
    const int soft_head = softens ? static_cast<int>(threadIdx.x) / kGroup : 0;
    const int soft_first = static_cast<int>(threadIdx.x) % kGroup * kMine;
    const float scale = p.scale * 256.0f;
    float top = head0 + soft_head < p.heads ? p.sink[head0 + soft_head] : 0.0f;
    float sum = 1.0f;
    float out[2][32];
#pragma unroll
    for (int i = 0; i < 32; ++i) out[0][i] = out[1][i] = 0.0f;
    if (threadIdx.x < 64) factors[threadIdx.x] = 1.0f;  // heads that do not exist keep it

    const uint64_t query = swizzled_descriptor(shared_address(shared + L::kQuery));
    const uint64_t keys = swizzled_descriptor(shared_address(shared + L::kKeys));
    const uint64_t hi = swizzled_descriptor(shared_address(prob_hi)),
                   lo = swizzled_descriptor(shared_address(prob_lo));

    for (int first = 0, stage = 0; first < n; first += kBlock, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // raw rows are here; the last block's values have been used
        widen_rows(list,
                   n,
                   first,
                   shared + L::kRaw + stage * kBlock * kWindowBytes,
                   shared + L::kKeys,
                   swizzled);
        const int next = first + kBlock;
        if (next < n) {
            if (next % kTable == 0) {
                __syncthreads();  // everybody has fetched from the old table
                look_up_rows(p, list, t, n, next, table);
                __syncthreads();
            }
            fetch_rows(
                list, n, next, table, shared + L::kRaw + (stage ^ 1) * kBlock * kWindowBytes);
        }
        cp_async_commit();
        fence_proxy_async();
        __syncthreads();

        float s[8];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
            const uint64_t at = static_cast<uint64_t>((k / 4 * kSubtile + k % 4 * 32) >> 4);
            wgmma_m64n16_shared(s,
                                query + at,
                                keys + at + static_cast<uint64_t>(group * 16 * 128 >> 4),
                                k > 0 ? 1 : 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        hold_registers(s);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float* at = scores + row0 * kScorePitch + group * 16 + j * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(at) = make_float2(s[4 * j] * scale, s[4 * j + 1] * scale);
            *reinterpret_cast<float2*>(at + 8 * kScorePitch) =
                make_float2(s[4 * j + 2] * scale, s[4 * j + 3] * scale);
        }
        __syncthreads();

        float w[kMine];
        float new_top = top;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            w[i] = first + soft_first + i < n ? scores[soft_head * kScorePitch + soft_first + i]
                                              : -INFINITY;
            new_top = fmaxf(new_top, w[i]);
        }
        new_top = group_max<kGroup>(new_top);
        const float shrink = __expf(top - new_top);
        float quads[kMine / 4];
#pragma unroll
        for (int i = 0; i < kMine; i += 4) {
#pragma unroll
            for (int j = 0; j < 4; ++j) w[i + j] = __expf(w[i + j] - new_top);
            quads[i / 4] = ((w[i] + w[i + 1]) + w[i + 2]) + w[i + 3];
        }
#pragma unroll
        for (int d = 1; d < kMine / 4; d *= 2) {
#pragma unroll
            for (int i = 0; i < kMine / 4; i += 2 * d) quads[i] += quads[i + d];
        }
        float part = quads[0];
#pragma unroll
        for (int d = 1; d < kGroup; d *= 2) part += __shfl_xor_sync(0xFFFFFFFFu, part, d);
        sum = sum * shrink + part;
        top = new_top;
        if (softens && threadIdx.x % kGroup == 0) factors[soft_head] = shrink;
        __syncthreads();  // all scores are read: their memory becomes the probabilities
        if (softens) {
#pragma unroll
            for (int i = 0; i < kMine; i += 2) {
                const uint32_t big = cvt_bf16x2(w[i], w[i + 1]);
                const uint32_t rest =
                    cvt_bf16x2(w[i] - bf16_value(static_cast<uint16_t>(big)),
                               w[i + 1] - bf16_value(static_cast<uint16_t>(big >> 16)));
                const int at = swizzled(soft_head, soft_first + i);
                *reinterpret_cast<uint32_t*>(prob_hi + at) = big;
                *reinterpret_cast<uint32_t*>(prob_lo + at) = rest;
            }
        }
        const float f0 = factors[row0], f1 = factors[row0 + 8];
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                out[half][i] *= f0;
                out[half][i + 1] *= f0;
                out[half][i + 2] *= f1;
                out[half][i + 3] *= f1;
            }
        }
        fence_proxy_async();
        __syncthreads();

        hold_registers(out[0]);
        hold_registers(out[1]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kBlock / 16; ++k) {
            const uint64_t a = static_cast<uint64_t>(k * 32 >> 4),
                           b = static_cast<uint64_t>(k * 16 * 128 >> 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint64_t values =
                    keys + static_cast<uint64_t>((group * 2 + half) * kSubtile >> 4) + b;
                wgmma_m64n64_shared_transposed(out[half], hi + a, values, 1);
                wgmma_m64n64_shared_transposed(out[half], lo + a, values, 1);
            }
        }
        wgmma_commit();
        wgmma_wait<0>();
        hold_registers(out[0]);
        hold_registers(out[1]);
    }

    __syncthreads();
    if (softens && threadIdx.x % kGroup == 0) factors[soft_head] = sum;
    __syncthreads();
#pragma unroll
    for (int low = 0; low < 2; ++low) {
        const int h = row0 + low * 8;
        if (h >= L::kHeads || head0 + h >= p.heads) continue;
        const float total = factors[h] * 0x1p-8f;  // the keys' 2^-8
        uint16_t* dst = p.out + t * p.out_stride + static_cast<int64_t>(head0 + h) * kDim +
                        group * 128 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                *reinterpret_cast<uint32_t*>(dst + half * 64 + j * 8) = cvt_bf16x2(
                    out[half][4 * j + 2 * low] / total, out[half][4 * j + 2 * low + 1] / total);
            }
        }
    }
}

template <int MT>
void run(Stream& stream, const AttentionParams& p) {
    launch(stream,
           "sparse_attention_512_wide",
           attention_512_wide_kernel<MT>,
           dim3(static_cast<unsigned>(p.num_rows), div_up(p.heads, 16 * MT)),
           dim3(kThreads),
           Layout<MT>::kTotal,
           p);
}

}  // namespace

void sparse_attention_512_wide(Stream& stream, const AttentionParams& p) {
    if (p.heads <= 32) return run<2>(stream, p);
    run<4>(stream, p);
}

}  // namespace deepinfer::cuda
