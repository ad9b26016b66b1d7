// Sparse attention for head_dim 512 on Hopper's wgmma. docs/kernels/cuda_sparse_attention.md has
// the sums and the schedule.
//
// A thread block owns a row and 64 heads; four warpgroups with three jobs:
//
//   producers  gather the packed rows of a list block into registers, widen them to bf16 and write
//              them to one of two key buffers (K and V are the same rows)
//   first      scores = Q · K^T, weights, handed over in shared memory; values of dims 0 .. 255
//   second     values of dims 256 .. 511
//
// Values of a block are summed from zero, 32 dims at a time, and merged into the registers that
// hold the output: the rule of attention_512.cuh. With few rows a thread block takes one list block
// alone and leaves its values to merge_kernel (sparse_attention_512_cuda.cu).
#include "backends/cuda/attention_512.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/sm90/wgmma.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kDim = kAttentionDim;
constexpr int kBlock = kAttentionBlock;
constexpr int kSubtile = 64 * 128;  ///< bytes of 64 rows × 64 values in the 128-byte swizzle
constexpr int kTile = 8 * kSubtile;
// The block starts with 512 · 128 registers and cannot have more.
constexpr int kConsumerRegisters = 192, kProducerRegisters = 64;
static_assert(256 * (kConsumerRegisters + kProducerRegisters) <= kThreads * 128);
constexpr int kProducerRows = kBlock / 8;  ///< of a block, for each of the eight producer warps

// Shared memory, from a multiple of 1024.
constexpr int kQuery = 0, kKeys = kTile;
/// A thread's weights as operands (32), then two pairs of factors.
constexpr int kWeightWords = 36;
constexpr int kWeights = kKeys + 2 * kTile;
constexpr int kBarriers = kWeights + 128 * kWeightWords * 4;
constexpr int kSharedBytes = kBarriers + 4 * 8 + 1024;

constexpr int kHalvesRows = 66;  ///< up to here half of the multiprocessors would be idle

// Named barriers between the consumers (0 is __syncthreads).
constexpr int kWeightsReady = 1, kWeightsTaken = 2;

/// Byte offset of value `col` of row `row` in the swizzled layout (64 columns a subtile).
__device__ __forceinline__ int swizzled(int row, int col) {
    return col / 64 * kSubtile + row * 128 + ((col % 64 / 8 ^ (row & 7)) << 4) + col % 8 * 2;
}

/// A key buffer is full when eight producer warps have said so, empty when both consumers have.
struct Pipeline {
    uint32_t barriers;
    __device__ explicit Pipeline(uint8_t* shared) : barriers(shared_address(shared + kBarriers)) {}
    __device__ __forceinline__ uint32_t full(int buffer) const {
        return barriers + static_cast<uint32_t>(buffer * 8);
    }
    __device__ __forceinline__ uint32_t empty(int buffer) const { return full(buffer) + 16; }
};

/// A part of a lane's row on its way from memory: 32 dims of an FP4 entry and their two scales, or
/// 16 dims of an FP8 window row and the scales of 64.
struct Piece {
    uint4 codes;
    uint32_t scales;
};

/// A lane's part of the list. Lane l works on row l % 8 of its warp's eight: eight neighbouring
/// lanes store to eight rows, which the swizzle spreads over all banks, and no lane needs to know
/// another's row. The four lanes of a row share out its packed bytes 16 at a time.
///
/// From list entry to address is a chain of dependent loads (list, block table); every list block
/// makes one step of it, for blocks further ahead.
struct LaneRows {
    const AttentionParams& p;
    const KeyList& list;
    int t, end, quarter;  ///< nothing at or past list entry `end` is read; which lane of the row

