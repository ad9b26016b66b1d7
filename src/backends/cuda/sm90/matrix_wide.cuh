// The wide matrix core (Hopper): packed weight tiles times 16 .. 128 activation rows on wgmma.
//
// Two warpgroups of 64 weight rows each share the activation rows. Weights are the A operand from
// registers: every warp widens its own packed tile in registers and never writes it back.
// Activations are the B operand in swizzled shared memory. A third warpgroup brings both in by
// cp.async, so that the first two do nothing but widen and multiply. docs/kernels/cuda_matrix.md
// has the sums and the schedule.
//
// The sum of an output element walks k exactly as in matrix_tile.cuh: the same slices, steps of 16,
// slices added in ascending order. wgmma and mma give the same bits for the same steps
// (LinearGpu.RowIgnoresItsBatch compares them), so the cores are one numeric class and the row
// count may choose between them.
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/matrix_tile.cuh"
#include "backends/cuda/sm90/wgmma.cuh"

namespace deepinfer::cuda {

constexpr int kWideConsumers = 256;  ///< two warpgroups multiply
constexpr int kWideProducers = 128;  ///< one copies
constexpr int kWideThreads = kWideConsumers + kWideProducers;
constexpr int kWideRows = 128;  ///< weight rows of a block

template <DType T, int N>
struct WideShared {
    static constexpr int kSubtiles =
        T == DType::kFP4 ? 2 : 1;  ///< 64 values of k each (BF16 chunks fill half of one)
    static constexpr int kActivations = kSubtiles * N * 128;
    static constexpr int kStage = (kActivations + 8 * TileFormat<T>::kBytes + 1023) / 1024 * 1024;
    /// Two blocks a multiprocessor up to N = 64: they hide each other's waits, so that one set of
    /// operand registers is enough.
    static constexpr int kBlocks = N <= 64 ? 2 : 1;
    static constexpr int kRoom = (kBlocks == 2 ? 108 : 216) * 1024 / kStage;
    static constexpr int kStages = kRoom < 8 ? kRoom : 8;
    static constexpr int kPitch =
        kWideRows + 4;  ///< floats between two activation rows of the finished tile
    static constexpr int kTile = N * kPitch * 4;
    static constexpr int kBody = kStages * kStage > kTile ? kStages* kStage : kTile;
    static constexpr int kBarriers = (kBody + 15) / 16 * 16;  ///< full and empty of every stage
    static constexpr int kBytes = kBarriers + 16 * kStages + 1024;  ///< room to align
    /// Registers of the roles; a block starts with 168 (80 where two share a multiprocessor).
    static constexpr int kConsumerRegisters = kBlocks == 1 ? 208
                                              : N == 64    ? 104
                                                           : 88,
                         kProducerRegisters = kBlocks == 1 ? 88
                                              : N == 64    ? 32
                                                           : 64;
};

/// Where the ring of stages stands; kept over the tiles of a block.
template <int Stages>
struct WideRing {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/// The A operands of 64 values of k (32 for BF16) of one tile in shared memory.
template <DType T>
struct WideOperand {
    static constexpr int kSteps = T == DType::kBF16 ? 2 : 4;
    uint32_t a[kSteps][4];

    __device__ __forceinline__ void load(const uint8_t* tile, int unit, int lane) {
        if constexpr (T == DType::kBF16) {
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const uint4 w = *reinterpret_cast<const uint4*>(tile + s * 512 + lane * 16);
                a[s][0] = w.x;
                a[s][1] = w.y;
                a[s][2] = w.z;
                a[s][3] = w.w;
            }
        } else if constexpr (T == DType::kFP8E4M3) {
#pragma unroll
            for (int v = 0; v < 2; ++v)
                widen(
                    *reinterpret_cast<const uint4*>(tile + v * 512 + lane * 16), v, tile[1024 + v]);
        } else {
            widen(*reinterpret_cast<const uint4*>(tile + unit * 512 + lane * 16),
                  *reinterpret_cast<const uint32_t*>(tile + 1024 + lane / 4 * 8 + unit * 4));
        }
    }

