// Indexer scores on the device.
//
// A block dequantizes a tile of 128 keys to bf16 once, then scores it for up to kRowsPerBlock rows: keys are the
// A operand, the row's heads the B operand. The dot products are exact in fp32 (q4m × q4m); each entry's head
// sum then runs in one thread in ascending h with two roundings a step, so the scores have the twin's bits.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/views.cuh"
#include "tensor/quant_block.h"

namespace deepinfer::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

struct ScoreParams {
    const uint16_t* q;
    int64_t q_stride;
    const uint16_t* hw;
    int64_t hw_stride;
    BatchPointers batch;
    const uint8_t* pool;
    int64_t pool_stride;
    int entries_per_block;
    int ratio;
    const int32_t* candidates;
    int64_t candidate_stride;
    int num_candidates;
    int block_size;
    float* scores;
    int64_t score_stride;
    int64_t n;
    int num_rows;
    int heads;
    int heads_padded;
    int di;
    int rows_per_block;
};

__device__ bool in_candidates(const int32_t* list, int n, int block) {
    int lo = 0, hi = n;  // first element that is −1 or >= block
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (list[mid] >= 0 && list[mid] < block) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && list[lo] == block;
}

__device__ void dequantize_key(const uint8_t* src, int di, uint16_t* dst) {
    for (int b = 0; b < di / 32; ++b) {
        const float scale = ue8m0_value(src[di / 2 + b]);
        for (int i = 0; i < 16; ++i) {
            const uint32_t byte = src[b * 16 + i];
            dst[b * 32 + 2 * i] = round_bf16_bits(e2m1_value(byte & 15u) * scale);
            dst[b * 32 + 2 * i + 1] = round_bf16_bits(e2m1_value(byte >> 4) * scale);
        }
    }
}

__global__ void __launch_bounds__(kThreads) index_scores_kernel(ScoreParams p) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int pitch = p.di + 8;  // 16 bytes of padding: no bank conflicts in ldmatrix
    auto* keys = reinterpret_cast<uint16_t*>(shared);
    uint16_t* query = keys + kTile * pitch;
    auto* dots = reinterpret_cast<float*>(query + p.heads_padded * pitch);  // [warp][32 entries][heads_padded + 1]
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
            wanted = in_candidates(p.candidates + row * p.candidate_stride, p.num_candidates, static_cast<int>(entry / p.block_size));
        }
        float* out = p.scores + row * p.score_stride;
        if (__syncthreads_or(wanted) == 0) {
            if (entry < p.n) out[entry] = -INFINITY;
            continue;
        }
        if (seq != loaded_seq) {
            // The tile of the sequence's keys as far as this block's last row of it can see; the rest is zero.
            int last = row;
            while (last + 1 < row_end && p.batch.row_seq[last + 1] == seq) ++last;
            const int64_t reach = (static_cast<int64_t>(p.batch.positions[last]) + 1) / p.ratio;
            uint16_t* dst = keys + threadIdx.x * pitch;
            if (entry < reach && entry < p.n) {
                const int64_t block = p.batch.block_table[seq * p.batch.block_stride + entry / p.entries_per_block];
                const int64_t pool_row = block * p.entries_per_block + entry % p.entries_per_block;
                dequantize_key(p.pool + pool_row * p.pool_stride, p.di, dst);
            } else {
                for (int i = 0; i < p.di; ++i) dst[i] = 0;
            }
            loaded_seq = seq;
        }
        for (int i = static_cast<int>(threadIdx.x); i < p.heads_padded * p.di; i += kThreads) {
            const int h = i / p.di;
            query[h * pitch + i % p.di] = h < p.heads ? p.q[row * p.q_stride + i] : uint16_t{0};
        }
        __syncthreads();
        float* mine = dots + warp * 32 * (p.heads_padded + 1);
        for (int h0 = 0; h0 < p.heads_padded; h0 += 8) {
            float acc[2][4] = {};
            for (int k = 0; k < p.di; k += 16) {
                uint32_t b[4];
                // Two 8 × 8 pieces of the heads; lanes 16..31 repeat them.
                ldmatrix_x4(b, shared_address(query + (h0 + lane % 8) * pitch + k + (lane / 8 % 2) * 8));
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    uint32_t a[4];
                    ldmatrix_x4(a, shared_address(keys + (warp * 32 + m * 16 + lane % 16) * pitch + k + lane / 16 * 8));
                    mma_m16n8k16(acc[m], a, b[0], b[1]);
                }
            }
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    mine[(m * 16 + lane / 4 + i / 2 * 8) * (p.heads_padded + 1) + h0 + lane % 4 * 2 + i % 2] = acc[m][i];
                }
            }
        }
        __syncwarp();
        float score = 0.0f;
        for (int h = 0; h < p.heads; ++h) {
            const float dot = mine[lane * (p.heads_padded + 1) + h];
            score = __fadd_rn(score, __fmul_rn(bf16_value(p.hw[row * p.hw_stride + h]), dot < 0.0f ? 0.0f : dot));
        }
        if (entry < p.n) out[entry] = wanted ? score : -INFINITY;
        __syncthreads();  // before the next row overwrites query
    }
}

}  // namespace

void index_scores(Stream& stream, const Tensor& q, const Tensor& hw, const BatchView& batch, const IndexCache& cache,
                  const Tensor& candidates, int candidate_block_size, Tensor scores) {
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
    const size_t smem = static_cast<size_t>(kTile + p.heads_padded) * static_cast<size_t>(p.di + 8) * 2 +
                        static_cast<size_t>(kWarps * 32 * (p.heads_padded + 1)) * sizeof(float);
    launch(stream, "index_scores", index_scores_kernel, dim3(div_up(p.n, kTile), div_up(rows, p.rows_per_block)), dim3(kThreads), smem, p);
}

}  // namespace deepinfer::cuda
