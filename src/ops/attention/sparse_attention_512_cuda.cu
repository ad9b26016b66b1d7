// Sparse attention for head_dim 512 and few rows on the tensor cores (mma): a block owns a row and
// 16 heads.
//
// Per 64 list entries: packed rows arrive by cp.async one block ahead, are widened to bf16 in
// shared memory (K and V are the same rows), scores = Q · K^T, softmax step in fp32 with the heads'
// maximum and sum, O += P · V with O in registers. P enters the product as two bf16 parts (value
// and remainder), so probabilities keep 16 bits, as the contract's unrounded ones need.
// sparse_attention_512_sm90.cu takes many rows; a head's sums are the same in both.
#include "backends/cuda/attention_512.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = kAttention512Threads;
constexpr int kWarps = kAttention512Warps;
constexpr int kDim = kAttentionDim;
constexpr int kBlock = kAttentionBlock;
constexpr int kPitch =
    kDim + 8;  ///< bf16 row pitch: eight rows of a matrix fall into different banks
/// From here on blocks of 64 heads keep the chip busy; below, four blocks a row (each widens the
/// rows for itself).
constexpr int kWideRows = 100;
constexpr int kScorePitch = kBlock + 4;
constexpr int kProbPitch = kBlock + 8;

template <int MT>
struct Layout {
    static constexpr int kHeads = 16 * MT;
    static constexpr int kQuery = 0;
    static constexpr int kKeys = kQuery + kHeads * kPitch * 2;
    static constexpr int kRaw = kKeys + kBlock * kPitch * 2;
    static constexpr int kScores = kRaw + 2 * kBlock * kWindowBytes;
    static constexpr int kScoreBytes = kHeads * kScorePitch * 4,
                         kProbBytes = 2 * kHeads * kProbPitch * 2;
    static constexpr int kFactors = kScores + (kScoreBytes > kProbBytes ? kScoreBytes : kProbBytes);
    static constexpr int kPointers =
        kFactors + kHeads * 4;  ///< packed rows of the next kTable list entries
    static constexpr int kTotal = kPointers + kTable * 8;
};

/// Byte offset of value `col` of row `row`.
__device__ __forceinline__ int pitched(int row, int col) {
    return (row * kPitch + col) * 2;
}

