// Sparse attention for head_dim 512 on the tensor cores. docs/kernels/cuda_sparse_attention.md has the sums.
//
// A block owns a row and 16 · MT heads. Per 64 list entries: packed rows arrive by cp.async one block ahead,
// are widened to bf16 in shared memory (K and V are the same rows), scores = Q · K^T, softmax step in fp32 with
// the heads' maximum and sum, O += P · V with O in registers. P enters the product as two bf16 parts (value and
// remainder), so probabilities keep 16 bits, as the contract's unrounded ones need.
//
// MT (how many heads a block takes) changes with the number of rows; each head's sums do not: scores walk the
// dims in steps of 16, the denominator adds 16 partial sums of four neighbours in one tree, values walk the
// entries in steps of 16.
#include "backends/cuda/attention.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/widen.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDim = 512;
constexpr int kBlock = kAttentionBlock;
constexpr int kPitch = kDim + 8;   ///< bf16 row pitch: eight rows of a matrix fall into different banks
constexpr int kScorePitch = kBlock + 4;
constexpr int kProbPitch = kBlock + 8;
constexpr int kWindowBytes = 528, kEntryBytes = 288;

template <int MT>
struct Layout {
    static constexpr int kHeads = 16 * MT;
    static constexpr int kQuery = 0;
    static constexpr int kKeys = kQuery + kHeads * kPitch * 2;
    static constexpr int kRaw = kKeys + kBlock * kPitch * 2;
    static constexpr int kScores = kRaw + 2 * kBlock * kWindowBytes;
    static constexpr int kScoreBytes = kHeads * kScorePitch * 4, kProbBytes = 2 * kHeads * kProbPitch * 2;
    static constexpr int kFactors = kScores + (kScoreBytes > kProbBytes ? kScoreBytes : kProbBytes);
    static constexpr int kTotal = kFactors + kHeads * 4;
};

/// Copies the packed rows of block `first` to `raw`; rows past the end are not touched.
__device__ void fetch_rows(const AttentionParams& p, const KeyList& list, int t, int n, int first, uint8_t* raw) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    constexpr int kRows = kBlock / kWarps;
    const uint8_t* mine = nullptr;
    if (lane < kRows && first + warp * kRows + lane < n) mine = list.row(p, t, first + warp * kRows + lane);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const int j = warp * kRows + r;
        const auto* src = reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(mine), r));
        if (src == nullptr) continue;
        const uint32_t dst = shared_address(raw + j * kWindowBytes);
        const int bytes = first + j < list.window ? kWindowBytes : kEntryBytes;
        if (lane * 16 < bytes) cp_async_16(dst + lane * 16, src + lane * 16);
        if (bytes > 512 && lane == 0) cp_async_16(dst + 512, src + 512);
    }
}

