// Indexer scores for 32 heads of 128 values, as released: every warp on its own, nothing shared in
// a block.
//
// A warp keeps 32 keys widened to bf16 in registers, as the A operand, and scores them for one row
// after the other: the row's heads are the B operand, straight from memory. Keys stay while the
// sequence stays. Which value of k stands where is free as long as keys and queries agree, so a
// packed word of eight neighbouring values serves as it is. The dot products are exact in fp32 (q4m
// × q4m); each entry's head sum then runs in one lane in ascending h with two roundings a step: the
// twin's bits. indexer_cuda.cu takes every other geometry.
#include "backends/cuda/index_scores.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/mma.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/widen.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 32, kDim = 128;
constexpr int kKeys = 32;  ///< a warp's
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kPitch = kHeads + 4;  ///< floats of one key's dots

/// The 32 keys of a warp: operands of two tiles of 16 keys; block b of 32 values is two k16 steps.
struct Keys {
    uint32_t a[2][4][2][4];  // [tile][block][step][word]
};

/// Eight packed values and their block's scale → four bf16 pairs: (0, 4), (1, 5), (2, 6), (3, 7).
__device__ __forceinline__ void widen_word(uint32_t w, uint32_t e, uint32_t (&pairs)[4]) {
    pairs[0] = e2m1_nibbles<0>(w);
    pairs[1] = e2m1_nibbles<1>(w);
    pairs[2] = e2m1_nibbles<2>(w);
    pairs[3] = e2m1_nibbles<3>(w);
    if (e - 1 <= 127u) {  // 2^126 · 2^(e - 127) is a bf16 number: one exact multiply
        const uint32_t factor = bf16x2_power(e + 126);
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = mul_bf16x2(pairs[i], factor);
        return;
    }
    const uint32_t scale = e == 255 ? 0x7FC07FC0u : e == 0 ? 0x00400040u : bf16x2_power(e);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        pairs[i] = mul_bf16x2(mul_bf16x2(pairs[i], bf16x2_power(253)), scale);
}

/// Keys first .. first + 31 of the sequence, zeros from `end` on.
__device__ __forceinline__ void load_keys(
    Keys& keys, const ScoreParams& p, int seq, int first, int end) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane / 4, t = lane % 4;
    uint32_t words[4][4], scales[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // key g + 8 i
        const int j = first + g + 8 * i;
        scales[i] = 0x7F7F7F7Fu;
#pragma unroll
        for (int b = 0; b < 4; ++b) words[i][b] = 0;
        if (j >= end) continue;
        const int in_table = j / p.entries_per_block;
        const int64_t block = __ldg(p.batch.block_table + seq * p.batch.block_stride + in_table);
        const auto* row = reinterpret_cast<const uint32_t*>(
            p.pool + ((block - in_table) * p.entries_per_block + j) * p.pool_stride);
#pragma unroll
        for (int b = 0; b < 4; ++b) words[i][b] = __ldg(row + b * 4 + t);
        scales[i] = __ldg(row + kDim / 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            uint32_t pairs[4];
            widen_word(words[i][b], scales[i] >> (8 * b) & 0xFFu, pairs);
            uint32_t(&steps)[2][4] = keys.a[i / 2][b];
            steps[0][i % 2] = pairs[0];
            steps[0][i % 2 + 2] = pairs[1];
            steps[1][i % 2] = pairs[2];
            steps[1][i % 2 + 2] = pairs[3];
        }
    }
}

/// Dots of all heads with the warp's keys: dots[key][head].
__device__ __forceinline__ void multiply(const Keys& keys, const uint16_t* query, float* dots) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < kHeads / 8; ++n) {
        uint4 q[4];
#pragma unroll
        for (int b = 0; b < 4; ++b)
            q[b] =
                __ldg(reinterpret_cast<const uint4*>(query + (n * 8 + g) * kDim + b * 32 + t * 8));
        float acc[2][4] = {};
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const uint32_t b0 = __byte_perm(q[b].x, q[b].z, 0x5410),  // values 0, 4
                b1 = __byte_perm(q[b].x, q[b].z, 0x7632),             // 1, 5
                b2 = __byte_perm(q[b].y, q[b].w, 0x5410),             // 2, 6
                b3 = __byte_perm(q[b].y, q[b].w, 0x7632);             // 3, 7
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                mma_m16n8k16(acc[m], keys.a[m][b][0], b0, b1);
                mma_m16n8k16(acc[m], keys.a[m][b][1], b2, b3);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            float* at = dots + (m * 16 + g) * kPitch + n * 8 + t * 2;
            *reinterpret_cast<float2*>(at) = make_float2(acc[m][0], acc[m][1]);
            *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(acc[m][2], acc[m][3]);
        }
    }
}