    /// FP8: word v of the chunk, steps 2 v and 2 v + 1, with its block's scale byte.
    __device__ __forceinline__ void widen(const uint4& w, int v, uint32_t scale) {
        const uint32_t factor = e4m3_factor(scale);
        a[2 * v][0] = mul_bf16x2(e4m3_first(w.x), factor);
        a[2 * v][1] = mul_bf16x2(e4m3_first(w.y), factor);
        a[2 * v][2] = mul_bf16x2(e4m3_second(w.x), factor);
        a[2 * v][3] = mul_bf16x2(e4m3_second(w.y), factor);
        a[2 * v + 1][0] = mul_bf16x2(e4m3_first(w.z), factor);
        a[2 * v + 1][1] = mul_bf16x2(e4m3_first(w.w), factor);
        a[2 * v + 1][2] = mul_bf16x2(e4m3_second(w.z), factor);
        a[2 * v + 1][3] = mul_bf16x2(e4m3_second(w.w), factor);
    }
    /// FP4: the word of a unit with the scales of the lane's row pair.
    __device__ __forceinline__ void widen(const uint4& w, uint32_t scales) {
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
        const uint32_t tops[2] = {factor_from_byte<0>(scales), factor_from_byte<2>(scales)};
        const uint32_t bottoms[2] = {factor_from_byte<1>(scales), factor_from_byte<3>(scales)};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            const uint32_t v = words[s], top = tops[s / 2], bottom = bottoms[s / 2];
            a[s][0] = mul_bf16x2(v & 0x81C081C0u, top);
            a[s][1] = mul_bf16x2((v << 3) & 0x81C081C0u, bottom);
            a[s][2] = mul_bf16x2((v << 6) & 0x81C081C0u, top);
            a[s][3] = mul_bf16x2(
                ((v << 1) & 0x80008000u) | ((v >> 4) & 0x00C000C0u) | ((v >> 5) & 0x01000100u),
                bottom);
        }
    }
};

/// Activation rows as a producer thread copies them: rows thread / 8 + 16 i of the block's N (null:
/// zeros).
template <int N>
struct WideRows {
    static constexpr int kCount = N / 16;
    const uint16_t* row[kCount];
    int k;
};

