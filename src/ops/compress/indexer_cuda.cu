// Indexer scores on the device.
//
// A block dequantizes a tile of 128 keys to bf16 once, then scores it for up to kRowsPerBlock rows:
// keys are the A operand, the row's heads the B operand. The dot products are exact in fp32 (q4m ×
// q4m); each entry's head sum then runs in one thread in ascending h with two roundings a step, so
// the scores have the twin's bits.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/index_scores.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"
#include "backends/cuda/widen.cuh"
#include "tensor/quant_block.h"

namespace deepinfer::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

__device__ bool in_candidates(const int32_t* list, int n, int block) {
    int lo = 0, hi = n;  // first element that is −1 or >= block
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (list[mid] >= 0 && list[mid] < block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && list[lo] == block;
}

/// 16 bytes of packed values and their scale byte, on the way from memory.
struct PackedBlock {
    uint32_t words[4];
    uint32_t scale;
};

__device__ __forceinline__ PackedBlock load_block(const uint8_t* codes,
                                                  const uint8_t* scale,
                                                  bool words) {
    PackedBlock b;
    b.scale = __ldg(scale);
    if (words) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            b.words[i] = __ldg(reinterpret_cast<const uint32_t*>(codes) + i);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            b.words[i] = __ldg(codes + 4 * i) | __ldg(codes + 4 * i + 1) << 8 |
                         __ldg(codes + 4 * i + 2) << 16 |
                         static_cast<uint32_t>(__ldg(codes + 4 * i + 3)) << 24;
        }
    }
    return b;
}

/// 32 packed values of one key, widened to bf16.
__device__ __forceinline__ void widen_block(const PackedBlock& b, uint16_t* dst) {
    // Two steps, because 2^126 times the scale may exceed bf16; both are exact.
    const uint32_t up = bf16x2_power(253), scale = b.scale == 255 ? 0x7FC07FC0u
                                                   : b.scale == 0 ? 0x00400040u
                                                                  : bf16x2_power(b.scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t w = b.words[i];
        const uint32_t n0 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<0>(w), up), scale),
                       n1 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<1>(w), up), scale);
        const uint32_t n2 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<2>(w), up), scale),
                       n3 = mul_bf16x2(mul_bf16x2(e2m1_nibbles<3>(w), up), scale);
        *reinterpret_cast<uint4*>(dst + 8 * i) = make_uint4(__byte_perm(n0, n1, 0x5410),
                                                            __byte_perm(n2, n3, 0x5410),
                                                            __byte_perm(n0, n1, 0x7632),
                                                            __byte_perm(n2, n3, 0x7632));
    }
}

__global__ void __launch_bounds__(kThreads) index_scores_kernel(ScoreParams p) {
    begin_kernel();
    extern __shared__ __align__(16) uint8_t shared[];
    const int pitch = p.di + 8;  // 16 bytes of padding: no bank conflicts in ldmatrix
    auto* keys = reinterpret_cast<uint16_t*>(shared);
    uint16_t* query = keys + kTile * pitch;
    auto* dots = reinterpret_cast<float*>(
        query + p.heads_padded * pitch);  // [warp][32 entries][heads_padded + 1]
    auto* weights = reinterpret_cast<uint16_t*>(dots + kWarps * 32 * (p.heads_padded + 1));
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
    const int64_t entry = first + threadIdx.x;
    int loaded_seq = -1;
    const int row_end = min(p.num_rows, (static_cast<int>(blockIdx.y) + 1) * p.rows_per_block);
    for (int row = static_cast<int>(blockIdx.y) * p.rows_per_block; row < row_end; ++row) {
        const int seq = p.batch.row_seq[row];
        const int64_t visible = (static_cast<int64_t>(p.batch.positions[row]) + 1) / p.ratio;
        bool wanted = entry < visible && entry < p.n;
        if (wanted && p.candidates != nullptr) {
            wanted = in_candidates(p.candidates + row * p.candidate_stride,
                                   p.num_candidates,
                                   static_cast<int>(entry / p.block_size));
        }
        float* out = p.scores + row * p.score_stride;
        if (__syncthreads_or(wanted) == 0) {
            if (entry < p.n) out[entry] = -INFINITY;
            continue;
        }
        if (seq != loaded_seq) {
            // The tile of the sequence's keys as far as this block's last row of it can see; the
            // rest is zero.
            int last = row;
            while (last + 1 < row_end && p.batch.row_seq[last + 1] == seq) ++last;
            const int64_t reach = (static_cast<int64_t>(p.batch.positions[last]) + 1) / p.ratio;
            const int blocks = p.di / 32;
            // Four blocks of 32 a thread at a time, so that their loads travel together.
            for (int i0 = static_cast<int>(threadIdx.x); i0 < kTile * blocks; i0 += 4 * kThreads) {
                PackedBlock packed[4];
#pragma unroll
                for (int u = 0; u < 4; ++u) {
                    const int i = i0 + u * kThreads, b = i % blocks;
                    const int64_t j = first + i / blocks;
                    packed[u] = PackedBlock{};
                    if (i < kTile * blocks && j < reach && j < p.n) {
                        const int64_t block =
                            __ldg(p.batch.block_table + seq * p.batch.block_stride +
                                  j / p.entries_per_block);
                        const uint8_t* src =
                            p.pool +
                            (block * p.entries_per_block + j % p.entries_per_block) * p.pool_stride;
                        packed[u] = load_block(src + b * 16, src + p.di / 2 + b, p.words);
                    }
                }
#pragma unroll
                for (int u = 0; u < 4; ++u) {
                    const int i = i0 + u * kThreads;
                    if (i < kTile * blocks)
                        widen_block(packed[u], keys + i / blocks * pitch + i % blocks * 32);
                }
            }
            loaded_seq = seq;
        }
        for (int i = static_cast<int>(threadIdx.x) * 8; i < p.heads_padded * p.di;
             i += kThreads * 8) {
            const int h = i / p.di;
            Bf16x8 v{};
            if (h < p.heads) v = load8(p.q + row * p.q_stride + i, p.q_aligned);
            store8(query + h * pitch + i % p.di, v, true);
        }
        for (int h = static_cast<int>(threadIdx.x); h < p.heads; h += kThreads)
            weights[h] = p.hw[row * p.hw_stride + h];
        __syncthreads();
        float* mine = dots + warp * 32 * (p.heads_padded + 1);
        for (int h0 = 0; h0 < p.heads_padded; h0 += 32) {
            // Up to four tiles of eight heads share each reading of the keys.
            const int tiles = min(4, (p.heads_padded - h0) / 8);
            float acc[4][2][4] = {};
            for (int k = 0; k < p.di; k += 32) {
                uint32_t a[2][2][4];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    ldmatrix_x4(a[m][0],
                                shared_address(keys + (warp * 32 + m * 16 + lane % 16) * pitch + k +
                                               lane / 16 * 8));
                    ldmatrix_x4(a[m][1],
                                shared_address(keys + (warp * 32 + m * 16 + lane % 16) * pitch + k +
                                               16 + lane / 16 * 8));
                }
#pragma unroll
                for (int h = 0; h < 4; ++h) {
                    if (h >= tiles) break;
                    uint32_t b[4];
                    ldmatrix_x4(
                        b,
                        shared_address(query + (h0 + h * 8 + lane % 8) * pitch + k + lane / 8 * 8));
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        mma_m16n8k16(acc[h][m], a[m][0], b[0], b[1]);
                        mma_m16n8k16(acc[h][m], a[m][1], b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                if (h >= tiles) break;
#pragma unroll
                for (int m = 0; m < 2; ++m) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        mine[(m * 16 + lane / 4 + i / 2 * 8) * (p.heads_padded + 1) + h0 + h * 8 +
                             lane % 4 * 2 + i % 2] = acc[h][m][i];
                    }
                }
            }
        }
        __syncwarp();
        float score = 0.0f;
#pragma unroll 8
        for (int h = 0; h < p.heads; ++h) {
            const float dot = mine[lane * (p.heads_padded + 1) + h];
            score = __fadd_rn(score, __fmul_rn(bf16_value(weights[h]), dot < 0.0f ? 0.0f : dot));
        }
        if (entry < p.n) out[entry] = wanted ? score : -INFINITY;
        __syncthreads();  // before the next row overwrites query
    }
}

}  // namespace