template <int MT>
__global__ void __launch_bounds__(kThreads, 1)
    attention_512_kernel(const __grid_constant__ AttentionParams p) {
    begin_kernel();
    using L = Layout<MT>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto* query = reinterpret_cast<uint16_t*>(shared + L::kQuery);
    auto* keys = reinterpret_cast<uint16_t*>(shared + L::kKeys);
    auto* scores = reinterpret_cast<float*>(shared + L::kScores);
    auto* prob_hi = reinterpret_cast<uint16_t*>(shared + L::kScores);
    uint16_t* prob_lo = prob_hi + L::kHeads * kProbPitch;
    auto* factors = reinterpret_cast<float*>(shared + L::kFactors);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int t = static_cast<int>(blockIdx.x), head0 = static_cast<int>(blockIdx.y) * L::kHeads;
    constexpr int kColumns =
        kWarps / MT;  // warps side by side along keys (scores) or dims (values)
    constexpr int kScoreColumns =
        kColumns < 8 ? kColumns : 8;  // with one head tile half of the warps have no keys
    constexpr int kScoreTiles = kBlock / kScoreColumns / 8;  // n8 tiles of keys a warp
    constexpr int kValueTiles = kDim / kColumns / 8;         // n8 tiles of dims a warp
    const int mg = warp / kColumns, ng = warp % kColumns;

    const KeyList list(p, t);
    const int n = list.size_of_block(p, t);
    auto** table = reinterpret_cast<const uint8_t**>(shared + L::kPointers);
    look_up_rows(p, list, t, n, 0, table);
    __syncthreads();
    fetch_rows(list, n, 0, table, shared + L::kRaw);
    cp_async_commit();
    for (int i = static_cast<int>(threadIdx.x); i < L::kHeads * (kDim / 8); i += kThreads) {
        const int h = i / (kDim / 8), c = i % (kDim / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + h < p.heads)
            v = *reinterpret_cast<const uint4*>(p.q + t * p.q_stride +
                                                static_cast<int64_t>(head0 + h) * kDim + c);
        *reinterpret_cast<uint4*>(query + h * kPitch + c) = v;
    }

    // Softmax state: thread group of kGroup lanes owns a head; all its lanes hold the same top and
    // sum.
    constexpr int kGroup = kThreads / L::kHeads < 16 ? kThreads / L::kHeads : 16,
                  kMine = kBlock / kGroup;
    const bool softens = static_cast<int>(threadIdx.x) < L::kHeads * kGroup;
    const int soft_head = softens ? static_cast<int>(threadIdx.x) / kGroup : 0;
    const int soft_first = static_cast<int>(threadIdx.x) % kGroup * kMine;
    const float scale = p.scale * 256.0f;
    float top = head0 + soft_head < p.heads ? p.sink[head0 + soft_head] : 0.0f;
    float sum = 1.0f;
    float out[kValueTiles][4] = {};

    for (int first = 0, stage = 0; first < n; first += kBlock, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // raw rows are here; the last block's values have been used
        widen_rows(list,
                   n,
                   first,
                   shared + L::kRaw + stage * kBlock * kWindowBytes,
                   shared + L::kKeys,
                   pitched);
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
        __syncthreads();

        if (ng < kScoreColumns) {
            float s[kScoreTiles][4] = {};
#pragma unroll 4
            for (int k = 0; k < kDim; k += 32) {
                uint32_t a[2][4];
                ldmatrix_x4(
                    a[0],
                    shared_address(query + (mg * 16 + lane % 16) * kPitch + k + lane / 16 * 8));
                ldmatrix_x4(a[1],
                            shared_address(query + (mg * 16 + lane % 16) * kPitch + k + 16 +
                                           lane / 16 * 8));
#pragma unroll
                for (int i = 0; i < kScoreTiles; ++i) {
                    uint32_t b[4];
                    ldmatrix_x4(
                        b,
                        shared_address(keys + ((ng * kScoreTiles + i) * 8 + lane % 8) * kPitch + k +
                                       lane / 8 * 8));
                    mma_m16n8k16(s[i], a[0], b[0], b[1]);
                    mma_m16n8k16(s[i], a[1], b[2], b[3]);
                }
            }
#pragma unroll
            for (int i = 0; i < kScoreTiles; ++i) {
                float* at = scores + (mg * 16 + lane / 4) * kScorePitch +
                            (ng * kScoreTiles + i) * 8 + lane % 4 * 2;
                *reinterpret_cast<float2*>(at) = make_float2(s[i][0] * scale, s[i][1] * scale);
                *reinterpret_cast<float2*>(at + 8 * kScorePitch) =
                    make_float2(s[i][2] * scale, s[i][3] * scale);
            }
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
#pragma unroll
        for (int i = 0; i < kMine; i += 2) {
            if (!softens) break;
            const uint32_t hi = cvt_bf16x2(w[i], w[i + 1]);
            const uint32_t lo = cvt_bf16x2(w[i] - bf16_value(static_cast<uint16_t>(hi)),
                                           w[i + 1] - bf16_value(static_cast<uint16_t>(hi >> 16)));
            *reinterpret_cast<uint32_t*>(prob_hi + soft_head * kProbPitch + soft_first + i) = hi;
            *reinterpret_cast<uint32_t*>(prob_lo + soft_head * kProbPitch + soft_first + i) = lo;
        }
        __syncthreads();

        const float f0 = factors[mg * 16 + lane / 4], f1 = factors[mg * 16 + lane / 4 + 8];
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
            out[i][0] *= f0;
            out[i][1] *= f0;
            out[i][2] *= f1;
            out[i][3] *= f1;
        }
#pragma unroll
        for (int k = 0; k < kBlock; k += 16) {
            uint32_t hi[4], lo[4];
            ldmatrix_x4(
                hi,
                shared_address(prob_hi + (mg * 16 + lane % 16) * kProbPitch + k + lane / 16 * 8));
            ldmatrix_x4(
                lo,
                shared_address(prob_lo + (mg * 16 + lane % 16) * kProbPitch + k + lane / 16 * 8));
#pragma unroll
            for (int i = 0; i < kValueTiles; i += 2) {
                uint32_t b[4];
                ldmatrix_x4_trans(b,
                                  shared_address(keys + (k + lane % 16) * kPitch +
                                                 (ng * kValueTiles + i) * 8 + lane / 16 * 8));
                mma_m16n8k16(out[i], hi, b[0], b[1]);
                mma_m16n8k16(out[i], lo, b[0], b[1]);
                mma_m16n8k16(out[i + 1], hi, b[2], b[3]);
                mma_m16n8k16(out[i + 1], lo, b[2], b[3]);
            }
        }
    }

    __syncthreads();
    if (softens && threadIdx.x % kGroup == 0) factors[soft_head] = sum;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int h = mg * 16 + lane / 4 + half * 8;
        if (head0 + h >= p.heads) continue;
        const float total = factors[h] * 0x1p-8f;  // the keys' 2^-8
        uint16_t* dst = p.out + t * p.out_stride + static_cast<int64_t>(head0 + h) * kDim +
                        ng * kValueTiles * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
            *reinterpret_cast<uint32_t*>(dst + i * 8) =
                cvt_bf16x2(out[i][2 * half] / total, out[i][2 * half + 1] / total);
        }
    }
}

template <int MT>
void run(Stream& stream, const AttentionParams& p) {
    launch(stream,
           "sparse_attention_512",
           attention_512_kernel<MT>,
           dim3(static_cast<unsigned>(p.num_rows), div_up(p.heads, 16 * MT)),
           dim3(kThreads),
           Layout<MT>::kTotal,
           p);
}

bool aligned(const void* p, int64_t stride_bytes) {
    return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

}  // namespace

bool sparse_attention_512_takes(const AttentionParams& p) {
    return p.dh == kDim && aligned(p.q, p.q_stride * 2) && aligned(p.out, p.out_stride * 2) &&
           aligned(p.step_rows, p.step_stride) && aligned(p.ring, p.ring_row_stride) &&
           aligned(p.ring, p.ring_slot_stride) && aligned(p.pool, p.pool_stride);
}

void sparse_attention_512(Stream& stream, const AttentionParams& p) {
    if (p.num_rows >= kWideRows && p.heads > 16) return sparse_attention_512_wide(stream, p);
    run<1>(stream, p);
}

}  // namespace deepinfer::cuda