/// raw → bf16 keys; rows past the end become zeros (a stale NaN would survive a zero probability).
__device__ void widen_rows(const KeyList& list, int n, int first, const uint8_t* raw, uint16_t* keys) {
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    for (int j = warp; j < kBlock; j += kWarps) {
        const uint8_t* src = raw + j * kWindowBytes;
        uint32_t pairs[8];  // 16 dims from lane · 16
        if (first + j >= n) {
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[i] = 0;
        } else if (first + j < list.window) {
            const uint4 codes = *reinterpret_cast<const uint4*>(src + lane * 16);
            const uint32_t e = src[kDim + lane / 2];
            const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
            const uint32_t factor = e4m3_factor(min(e, kMaxE4m3Scale));
            uint32_t nan = e == 255 ? 0xFFFFFFFFu : 0u;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t odd = mul_bf16x2(e4m3_odd(w[i]), factor), even = mul_bf16x2(e4m3_even(w[i]), factor);
                pairs[2 * i] = __byte_perm(even, odd, 0x5410);      // dims 4i, 4i + 1
                pairs[2 * i + 1] = __byte_perm(even, odd, 0x7632);  // dims 4i + 2, 4i + 3
                nan |= __vcmpeq4(w[i] & 0x7F7F7F7Fu, 0x7F7F7F7Fu);
            }
            if (e > kMaxE4m3Scale || nan != 0) {
                // Huge rows need a second power of two; a NaN anywhere makes the row's scores NaN, as it must.
                const uint32_t rest = nan != 0 ? 0x7FC07FC0u : bf16x2_power(127 + e - kMaxE4m3Scale);
#pragma unroll
                for (int i = 0; i < 8; ++i) pairs[i] = nan != 0 ? rest : mul_bf16x2(pairs[i], rest);
            }
        } else {
            const uint2 codes = *reinterpret_cast<const uint2*>(src + lane * 8);
            // The E4M3 scale as bf16; 2^126 first, because their product may overflow.
            const uint32_t s = round_bf16_bits(e4m3_value(src[kDim / 2 + lane]));
            const uint32_t scale = s | s << 16, up = bf16x2_power(253);
            const uint32_t w[2] = {codes.x, codes.y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t n0 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<0>(w[i]), up), scale);
                const uint32_t n1 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<1>(w[i]), up), scale);
                const uint32_t n2 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<2>(w[i]), up), scale);
                const uint32_t n3 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<3>(w[i]), up), scale);
                // Half h of nk is dim 8i + 4h + k.
                pairs[4 * i] = __byte_perm(n0, n1, 0x5410);
                pairs[4 * i + 1] = __byte_perm(n2, n3, 0x5410);
                pairs[4 * i + 2] = __byte_perm(n0, n1, 0x7632);
                pairs[4 * i + 3] = __byte_perm(n2, n3, 0x7632);
            }
        }
        auto* dst = reinterpret_cast<uint4*>(keys + j * kPitch + lane * 16);
        dst[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        dst[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    }
}