void index_scores(Stream& stream,
                  const Tensor& q,
                  const Tensor& hw,
                  const BatchView& batch,
                  const IndexCache& cache,
                  const Tensor& candidates,
                  int candidate_block_size,
                  Tensor scores) {
    DI_CHECK(q.dtype == DType::kBF16 && hw.dtype == DType::kBF16 && scores.dtype == DType::kF32);
    DI_CHECK(q.stride[1] == q.dim(2) && q.dim(2) % 32 == 0);
    const int rows = static_cast<int>(q.dim(0));
    ScoreParams p{};
    p.q = q.ptr<uint16_t>();
    p.q_stride = q.stride[0];
    p.hw = hw.ptr<uint16_t>();
    p.hw_stride = hw.stride[0];
    p.batch = batch_pointers(batch);
    p.pool = cache.key_pool.ptr<uint8_t>();
    p.pool_stride = cache.key_pool ? cache.key_pool.stride[0] : 0;
    p.entries_per_block = cache.entries_per_block;
    p.ratio = cache.ratio;
    p.candidates = candidates ? candidates.ptr<int32_t>() : nullptr;
    p.candidate_stride = candidates ? candidates.stride[0] : 0;
    p.num_candidates = candidates ? static_cast<int>(candidates.dim(1)) : 0;
    p.block_size = candidate_block_size;
    p.scores = scores.ptr<float>();
    p.score_stride = scores.stride[0];
    p.n = scores.dim(1);
    p.num_rows = rows;
    p.heads = static_cast<int>(q.dim(1));
    p.heads_padded = (p.heads + 7) / 8 * 8;
    p.di = static_cast<int>(q.dim(2));
    p.rows_per_block = rows >= 64 ? 8 : 1;
    const size_t smem =
        static_cast<size_t>(kTile + p.heads_padded) * static_cast<size_t>(p.di + 8) * 2 +
        static_cast<size_t>(kWarps * 32 * (p.heads_padded + 1)) * sizeof(float) +
        static_cast<size_t>(p.heads_padded) * 2;
    p.words =
        (reinterpret_cast<uintptr_t>(p.pool) | static_cast<uintptr_t>(p.pool_stride)) % 4 == 0;
    p.q_aligned = reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && q.stride[0] % 8 == 0;
    if (index_scores_128_takes(p))
        return index_scores_128(stream, p, static_cast<int>(batch.num_seqs()));
    launch(stream,
           "index_scores",
           index_scores_kernel,
           dim3(div_up(p.n, kTile), div_up(rows, p.rows_per_block)),
           dim3(kThreads),
           smem,
           p);
}

}  // namespace deepinfer::cuda
