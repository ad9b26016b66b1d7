// Attention of the vision tower on the device: one block is 64 rows of one picture and one head;
// its four warps own 16 rows each and walk the picture's keys in blocks of 64 with a running
// maximum (mma m16n8k16, fp32 sums).
//
// Probabilities stay unrounded as the contract asks: each is the sum of two bf16 values (16
// significant bits), and the product with V runs once for each part. Blocks of keys start at the
// picture's first row and a row's sums never meet another row's, so its bits depend on its picture
// alone. Heads wider than 128 take the plain kernel.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kRows = 64, kKeys = 64, kWarps = 4, kThreads = 32 * kWarps;

struct VitAttentionParams {
    const uint16_t* qkv;
    int64_t stride;
    const int32_t* cu_rows;
    int pictures, heads, dh;
    float scale;
    bool aligned;  ///< 16-byte loads of a head's values
    uint16_t* out;
    int64_t out_stride;
    bool out_pairs;  ///< 4-byte stores
};

template <int D>
struct VitTile {
    static constexpr int kPitch = 2 * D + 16;  ///< bytes of a row; ldmatrix without bank conflicts
    static constexpr int kBytes = kKeys * kPitch;
    static constexpr int kShared = 5 * kBytes;  ///< q, then two stages of k and v
};

/// 64 rows of q, k or v (`part`) of the picture that starts at `first`; rows from `n` on and
/// columns from dh on are zero.
template <int D>
__device__ __forceinline__ void fetch_tile(
    const VitAttentionParams& p, uint8_t* tile, int part, int head, int first, int row0, int n) {
    constexpr int kPieces = D / 8;
    const int64_t width = static_cast<int64_t>(p.heads) * p.dh;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * kPieces; i += kThreads) {
        const int row = i / kPieces, col = i % kPieces * 8;
        uint8_t* dst = tile + row * VitTile<D>::kPitch + col * 2;
        const bool live = row0 + row < n;
        const uint16_t* src = p.qkv + (live ? (first + row0 + row) * p.stride : 0) + part * width +
                              static_cast<int64_t>(head) * p.dh + col;
        if (p.aligned) {
            const bool whole = live && col < p.dh;
            cp_async_16(shared_address(dst), whole ? src : p.qkv, whole ? 16u : 0u);
        } else {
            for (int j = 0; j < 8; ++j)
                reinterpret_cast<uint16_t*>(dst)[j] = live && col + j < p.dh ? src[j] : uint16_t{0};
        }
    }
}

/// scores[8-key tile] = q · k of this warp's 16 rows.
template <int D>
__device__ __forceinline__ void score_block(float (&s)[kKeys / 8][4],
                                            const uint32_t (&q)[D / 16][4],
                                            const uint8_t* keys,
                                            int lane) {
    const uint32_t at = shared_address(keys + lane % 8 * VitTile<D>::kPitch + lane / 8 * 16);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (int c = 0; c < D / 32; ++c) {
            uint32_t b[4];
            ldmatrix_x4(b, at + n * 8 * VitTile<D>::kPitch + c * 64);
            mma_m16n8k16(s[n], q[2 * c], b[0], b[1]);
            mma_m16n8k16(s[n], q[2 * c + 1], b[2], b[3]);
        }
    }
}

/// Two probabilities as bf16 pairs: the rounded values, and what the rounding left.
__device__ __forceinline__ void split_pair(float a, float b, uint32_t& high, uint32_t& low) {
    high = cvt_bf16x2(a, b);
    low = cvt_bf16x2(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xFFFF0000u));
}

/// y += p · v
template <int D>
__device__ __forceinline__ void add_values(float (&y)[D / 8][4],
                                           const float (&s)[kKeys / 8][4],
                                           const uint8_t* values,
                                           int lane) {
    const int matrix = lane / 8;
    const uint32_t at =
        shared_address(values + (matrix % 2 * 8 + lane % 8) * VitTile<D>::kPitch + matrix / 2 * 16);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
        uint32_t high[4], low[4];
        split_pair(s[2 * k][0], s[2 * k][1], high[0], low[0]);
        split_pair(s[2 * k][2], s[2 * k][3], high[1], low[1]);
        split_pair(s[2 * k + 1][0], s[2 * k + 1][1], high[2], low[2]);
        split_pair(s[2 * k + 1][2], s[2 * k + 1][3], high[3], low[3]);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, at + k * 16 * VitTile<D>::kPitch + n * 32);
            mma_m16n8k16(y[2 * n], high, b[0], b[1]);
            mma_m16n8k16(y[2 * n], low, b[0], b[1]);
            mma_m16n8k16(y[2 * n + 1], high, b[2], b[3]);
            mma_m16n8k16(y[2 * n + 1], low, b[2], b[3]);
        }
    }
}