    struct Place {
        int block, rest;  ///< of the pool
    };
    __device__ __forceinline__ bool selected(int at) const { return at >= list.window && at < end; }
    __device__ __forceinline__ int entry(int at) const {
        return selected(at) ? p.lists[t * p.list_stride + at - list.window] : 0;
    }
    __device__ __forceinline__ Place place(int at, int entry) const {
        if (!selected(at)) return {0, 0};
        const int block = entry / p.entries_per_block;
        return {p.batch.block_table[list.seq * p.batch.block_stride + block],
                entry - block * p.entries_per_block};
    }
    __device__ __forceinline__ const uint8_t* row(int at, const Place& e) const {
        if (at >= end) return nullptr;
        if (at < list.window) return list.window_row(p, at);
        return p.pool +
               (static_cast<int64_t>(e.block) * p.entries_per_block + e.rest) * p.pool_stride;
    }
    /// Part s of four of the row of list entry `at`; half: of a window row's parts. Zeros where
    /// there is nothing.
    __device__ __forceinline__ void fetch(
        Piece& piece, const uint8_t* row, int at, int half, int s) const {
        const bool window = at < list.window;
        const uint8_t* codes = row + quarter * 16 + half * 256 + s * 64;
        const uint8_t* scales = row + (window ? kAttentionDim + half * 8 + s * 2
                                              : kAttentionDim / 2 + quarter * 2 + s * 8);
        const bool there = at < end && (half == 0 || window);
        piece = {make_uint4(0, 0, 0, 0), 0};
        // As ordinary loads the compiler would wait for every one where it is first looked at.
        asm volatile(
            "{\n.reg .pred there;\nsetp.ne.u32 there, %7, 0;\n"
            "@there ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%5];\n"
            "@there ld.global.nc.u16 %4, [%6];\n}\n"
            : "+r"(piece.codes.x),
              "+r"(piece.codes.y),
              "+r"(piece.codes.z),
              "+r"(piece.codes.w),
              "+r"(piece.scales)
            : "l"(codes), "l"(scales), "r"(static_cast<uint32_t>(there)));
    }
};

__device__ __forceinline__ void store_shared_16(uint32_t to, const uint4& v) {
    asm volatile(
        "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
        : "memory");
}

/// 32 dims from 128 s + 32 quarter on, at `to` (the place of their first eight with s = 0).
__device__ __forceinline__ void put_entry(const Piece& piece, uint32_t to, int s) {
    const uint32_t factors[2] = {entry_factor(piece.scales & 0xFFu),
                                 entry_factor(piece.scales >> 8)};
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t pairs[4];
        widen_entry(words[k], factors[k / 2], pairs);
        store_shared_16((to ^ static_cast<uint32_t>(k << 4)) + s * 2 * kSubtile,
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
}
/// 16 dims from 256 half + 64 s + 16 quarter on.
__device__ __forceinline__ void put_window(
    const Piece& piece, int quarter, uint32_t to, int half, int s) {
    uint32_t pairs[8];
    widen_window(piece.codes, piece.scales >> quarter / 2 * 8 & 0xFFu, pairs);
    to += (half * 4 + s) * kSubtile;
    store_shared_16(to, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    store_shared_16(to ^ 16u, make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]));
}