/// Called by all threads before the roles part. `shared` is 1024-byte aligned.
template <DType T, int N>
__device__ __forceinline__ void wide_begin(uint8_t* shared) {
    using S = WideShared<T, N>;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            mbarrier_init(shared_address(shared + S::kBarriers + 16 * s), kWideProducers);
            mbarrier_init(shared_address(shared + S::kBarriers + 16 * s + 8), 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

/// The producers' side of one tile: chunks [begin, end) of the row tiles and activation rows.
/// tiles[w]: the packed tile of consumer warp w. Addresses are kept and advanced, not computed.
template <DType T, int N, typename TileOf>
__device__ __forceinline__ void wide_produce(const TileOf& tile_of,
                                             const WideRows<N>& x,
                                             int begin,
                                             int end,
                                             uint8_t* shared,
                                             WideRing<WideShared<T, N>::kStages>& ring) {
    using F = TileFormat<T>;
    using S = WideShared<T, N>;
    constexpr int kCount = WideRows<N>::kCount;
    constexpr int kTail = F::kBytes / 16 - 64;  // 16-byte pieces of a tile beyond 64
    const int thread = static_cast<int>(threadIdx.x) - kWideConsumers;
    const uint32_t base = shared_address(shared);
    // Warp w copies the tiles of consumer warps 2 w and 2 w + 1.
    const int lane = thread % 32, warp = thread / 32;
    const uint8_t* weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
        weights[i] = tile_of(2 * warp + i) + static_cast<int64_t>(begin) * F::kBytes + lane * 16;
    const uint32_t weights_to =
        static_cast<uint32_t>(S::kActivations + 2 * warp * F::kBytes + lane * 16);
    const int column = thread % 8, r = thread / 8;
    const bool copies = T != DType::kBF16 || column < 4;  // BF16 chunks fill half a swizzled row
    const uint32_t rows_to = static_cast<uint32_t>(r * 128 + ((column ^ (r & 7)) << 4));
    const int at = begin * F::kChunk + column * 8;
    int left = x.k - at;
    const uint8_t* rows[kCount];
    uint32_t bytes[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        bytes[i] = x.row[i] != nullptr ? 16u : 0u;
        rows[i] =
            x.row[i] != nullptr ? reinterpret_cast<const uint8_t*>(x.row[i] + at) : weights[0];
    }
    for (int c = begin; c < end; ++c) {
        const uint32_t stage = base + static_cast<uint32_t>(ring.stage * S::kStage);
        const uint32_t full = base + static_cast<uint32_t>(S::kBarriers + 16 * ring.stage);
        mbarrier_wait(full + 8, ring.phase ^ 1);  // the first round finds every stage free
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t to = stage + weights_to + static_cast<uint32_t>(i * F::kBytes);
            cp_async_16(to, weights[i]);
            cp_async_16(to + 512, weights[i] + 512);
            if (lane < kTail) cp_async_16(to + 1024, weights[i] + 1024);
            weights[i] += F::kBytes;
        }
        if (copies) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
#pragma unroll
                for (int sub = 0; sub < S::kSubtiles; ++sub) {
                    cp_async_16(stage + rows_to + static_cast<uint32_t>(sub * N * 128 + i * 2048),
                                rows[i] + sub * 128,
                                left > sub * 64 ? bytes[i] : 0u);
                }
                rows[i] += F::kChunk * 2;
            }
        }
        left -= F::kChunk;
        // Arrives when all of this thread's copies so far have landed.
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
        ring.advance();
    }
}

/// The consumers' side: total = this warp's row tile · all N rows over slices [first, last).
template <DType T, int N>
__device__ __forceinline__ void wide_multiply(float (&total)[N / 2],
                                              int chunks,
                                              int slices,
                                              int first,
                                              int last,
                                              uint8_t* shared,
                                              WideRing<WideShared<T, N>::kStages>& ring) {
    using F = TileFormat<T>;
    using S = WideShared<T, N>;
    constexpr int kUnits = T == DType::kFP4 ? 2 : 1;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int begin = slice_begin(chunks, slices, first), end = slice_begin(chunks, slices, last);
    const uint32_t base = shared_address(shared);
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[i] = 0.0f;
    int slice = first, slice_left = slice_begin(chunks, slices, first + 1) - begin;
    int accumulate = 0, held = -1;  // held: the stage that the wgmma group under way reads
    const bool speaks = threadIdx.x % 128 == 0;
    const auto let_go = [&](int stage) {
        if (speaks) mbarrier_arrive(base + static_cast<uint32_t>(S::kBarriers + 16 * stage + 8));
    };
    WideOperand<T> operand[S::kBlocks == 1 ? 2 : 1];
    // One chunk. With two sets the previous wgmma group may still be reading the other one.
    auto run_chunk = [&](WideOperand<T>& even, WideOperand<T>& odd) {
        mbarrier_wait(base + static_cast<uint32_t>(S::kBarriers + 16 * ring.stage), ring.phase);
        fence_proxy_async();  // copied by other threads, read by wgmma
        const uint8_t* stage = shared + ring.stage * S::kStage;
        const uint8_t* weights = stage + S::kActivations + warp * F::kBytes;
        const uint64_t rows =
            swizzled_descriptor(base + static_cast<uint32_t>(ring.stage * S::kStage));
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            WideOperand<T>& op = u == 0 ? even : odd;
            op.load(weights, u, lane);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < WideOperand<T>::kSteps; ++s) {
                WgmmaM64<N>::run(acc,
                                 op.a[s],
                                 rows + static_cast<uint64_t>((u * N * 128 + s * 32) >> 4),
                                 accumulate);
                accumulate = 1;
            }
            wgmma_commit();
            if constexpr (S::kBlocks == 1) {
                wgmma_wait<1>();
                if (u == 0 && held >= 0) let_go(held);
            } else {
                wgmma_wait<0>();
            }
        }
        if constexpr (S::kBlocks == 1)
            held = ring.stage;
        else
            let_go(ring.stage);
        ring.advance();
        if (--slice_left == 0) {
            wgmma_wait<0>();
            hold_registers(acc);
            if (held >= 0) let_go(held);
            held = -1;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) total[i] = slice == first ? acc[i] : total[i] + acc[i];
            accumulate = 0;
            ++slice;
            slice_left =
                slice_begin(chunks, slices, slice + 1) - slice_begin(chunks, slices, slice);
        }
    };
    if constexpr (S::kBlocks == 1) {
        int left = end - begin;
        for (; left > 1; left -= 2) {
            run_chunk(operand[0], operand[1]);
            if constexpr (kUnits == 2)
                run_chunk(operand[0], operand[1]);
            else
                run_chunk(operand[1], operand[0]);
        }
        if (left > 0) run_chunk(operand[0], operand[1]);
    } else {
        for (int c = begin; c < end; ++c) run_chunk(operand[0], operand[0]);
    }
    wgmma_wait<0>();  // nothing is under way; the compiler wants to see it
    hold_registers(acc);
}