/// Scores to probabilities against the running maximum, in place; the older sums are scaled down.
template <int D>
__device__ __forceinline__ void soften(float (&s)[kKeys / 8][4],
                                       float (&top)[2],
                                       float (&sum)[2],
                                       float (&y)[D / 8][4],
                                       float scale,
                                       int live,
                                       int lane) {
    float best[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int key = n * 8 + lane % 4 * 2 + j % 2;
            s[n][j] = key < live ? s[n][j] * scale : -INFINITY;
            best[j / 2] = fmaxf(best[j / 2], s[n][j]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        best[r] = fmaxf(best[r], __shfl_xor_sync(0xFFFFFFFFu, best[r], 1));
        best[r] = fmaxf(best[r], __shfl_xor_sync(0xFFFFFFFFu, best[r], 2));
        const float shrink = top[r] == best[r] ? 1.0f : expf(top[r] - best[r]);
        top[r] = best[r];
        sum[r] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            y[n][2 * r] *= shrink;
            y[n][2 * r + 1] *= shrink;
        }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int key = n * 8 + lane % 4 * 2 + j % 2;
            s[n][j] = key < live ? expf(s[n][j] - top[j / 2]) : 0.0f;
            sum[j / 2] += s[n][j];
        }
    }
}

template <int D>
__device__ __forceinline__ void store_rows(const VitAttentionParams& p,
                                           const float (&y)[D / 8][4],
                                           const float (&sum)[2],
                                           int first,
                                           int row0,
                                           int n,
                                           int head,
                                           int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = row0 + lane / 4 + 8 * r;
        if (row >= n) continue;
        uint16_t* out = p.out + (first + row) * p.out_stride + static_cast<int64_t>(head) * p.dh;
#pragma unroll
        for (int t = 0; t < D / 8; ++t) {
            const int col = t * 8 + lane % 4 * 2;
            const uint16_t a = round_bf16_bits(y[t][2 * r] / sum[r]),
                           b = round_bf16_bits(y[t][2 * r + 1] / sum[r]);
            if (p.out_pairs) {
                if (col < p.dh) *reinterpret_cast<uint32_t*>(out + col) = a | uint32_t{b} << 16;
            } else {
                if (col < p.dh) out[col] = a;
                if (col + 1 < p.dh) out[col + 1] = b;
            }
        }
    }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    vit_attention_kernel(const __grid_constant__ VitAttentionParams p) {
    begin_kernel();
    using T = VitTile<D>;
    extern __shared__ __align__(16) uint8_t shared[];
    // The host does not know where pictures end: blocks count tiles of 64 rows from the first.
    int tile = static_cast<int>(blockIdx.x), first = 0, n = 0, picture = 0;
    for (; picture < p.pictures; ++picture) {
        first = p.cu_rows[picture];
        n = p.cu_rows[picture + 1] - first;
        const int tiles = (n + kRows - 1) / kRows;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (picture == p.pictures) return;
    const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) & 31,
              warp = static_cast<int>(threadIdx.x) / 32, row0 = tile * kRows;
    const auto stage_of = [&](int block) { return shared + T::kBytes * (1 + 2 * (block & 1)); };
    const auto fetch = [&](int block) {
        fetch_tile<D>(p, stage_of(block), 1, head, first, block * kKeys, n);
        fetch_tile<D>(p, stage_of(block) + T::kBytes, 2, head, first, block * kKeys, n);
    };
    fetch_tile<D>(p, shared, 0, head, first, row0, n);
    fetch(0);
    cp_async_commit();

    uint32_t q[D / 16][4];
    float y[D / 8][4] = {}, s[kKeys / 8][4];
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    const int blocks = (n + kKeys - 1) / kKeys;
    for (int block = 0; block < blocks; ++block) {
        cp_async_wait<0>();
        __syncthreads();  // the block has arrived, and everyone is done with the other stage
        if (block + 1 < blocks) fetch(block + 1);
        cp_async_commit();
        if (block == 0) {
            const uint32_t at =
                shared_address(shared + (warp * 16 + lane % 16) * T::kPitch + lane / 16 * 16);
#pragma unroll
            for (int c = 0; c < D / 16; ++c) ldmatrix_x4(q[c], at + c * 32);
        }
        const uint8_t* keys = stage_of(block);
        score_block<D>(s, q, keys, lane);
        soften<D>(s, top, sum, y, p.scale, n - block * kKeys, lane);
        add_values<D>(y, s, keys + T::kBytes, lane);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
    }
    store_rows<D>(p, y, sum, first, row0 + warp * 16, n, head, lane);
}