__device__ __forceinline__ void produce(const AttentionParams& p,
                                        const KeyList& list,
                                        int t,
                                        int n,
                                        int first_block,
                                        int num_blocks,
                                        uint8_t* shared,
                                        const Pipeline& pipe) {
    const int lane = static_cast<int>(threadIdx.x) & 31,
              warp = static_cast<int>(threadIdx.x) / 32 % 8;
    const int x = lane % 8, quarter = lane / 8;
    const LaneRows rows{p, list, t, min(n, (first_block + num_blocks) * kBlock), quarter};
    int at = first_block * kBlock + warp * kProducerRows + x;
    // What the block being widened finds done: its parts and address, the next one's address, the
    // place of the one after that, the list entry of the third.
    int entry = rows.entry(at), e1 = rows.entry(at + kBlock), e2 = rows.entry(at + 2 * kBlock);
    LaneRows::Place place = rows.place(at, entry), p1 = rows.place(at + kBlock, e1);
    entry = rows.entry(at + 3 * kBlock);
    const uint8_t *row = rows.row(at, place), *next = rows.row(at + kBlock, p1);
    Piece pieces[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) rows.fetch(pieces[s], row, at, 0, s);
    place = rows.place(at + 2 * kBlock, e2);

    // Row 8 warp + x stands at x · 128 with its eight 16-byte pieces permuted by x.
    const uint32_t base = shared_address(shared + kKeys) + (warp * kProducerRows + x) * 128;
    const uint32_t to_entry = base + quarter / 2 * kSubtile + ((quarter % 2 * 4 ^ x) << 4);
    const uint32_t to_window = base + ((quarter * 2 ^ x) << 4);
    for (int i = 0; i < num_blocks; ++i) {
        const int buffer = i & 1;
        if (i >= 2) mbarrier_wait(pipe.empty(buffer), (i / 2 - 1) & 1);
        if (at - x < list.window) {  // at least the warp's first row is a window row
            const bool window = at < list.window;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    if (window)
                        put_window(pieces[s], quarter, to_window + buffer * kTile, half, s);
                    else if (half == 0)
                        put_entry(pieces[s], to_entry + buffer * kTile, s);
                    if (half == 0)
                        rows.fetch(pieces[s], row, at, 1, s);
                    else
                        rows.fetch(pieces[s], next, at + kBlock, 0, s);
                }
            }
        } else {
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                put_entry(pieces[s], to_entry + buffer * kTile, s);
                rows.fetch(pieces[s], next, at + kBlock, 0, s);
            }
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(pipe.full(buffer));
        at += kBlock;
        row = next;
        next = rows.row(at + kBlock, place);
        place = rows.place(at + 2 * kBlock, entry);
        entry = rows.entry(at + 3 * kBlock);
    }
}
static_assert(kProducerRows == 8, "a row's place among eight permutes its pieces");

/// A consumer thread's weights: operands of the four k16 steps, both parts, and the factors of its
/// two heads.
struct Weights {
    uint32_t hi[4][4], lo[4][4];
    BlockFactors factors[2];
};

/// A head's share of the operands: pairs of words (k16 step k: words half and half + 2), high
/// parts, low parts, then its factors. A warp's lanes are neighbours.
__device__ __forceinline__ uint2* exchange(uint8_t* shared, int half) {
    return reinterpret_cast<uint2*>(shared + kWeights) + half * 9 * 128 + threadIdx.x % 128;
}
__device__ __forceinline__ void take_over(Weights& w, uint8_t* shared) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint2* from = exchange(shared, half);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint2 hi = from[k * 128], lo = from[(4 + k) * 128];
            w.hi[k][half] = hi.x;
            w.hi[k][half + 2] = hi.y;
            w.lo[k][half] = lo.x;
            w.lo[k][half + 2] = lo.y;
        }
        const uint2 f = from[8 * 128];
        w.factors[half] = {__uint_as_float(f.x), __uint_as_float(f.y)};
    }
}

/// Scores of a block and what follows from them, in the first consumer; the weights go to `shared`
/// head by head, so that few of them are in registers. top, sum: of the thread's two heads.
__device__ __forceinline__ void score_block(uint8_t* shared,
                                            bool first,
                                            uint64_t query,
                                            uint64_t keys,
                                            float scale,
                                            int valid,
                                            float (&top)[2],
                                            float (&sum)[2],
                                            float2 (&block)[2]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    float s[32];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
        const uint64_t at = static_cast<uint64_t>((k / 4 * kSubtile + k % 4 * 32) >> 4);
        wgmma_m64n64_shared(s, query + at, keys + at, k > 0 ? 1 : 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold_registers(s);
    if (!first) bar_sync<kWeightsTaken, 256>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint2* to = exchange(shared, half);
        float w[16];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                w[2 * j + i] = 8 * j + lane % 4 * 2 + i < valid
                                   ? __fmul_rn(s[4 * j + 2 * half + i], scale)
                                   : -INFINITY;
            }
        }
        float m;
        const float l = block_weights(w, m);
        block[half] = make_float2(m, l);
        const BlockFactors f = merge_block(m, l, top[half], sum[half]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint2 hi, lo;
            split_weights(w[4 * k], w[4 * k + 1], hi.x, lo.x);
            split_weights(w[4 * k + 2], w[4 * k + 3], hi.y, lo.y);
            to[k * 128] = hi;
            to[(4 + k) * 128] = lo;
        }
        to[8 * 128] = make_uint2(__float_as_uint(f.old), __float_as_uint(f.block));
    }
}