/// The finished tile in shared memory: [activation row][weight row of the block].
template <DType T, int N>
__device__ __forceinline__ void wide_store_tile(const float (&total)[N / 2], float* tile) {
    constexpr int kPitch = WideShared<T, N>::kPitch;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            tile[(j * 8 + lane % 4 * 2 + i % 2) * kPitch + row + i / 2 * 8] = total[j * 4 + i];
    }
}

/// Element `at` of the finished tile: the blocks of the cluster hold one slice each, added in
/// ascending slice.
__device__ __forceinline__ float wide_sum(const cooperative_groups::cluster_group& cluster,
                                          float* tile,
                                          int at,
                                          int peers) {
    if (peers == 1) return tile[at];
    float y = *cluster.map_shared_rank(tile + at, 0);
    for (int s = 1; s < peers; ++s) y += *cluster.map_shared_rank(tile + at, s);
    return y;
}

constexpr int kWideConsumersDone = 1;  ///< named barrier: nobody reads the stages any more

/// All threads of the blocks that share a tile, whatever their role.
__device__ __forceinline__ void wide_sync(const cooperative_groups::cluster_group& cluster,
                                          int peers) {
    if (peers > 1)
        cluster.sync();
    else
        bar_sync<0, kWideThreads>();
}

/// Microseconds of a product on the wide core by waves of blocks, with so many blocks a tile; a
/// chunk's time and what a block and a cluster cost besides were read off an H200 on 2026-11-30.
template <int N>
double wide_us(int64_t blocks, int chunks, int peers) {
    const int64_t room = 132 * WideShared<DType::kFP8E4M3, N>::kBlocks;
    const double chunk_us = N == 128 ? 0.58 : 0.45;
    const int64_t waves = (blocks * peers + room - 1) / room;
    return static_cast<double>(waves) * (chunk_us * chunks / peers + (peers > 1 ? 10.0 : 3.0));
}

/// Blocks of a cluster: 1, or one a K slice (fewer would add slices in another order).
template <int N>
int slice_peers(int64_t blocks, int chunks, int slices) {
    return slices > 1 && wide_us<N>(blocks, chunks, slices) < wide_us<N>(blocks, chunks, 1) ? slices
                                                                                            : 1;
}

__device__ __forceinline__ uint8_t* align_1024(uint8_t* p) {
    return p + ((1024u - (shared_address(p) & 1023u)) & 1023u);
}

}  // namespace deepinfer::cuda