template <int MT>
__global__ void __launch_bounds__(kThreads, 1) attention_512_kernel(const __grid_constant__ AttentionParams p) {
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
    constexpr int kColumns = kWarps / MT;             // warps side by side along keys (scores) or dims (values)
    constexpr int kScoreTiles = kBlock / kColumns / 8;  // n8 tiles of keys a warp
    constexpr int kValueTiles = kDim / kColumns / 8;    // n8 tiles of dims a warp
    const int mg = warp / kColumns, ng = warp % kColumns;

    const KeyList list(p, t);
    const int n = list.size_of_block(p, t);
    fetch_rows(p, list, t, n, 0, shared + L::kRaw);
    cp_async_commit();
    for (int i = static_cast<int>(threadIdx.x); i < L::kHeads * (kDim / 8); i += kThreads) {
        const int h = i / (kDim / 8), c = i % (kDim / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + h < p.heads) v = *reinterpret_cast<const uint4*>(p.q + t * p.q_stride + static_cast<int64_t>(head0 + h) * kDim + c);
        *reinterpret_cast<uint4*>(query + h * kPitch + c) = v;
    }

    // Softmax state: thread group of kGroup lanes owns a head; all its lanes hold the same top and sum.
    constexpr int kGroup = 16 / MT, kMine = kBlock / kGroup;
    const int soft_head = static_cast<int>(threadIdx.x) / kGroup, soft_first = static_cast<int>(threadIdx.x) % kGroup * kMine;
    float top = head0 + soft_head < p.heads ? p.sink[head0 + soft_head] : 0.0f;
    float sum = 1.0f;
    float out[kValueTiles][4] = {};

    for (int first = 0, stage = 0; first < n; first += kBlock, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // raw rows are here; the last block's values have been used
        widen_rows(list, n, first, shared + L::kRaw + stage * kBlock * kWindowBytes, keys);
        if (first + kBlock < n) fetch_rows(p, list, t, n, first + kBlock, shared + L::kRaw + (stage ^ 1) * kBlock * kWindowBytes);
        cp_async_commit();
        __syncthreads();

        float s[kScoreTiles][4] = {};
#pragma unroll 4
        for (int k = 0; k < kDim; k += 32) {
            uint32_t a[2][4];
            ldmatrix_x4(a[0], shared_address(query + (mg * 16 + lane % 16) * kPitch + k + lane / 16 * 8));
            ldmatrix_x4(a[1], shared_address(query + (mg * 16 + lane % 16) * kPitch + k + 16 + lane / 16 * 8));
#pragma unroll
            for (int i = 0; i < kScoreTiles; ++i) {
                uint32_t b[4];
                ldmatrix_x4(b, shared_address(keys + ((ng * kScoreTiles + i) * 8 + lane % 8) * kPitch + k + lane / 8 * 8));
                mma_m16n8k16(s[i], a[0], b[0], b[1]);
                mma_m16n8k16(s[i], a[1], b[2], b[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < kScoreTiles; ++i) {
            float* at = scores + (mg * 16 + lane / 4) * kScorePitch + (ng * kScoreTiles + i) * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(at) = make_float2(s[i][0] * p.scale, s[i][1] * p.scale);
            *reinterpret_cast<float2*>(at + 8 * kScorePitch) = make_float2(s[i][2] * p.scale, s[i][3] * p.scale);
        }
        __syncthreads();

        float w[kMine];
        float new_top = top;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            w[i] = first + soft_first + i < n ? scores[soft_head * kScorePitch + soft_first + i] : -INFINITY;
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
        if (threadIdx.x % kGroup == 0) factors[soft_head] = shrink;
        __syncthreads();  // all scores are read: their memory becomes the probabilities
#pragma unroll
        for (int i = 0; i < kMine; i += 2) {
            const uint32_t hi = cvt_bf16x2(w[i], w[i + 1]);
            const uint32_t lo = cvt_bf16x2(w[i] - bf16_value(static_cast<uint16_t>(hi)), w[i + 1] - bf16_value(static_cast<uint16_t>(hi >> 16)));
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
            ldmatrix_x4(hi, shared_address(prob_hi + (mg * 16 + lane % 16) * kProbPitch + k + lane / 16 * 8));
            ldmatrix_x4(lo, shared_address(prob_lo + (mg * 16 + lane % 16) * kProbPitch + k + lane / 16 * 8));
#pragma unroll
            for (int i = 0; i < kValueTiles; i += 2) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, shared_address(keys + (k + lane % 16) * kPitch + (ng * kValueTiles + i) * 8 + lane / 16 * 8));
                mma_m16n8k16(out[i], hi, b[0], b[1]);
                mma_m16n8k16(out[i], lo, b[0], b[1]);
                mma_m16n8k16(out[i + 1], hi, b[2], b[3]);
                mma_m16n8k16(out[i + 1], lo, b[2], b[3]);
            }
        }
    }

    __syncthreads();
    if (threadIdx.x % kGroup == 0) factors[soft_head] = sum;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int h = mg * 16 + lane / 4 + half * 8;
        if (head0 + h >= p.heads) continue;
        const float total = factors[h];
        uint16_t* dst = p.out + t * p.out_stride + static_cast<int64_t>(head0 + h) * kDim + ng * kValueTiles * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
            *reinterpret_cast<uint32_t*>(dst + i * 8) = cvt_bf16x2(out[i][2 * half] / total, out[i][2 * half + 1] / total);
        }
    }
}

template <int MT>
void run(Stream& stream, const AttentionParams& p) {
    launch(stream, "sparse_attention_512", attention_512_kernel<MT>,
           dim3(static_cast<unsigned>(p.num_rows), div_up(p.heads, 16 * MT)), dim3(kThreads), Layout<MT>::kTotal, p);
}

bool aligned(const void* p, int64_t stride_bytes) { return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0; }

}  // namespace

bool sparse_attention_512_takes(const AttentionParams& p) {
    return p.dh == kDim && aligned(p.q, p.q_stride * 2) && aligned(p.out, p.out_stride * 2) && aligned(p.step_rows, p.step_stride) &&
           aligned(p.ring, p.ring_row_stride) && aligned(p.ring, p.ring_slot_stride) && aligned(p.pool, p.pool_stride);
}

void sparse_attention_512(Stream& stream, const AttentionParams& p) {
    // Few rows: more blocks with fewer heads each (they widen the same rows again, but side by side).
    if (p.heads <= 16 || p.num_rows < 66) return run<1>(stream, p);
    if (p.heads <= 32) return run<2>(stream, p);
    run<4>(stream, p);
}

}  // namespace deepinfer::cuda
