// Sparse attention for head_dim 512 on plain tensor cores (mma), for few heads and for chips
// without wgmma: a block owns a row and 16 heads. And the merge of blocks that were computed apart.
//
// Per 64 list entries: packed rows arrive by cp.async one block ahead, are widened to bf16 in
// shared memory (K and V are the same rows), scores = Q · K^T, weights in fp32, values = weights ·
// V, merged into O in registers. Weights enter the product as two bf16 parts (value and remainder),
// so they keep 16 bits, as the contract's unrounded ones need. The rule of the sums is in
// attention_512.cuh; sparse_attention_512_sm90.cu follows it too.
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
/// Up to here a row's blocks are spread over the chip.
constexpr int kSplitRows = 24;
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
        kFactors + kHeads * 8;  ///< packed rows of the next kTable list entries
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
    auto* factors = reinterpret_cast<float2*>(shared + L::kFactors);
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

    // Four lanes own a head; all of them hold the same top and sum.
    const bool softens = static_cast<int>(threadIdx.x) < L::kHeads * 4;
    const int soft_head = softens ? static_cast<int>(threadIdx.x) / 4 : 0,
              soft_lane = static_cast<int>(threadIdx.x) % 4;
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

        float w[16];
        if (softens) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int at = 8 * j + 2 * soft_lane;
                const float2 v =
                    *reinterpret_cast<const float2*>(scores + soft_head * kScorePitch + at);
                w[2 * j] = first + at < n ? v.x : -INFINITY;
                w[2 * j + 1] = first + at + 1 < n ? v.y : -INFINITY;
            }
            float m;
            const float l = block_weights(w, m);
            const BlockFactors f = merge_block(m, l, top, sum);
            if (soft_lane == 0) factors[soft_head] = make_float2(f.old, f.block);
        }
        __syncthreads();  // all scores are read: their memory becomes the weights
        if (softens) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                uint32_t hi, lo;
                split_weights(w[2 * j], w[2 * j + 1], hi, lo);
                const int at = soft_head * kProbPitch + 8 * j + 2 * soft_lane;
                *reinterpret_cast<uint32_t*>(prob_hi + at) = hi;
                *reinterpret_cast<uint32_t*>(prob_lo + at) = lo;
            }
        }
        __syncthreads();

        float values[kValueTiles][4] = {};
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
                mma_m16n8k16(values[i], hi, b[0], b[1]);
                mma_m16n8k16(values[i], lo, b[0], b[1]);
                mma_m16n8k16(values[i + 1], hi, b[2], b[3]);
                mma_m16n8k16(values[i + 1], lo, b[2], b[3]);
            }
        }
        const float2 f0 = factors[mg * 16 + lane / 4], f1 = factors[mg * 16 + lane / 4 + 8];
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                out[i][j] =
                    merge_value(out[i][j],
                                values[i][j],
                                j < 2 ? BlockFactors{f0.x, f0.y} : BlockFactors{f1.x, f1.y});
            }
        }
    }

    __syncthreads();
    if (softens && soft_lane == 0) factors[soft_head] = make_float2(output_factor(sum), 0.0f);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int h = mg * 16 + lane / 4 + half * 8;
        if (head0 + h >= p.heads) continue;
        const float factor = factors[h].x;
        uint16_t* dst = p.out + t * p.out_stride + static_cast<int64_t>(head0 + h) * kDim +
                        ng * kValueTiles * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kValueTiles; ++i) {
            *reinterpret_cast<uint32_t*>(dst + i * 8) =
                cvt_bf16x2(out[i][2 * half] * factor, out[i][2 * half + 1] * factor);
        }
    }
}

/// A head of a row: its blocks in list order.
__global__ void __launch_bounds__(kDim / 4)
    merge_kernel(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitBlocks s) {
    begin_kernel();
    const int t = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const KeyList list(p, t);
    const int blocks = (list.size_of_block(p, t) + kBlock - 1) / kBlock;
    const int64_t first = (static_cast<int64_t>(t) * s.blocks) * p.heads + head;
    const int dim = static_cast<int>(threadIdx.x) * 4;
    float top = p.sink[head], sum = 1.0f;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 5
    for (int b = 0; b < blocks; ++b) {
        const int64_t at = first + static_cast<int64_t>(b) * p.heads;
        const float2 ml = s.sums[at];
        const float4 v = *reinterpret_cast<const float4*>(s.values + at * kDim + dim);
        const BlockFactors f = merge_block(ml.x, ml.y, top, sum);
        out.x = merge_value(out.x, v.x, f);
        out.y = merge_value(out.y, v.y, f);
        out.z = merge_value(out.z, v.z, f);
        out.w = merge_value(out.w, v.w, f);
    }
    const float factor = output_factor(sum);
    uint2 r;
    r.x = cvt_bf16x2(out.x * factor, out.y * factor);
    r.y = cvt_bf16x2(out.z * factor, out.w * factor);
    *reinterpret_cast<uint2*>(p.out + t * p.out_stride + static_cast<int64_t>(head) * kDim + dim) =
        r;
}

void split_and_merge(Stream& stream, const AttentionParams& p) {
    // A draft's list holds the rows of its block too; every row of the call bounds them.
    const int64_t longest = p.window + p.list_len + (p.draft ? p.num_rows : 0);
    SplitBlocks s{};
    s.blocks = static_cast<int>((longest + kBlock - 1) / kBlock);
    const size_t heads = static_cast<size_t>(p.num_rows) * static_cast<size_t>(s.blocks) *
                         static_cast<size_t>(p.heads);
    auto* scratch = static_cast<uint8_t*>(
        cuda_stream(stream).scratch(heads * (kDim * sizeof(float) + sizeof(float2))));
    if (scratch == nullptr) return;
    s.values = reinterpret_cast<float*>(scratch);
    s.sums = reinterpret_cast<float2*>(scratch + heads * kDim * sizeof(float));
    sparse_attention_512_split(stream, p, s);
    launch(stream,
           "sparse_attention_merge",
           merge_kernel,
           dim3(static_cast<unsigned>(p.num_rows), static_cast<unsigned>(p.heads)),
           dim3(kDim / 4),
           0,
           p,
           s);
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
    if (p.heads > 16 && cuda_stream(stream).has_wgmma()) {
        if (p.num_rows <= kSplitRows) return split_and_merge(stream, p);
        return sparse_attention_512_wide(stream, p);
    }
    launch(stream,
           "sparse_attention_512",
           attention_512_kernel<1>,
           dim3(static_cast<unsigned>(p.num_rows), div_up(p.heads, 16)),
           dim3(kThreads),
           Layout<1>::kTotal,
           p);
}

}  // namespace deepinfer::cuda