__device__ __forceinline__ float add_head(float score, float weight, float dot) {
    return __fadd_rn(score, __fmul_rn(weight, dot < 0.0f ? 0.0f : dot));
}

/// Which of the blocks first .. first + 31 are in the ascending list (-1 behind its end): bit by
/// bit.
__device__ __forceinline__ uint32_t blocks_in_list(const int32_t* list, int n, int first) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const auto below = [&](int at) {
        if (at >= n) return false;
        const int32_t v = __ldg(list + at);
        return v >= 0 && v < first;
    };
    // Entries below `first` stand in front: count them, 32 probes at a time.
    const int step = (n + 31) / 32;
    const int runs = __popc(__ballot_sync(0xFFFFFFFFu, below(lane * step)));
    int at = max(0, runs - 1) * step;
    const int end = min(n, at + step);
    int count = 0;
    for (int i = at; i < end; i += 32)
        count += __popc(__ballot_sync(0xFFFFFFFFu, i + lane < end && below(i + lane)));
    at += count;
    const int32_t v = at + lane < n ? __ldg(list + at + lane) : -1;
    const uint32_t bit = v >= first && v < first + 32 ? 1u << (v - first) : 0u;
    return __reduce_or_sync(0xFFFFFFFFu, bit);
}

__global__ void __launch_bounds__(kThreads, 3)
    index_scores_128_kernel(const __grid_constant__ ScoreParams p) {
    begin_kernel();
    __shared__ __align__(16) float all_dots[kWarps][kKeys * kPitch];
    __shared__ __align__(16) float all_weights[kWarps][kHeads];
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    float *dots = all_dots[warp], *weights = all_weights[warp];
    const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kKeys,
              n = static_cast<int>(p.n), entry = first + lane;
    if (first >= n) return;
    const int row_begin = static_cast<int>(blockIdx.y) * p.rows_per_block,
              row_end = min(p.num_rows, row_begin + p.rows_per_block);
    Keys keys;
    int loaded_seq = -1;
    for (int row = row_begin; row < row_end; ++row) {
        const int seq = p.batch.row_seq[row];
        const int visible = (p.batch.positions[row] + 1) / p.ratio;
        bool wanted = entry < visible && entry < n;
        float* out = p.scores + row * p.score_stride;
        if (first < visible && p.candidates != nullptr) {
            const int first_block = first / p.block_size;
            const uint32_t mask = blocks_in_list(
                p.candidates + row * p.candidate_stride, p.num_candidates, first_block);
            wanted = wanted && (mask >> (entry / p.block_size - first_block) & 1u) != 0;
        }
        if (!__any_sync(0xFFFFFFFFu, wanted)) {
            if (entry < n) out[entry] = -INFINITY;
            continue;
        }
        if (seq != loaded_seq) {
            // As far as this block's last row of the sequence can see; the rest is zero.
            int last = row;
            while (last + 1 < row_end && p.batch.row_seq[last + 1] == seq) ++last;
            load_keys(keys, p, seq, first, min((p.batch.positions[last] + 1) / p.ratio, n));
            loaded_seq = seq;
        }
        __syncwarp();  // the last row's dots and weights have been read
        weights[lane] = bf16_value(p.hw[row * p.hw_stride + lane]);
        multiply(keys, p.q + row * p.q_stride, dots);
        __syncwarp();
        float score = 0.0f;
#pragma unroll
        for (int h = 0; h < kHeads; h += 4) {
            const float4 d = *reinterpret_cast<const float4*>(dots + lane * kPitch + h),
                         w = *reinterpret_cast<const float4*>(weights + h);
            score = add_head(score, w.x, d.x);
            score = add_head(score, w.y, d.y);
            score = add_head(score, w.z, d.z);
            score = add_head(score, w.w, d.w);
        }
        if (entry < n) out[entry] = wanted ? score : -INFINITY;
    }
}

}  // namespace

bool index_scores_128_takes(const ScoreParams& p) {
    return p.heads == kHeads && p.di == kDim && p.words && p.q_aligned;
}

void index_scores_128(Stream& stream, ScoreParams p, int num_seqs) {
    // Rows of one sequence share its keys; decodes have none to share.
    DI_CHECK_LT(p.n, int64_t{1} << 31);
    p.rows_per_block = p.num_rows >= 8 * num_seqs ? 16 : 1;
    launch(stream,
           "index_scores_128",
           index_scores_128_kernel,
           dim3(div_up(p.n, kWarps * kKeys), div_up(p.num_rows, p.rows_per_block)),
           dim3(kThreads),
           0,
           p);
}

}  // namespace deepinfer::cuda