/// Any head width: one warp a row and head; scores are computed twice, so nothing is kept.
__global__ void __launch_bounds__(kThreads)
    vit_attention_plain_kernel(const __grid_constant__ VitAttentionParams p, int num_rows) {
    begin_kernel();
    const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
              head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) & 31;
    if (row >= num_rows) return;
    int picture = 0;
    while (p.cu_rows[picture + 1] <= row) ++picture;
    const int begin = p.cu_rows[picture], end = p.cu_rows[picture + 1];
    const int64_t width = static_cast<int64_t>(p.heads) * p.dh;
    const uint16_t* q = p.qkv + row * p.stride + static_cast<int64_t>(head) * p.dh;
    const auto score = [&](int key) {
        const uint16_t* k = p.qkv + key * p.stride + width + static_cast<int64_t>(head) * p.dh;
        float s = 0.0f;
        for (int i = lane; i < p.dh; i += 32) s = fmaf(bf16_value(q[i]), bf16_value(k[i]), s);
        return warp_sum(s) * p.scale;
    };
    float top = -INFINITY;
    for (int key = begin; key < end; ++key) top = fmaxf(top, score(key));
    for (int col0 = 0; col0 < p.dh; col0 += 32) {
        const int col = col0 + lane;
        float sum = 0.0f, y = 0.0f;
        for (int key = begin; key < end; ++key) {
            const float e = expf(score(key) - top);
            sum += e;
            if (col < p.dh)
                y = fmaf(e,
                         bf16_value(p.qkv[key * p.stride + 2 * width +
                                          static_cast<int64_t>(head) * p.dh + col]),
                         y);
        }
        if (col < p.dh)
            p.out[row * p.out_stride + static_cast<int64_t>(head) * p.dh + col] =
                round_bf16_bits(y / sum);
    }
}

}  // namespace

void vit_attention(
    Stream& stream, const Tensor& qkv, const Tensor& cu_rows, double scale, Tensor out) {
    const int64_t num_rows = qkv.dim(0), heads = qkv.dim(2), dh = qkv.dim(3);
    DI_CHECK(qkv.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(cu_rows.dtype == DType::kI32 && qkv.dim(1) == 3);
    DI_CHECK(qkv.stride[3] == 1 && qkv.stride[2] == dh && qkv.stride[1] == heads * dh);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_EQ(out.dim(1), heads * dh);
    if (num_rows == 0) return;
    VitAttentionParams p{};
    p.qkv = qkv.ptr<uint16_t>();
    p.stride = qkv.stride[0];
    p.cu_rows = cu_rows.ptr<int32_t>();
    p.pictures = static_cast<int>(cu_rows.dim(0)) - 1;
    p.heads = static_cast<int>(heads);
    p.dh = static_cast<int>(dh);
    p.scale = static_cast<float>(scale);
    p.aligned = reinterpret_cast<uintptr_t>(qkv.data) % 16 == 0 && p.stride % 8 == 0 && dh % 8 == 0;
    p.out = out.ptr<uint16_t>();
    p.out_stride = out.stride[0];
    p.out_pairs =
        reinterpret_cast<uintptr_t>(out.data) % 4 == 0 && p.out_stride % 2 == 0 && dh % 2 == 0;
    // A picture wastes less than one tile.
    const dim3 grid(static_cast<unsigned>(num_rows / kRows + p.pictures),
                    static_cast<unsigned>(heads));
    const auto run = [&](auto kernel, size_t shared) {
        launch(stream, "vit_attention", kernel, grid, dim3(kThreads), shared, p);
    };
    if (dh <= 32) return run(vit_attention_kernel<32>, VitTile<32>::kShared);
    if (dh <= 64) return run(vit_attention_kernel<64>, VitTile<64>::kShared);
    if (dh <= 128) return run(vit_attention_kernel<128>, VitTile<128>::kShared);
    launch(stream,
           "vit_attention_plain",
           vit_attention_plain_kernel,
           dim3(div_up(num_rows, kWarps), static_cast<unsigned>(heads)),
           dim3(kThreads),
           0,
           p,
           static_cast<int>(num_rows));
}

}  // namespace deepinfer::cuda