/// Values of 32 dims of one block, from zero.
__device__ __forceinline__ void multiply_values(float (&values)[16],
                                                const Weights& w,
                                                uint64_t keys) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint64_t b = keys + static_cast<uint64_t>(k * 16 * 128 >> 4);
        wgmma_m64n32_transposed(values, w.hi[k], b, k > 0 ? 1 : 0);
        wgmma_m64n32_transposed(values, w.lo[k], b, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold_registers(values);
}

/// How a row is dealt out: a thread block has it all; or a half of the values, which the second
/// consumer takes while the first is at the next block's scores; or one list block, whose values go
/// to `split`.
enum class Deal : uint8_t { kRow, kHalves, kBlocks };

template <Deal kDeal>
__global__ void __launch_bounds__(kThreads, 1)
    attention_512_wide_kernel(const __grid_constant__ AttentionParams p,
                              const __grid_constant__ SplitBlocks split) {
    constexpr bool kSplit = kDeal == Deal::kBlocks, kHalves = kDeal == Deal::kHalves;
    begin_kernel();
    extern __shared__ uint8_t unaligned[];
    uint8_t* shared = unaligned + ((1024u - (shared_address(unaligned) & 1023u)) & 1023u);
    const int t = static_cast<int>(blockIdx.x), head0 = static_cast<int>(blockIdx.y) * 64;
    const KeyList list(p, t);
    for (int i = static_cast<int>(threadIdx.x); i < 64 * (kDim / 8); i += kThreads) {
        const int h = i / (kDim / 8), c = i % (kDim / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + h < p.heads) {
            v = *reinterpret_cast<const uint4*>(p.q + t * p.q_stride +
                                                static_cast<int64_t>(head0 + h) * kDim + c);
        }
        *reinterpret_cast<uint4*>(shared + kQuery + swizzled(h, c)) = v;
    }
    const int n = list.size_of_block(p, t);
    const int first_block = kSplit ? static_cast<int>(blockIdx.z) : 0;
    if (kSplit && first_block * kBlock >= n) return;
    const int num_blocks = kSplit ? 1 : (n + kBlock - 1) / kBlock;
    const Pipeline pipe(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            mbarrier_init(pipe.full(i), 8);   // producer warps
            mbarrier_init(pipe.empty(i), 2);  // consumers
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    fence_proxy_async();
    __syncthreads();

    if (threadIdx.x >= 256) {
        setmaxnreg_dec<kProducerRegisters>();
        produce(p, list, t, n, first_block, num_blocks, shared, pipe);
    } else {
        setmaxnreg_inc<kConsumerRegisters>();
        const int lane = static_cast<int>(threadIdx.x) & 31,
                  group = static_cast<int>(threadIdx.x) / 128;
        // First of this thread's two heads (the other is eight further).
        const int head = head0 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
        const uint64_t query = swizzled_descriptor(shared_address(shared + kQuery));
        const float scale = p.scale * 256.0f;  // the keys' 2^-8
        float top[2], sum[2] = {1.0f, 1.0f};
        for (int i = 0; i < 2; ++i) top[i] = head + 8 * i < p.heads ? p.sink[head + 8 * i] : 0.0f;
        constexpr int kSteps = 8;  // of 32 dims
        const int first_step = (kHalves ? static_cast<int>(blockIdx.z) : group) * kSteps;
        float out[kSplit ? 1 : kSteps][16];
        if constexpr (!kSplit) {
#pragma unroll
            for (int q = 0; q < kSteps; ++q) {
#pragma unroll
                for (int i = 0; i < 16; ++i) out[q][i] = 0.0f;
            }
        }
        for (int i = 0; i < num_blocks; ++i) {
            const int block = first_block + i, buffer = i & 1;
            const uint64_t keys =
                swizzled_descriptor(shared_address(shared + kKeys + buffer * kTile));
            mbarrier_wait(pipe.full(buffer), i / 2 & 1);
            if (group == 0) {
                float2 of_block[2];
                score_block(
                    shared, i == 0, query, keys, scale, n - block * kBlock, top, sum, of_block);
                bar_arrive<kWeightsReady, 256>();
                if (kSplit && lane % 4 == 0) {
                    for (int half = 0; half < 2; ++half) {
                        if (head + 8 * half >= p.heads) continue;
                        split.sums[(static_cast<int64_t>(t) * split.blocks + block) * p.heads +
                                   head + 8 * half] = of_block[half];
                    }
                }
            } else {
                bar_sync<kWeightsReady, 256>();
            }
            if (kHalves && group == 0) {
                if (threadIdx.x == 0) mbarrier_arrive(pipe.empty(buffer));
                continue;
            }
            // The first consumer too reads its weights back: one place where they begin to live
            // costs fewer registers than two.
            Weights weights;
            take_over(weights, shared);
            if (group == 1 && i + 1 < num_blocks) bar_arrive<kWeightsTaken, 256>();
#pragma unroll
            for (int q = 0; q < kSteps; ++q) {
                float values[16];
                multiply_values(
                    values,
                    weights,
                    keys + static_cast<uint64_t>(
                               ((first_step + q) / 2 * kSubtile + (first_step + q) % 2 * 64) >> 4));
                if constexpr (kSplit) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        if (head + 8 * half >= p.heads) continue;
                        float* to = split.values +
                                    ((static_cast<int64_t>(t) * split.blocks + block) * p.heads +
                                     head + 8 * half) *
                                        kDim +
                                    (first_step + q) * 32 + lane % 4 * 2;
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            *reinterpret_cast<float2*>(to + j * 8) =
                                make_float2(values[4 * j + 2 * half], values[4 * j + 2 * half + 1]);
                        }
                    }
                } else {
#pragma unroll
                    for (int v = 0; v < 16; ++v)
                        out[q][v] = merge_value(out[q][v], values[v], weights.factors[v / 2 % 2]);
                }
            }
            if (threadIdx.x % 128 == 0) mbarrier_arrive(pipe.empty(buffer));
        }
        if constexpr (!kSplit) {
            // The denominators travel the way of the weights.
            float2 factor;
            auto* meeting = reinterpret_cast<float2*>(shared + kWeights) + threadIdx.x % 128;
            if (group == 0) {
                factor = make_float2(output_factor(sum[0]), output_factor(sum[1]));
                bar_sync<kWeightsTaken, 256>();
                *meeting = factor;
                bar_arrive<kWeightsReady, 256>();
                if (kHalves) return;
            } else {
                bar_arrive<kWeightsTaken, 256>();
                bar_sync<kWeightsReady, 256>();
                factor = *meeting;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (head + 8 * half >= p.heads) continue;
                const float f = half == 0 ? factor.x : factor.y;
                uint16_t* dst = p.out + t * p.out_stride +
                                static_cast<int64_t>(head + 8 * half) * kDim + first_step * 32 +
                                lane % 4 * 2;
#pragma unroll
                for (int q = 0; q < kSteps; ++q) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        *reinterpret_cast<uint32_t*>(dst + q * 32 + j * 8) = cvt_bf16x2(
                            out[q][4 * j + 2 * half] * f, out[q][4 * j + 2 * half + 1] * f);
                    }
                }
            }
        }
    }
}

}  // namespace

void sparse_attention_512_wide(Stream& stream, const AttentionParams& p) {
    const bool halves = p.num_rows <= kHalvesRows;
    launch(
        stream,
        "sparse_attention_512_wide",
        halves ? attention_512_wide_kernel<Deal::kHalves> : attention_512_wide_kernel<Deal::kRow>,
        dim3(static_cast<unsigned>(p.num_rows), div_up(p.heads, 64), halves ? 2 : 1),
        dim3(kThreads),
        kSharedBytes,
        p,
        SplitBlocks{});
}

void sparse_attention_512_split(Stream& stream,
                                const AttentionParams& p,
                                const SplitBlocks& split) {
    launch(stream,
           "sparse_attention_512_split",
           attention_512_wide_kernel<Deal::kBlocks>,
           dim3(static_cast<unsigned>(p.num_rows),
                div_up(p.heads, 64),
                static_cast<unsigned>(split.blocks)),
           dim3(kThreads),
           kSharedBytes,
           p,
           split);
}

}  // namespace deepinfer::cuda
