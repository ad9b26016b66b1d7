// The cluster core (Hopper): packed weight tiles times many activation rows on wgmma, one
// persistent block a multiprocessor (two with few rows).
//
// As in matrix_wide.cuh weights are widened straight into the A registers of two warpgroups and
// activations are the swizzled B operand. Other than there, the blocks of a cluster take
// neighbouring weight rows and share the activations: each copies a part of the tile to all of them
// (TMA multicast), so that L2 is read once a cluster. A warp's weights are nobody else's: with 128
// activation rows it loads them itself, two chunks ahead, past shared memory; with fewer they come
// by bulk copies. The blocks walk a list of tiles; a warpgroup finishes its part of a tile alone
// while the other one may already be multiplying the next.
//
// The sum of an output element walks k exactly as in matrix_tile.cuh.
#pragma once

#include "backends/cuda/sm90/bulk_copy.cuh"
#include "backends/cuda/sm90/matrix_wide.cuh"

namespace deepinfer::cuda {

constexpr int kClusterConsumers = 256;
constexpr int kClusterThreads =
    kClusterConsumers + 128;       ///< the last warpgroup's first warp copies
constexpr int kClusterRows = 128;  ///< weight rows of a block
constexpr int kClusterBlocks = 2;  ///< of a cluster: four leave multiprocessors without one

/// MaxN: activation rows of a full tile. Tiles with fewer take one of the widths below it.
template <DType T, int MaxN>
struct ClusterShared {
    /// Two blocks a multiprocessor up to 64 rows: they hide each other's waits, one set of operand
    /// registers is enough, and none are left for weights on their way: those come by bulk copies.
    static constexpr int kBlocks = MaxN <= 64 ? 2 : 1;
    static constexpr int kUnits = T == DType::kFP4 ? 2 : 1;  ///< 64 values of k each, of a chunk
    static constexpr int kSubtiles = kBlocks == 2 ? kUnits : 1;  ///< units of a stage
    static constexpr int kBox = MaxN / 4;                        ///< activation rows of one copy
    static constexpr int kSubtile = MaxN * 128;
    static constexpr int kActivations = kSubtiles * kSubtile;
    static constexpr int kWeights = kBlocks == 2 ? 8 * TileFormat<T>::kBytes : 0;
    static constexpr int kStage = (kActivations + kWeights + 1023) / 1024 * 1024;
    static constexpr int kPitch = 144;  ///< bytes between two rows of a finished tile's half
    /// Above 128 rows registers hold one slice's sums; those of the slices before are parked where
    /// the finished tile will stand.
    static constexpr bool kParks = MaxN > 128;
    static constexpr int kFinished = kParks ? MaxN * 256 : MaxN * kPitch;  ///< of a warpgroup
    static constexpr int kRoom = (kBlocks == 2 ? 113 : 227) * 1024 - 1024 - 256 - 2 * kFinished;
    static constexpr int kStages = kRoom / kStage < 8 ? kRoom / kStage : 8;
    static constexpr int kFinishedAt = kStages * kStage;
    static constexpr int kBarriers = kFinishedAt + 2 * kFinished;   ///< full, empty of every stage
    static constexpr int kBytes = kBarriers + 16 * kStages + 1024;  ///< room to align
    /// A block starts with 168 registers a thread (80 where two share a multiprocessor).
    static constexpr int kConsumerRegisters = kBlocks == 1 ? 232 : 104;
    static constexpr int kProducerRegisters = kBlocks == 1 ? 40 : 32;
    static_assert(kStages >= 3);
};

/// Tiles of about the same size, whole boxes each: activation rows of every tile but the last.
template <int MaxN>
__host__ __device__ inline int tile_rows(int rows, int tiles) {
    constexpr int kBox = MaxN / 4;
    return ((rows + tiles - 1) / tiles + kBox - 1) / kBox * kBox;
}

/// Microseconds of 64 values of k in a tile of so many activation rows, and of what a tile costs
/// besides; read off an H200 on 2026-12-01 (FP8 5120 × 8192 and 32768 × 1280). Narrow tiles are
/// bound by widening.
inline double cluster_step_us(int width) {
    return width < 100 ? 0.42 : 0.22 + 0.002 * width;
}
template <int MaxN>
double cluster_tile_us(int rows, int tiles, double steps) {
    constexpr double kBesides = MaxN <= 128 ? 1.7 : MaxN <= 192 ? 2.8 : 3.4;
    return steps * cluster_step_us(tile_rows<MaxN>(rows, tiles)) + kBesides;
}

/// Calls run with the width that a tile of `count` rows takes, as a compile-time number.
template <int N>
struct TileWidth {
    static constexpr int kN = N;
};
template <int MaxN, typename Run>
__device__ __forceinline__ void with_width(int count, const Run& run) {
    if constexpr (MaxN == 256) {
        if (count <= 64) return run(TileWidth<64>());
        if (count <= 128) return run(TileWidth<128>());
        if (count <= 192) return run(TileWidth<192>());
    } else if constexpr (MaxN == 192) {
        if (count <= 48) return run(TileWidth<48>());
        if (count <= 96) return run(TileWidth<96>());
        if (count <= 144) return run(TileWidth<144>());
    } else if constexpr (MaxN == 128) {
        if (count <= 32) return run(TileWidth<32>());
        if (count <= 64) return run(TileWidth<64>());
        if (count <= 96) return run(TileWidth<96>());
    } else if constexpr (MaxN == 64) {
        if (count <= 16) return run(TileWidth<16>());
        if (count <= 32) return run(TileWidth<32>());
    } else {
        if (count <= 8) return run(TileWidth<8>());
        if (count <= 16) return run(TileWidth<16>());
    }
    run(TileWidth<MaxN>());
}

/// The threads of one consumer warpgroup.
__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}

/// Called by all threads of all blocks of the cluster before the roles part.
template <DType T, int MaxN>
__device__ __forceinline__ void cluster_begin(uint8_t* shared) {
    using S = ClusterShared<T, MaxN>;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::kStages; ++s) {
            const uint32_t full = shared_address(shared + S::kBarriers + 16 * s);
            mbarrier_init(full, 1);
            mbarrier_init(full + 8, 2 * kClusterBlocks);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
}

/// The copying warp's side of one tile. weights: the packed tile of lane < 8, first chunk, where
/// they come by bulk copies. Boxes of activation rows from (column, row) on, dealt out among the
/// blocks of the cluster.
template <DType T, int MaxN>
__device__ __forceinline__ void cluster_produce(const CUtensorMap& rows,
                                                int column,
                                                int row,
                                                int boxes,
                                                const uint8_t* weights,
                                                int chunks,
                                                int rank,
                                                uint8_t* shared,
                                                WideRing<ClusterShared<T, MaxN>::kStages>& ring) {
    using F = TileFormat<T>;
    using S = ClusterShared<T, MaxN>;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const uint32_t base = shared_address(shared);
    const int box = (lane - 8) % 4, subtile = (lane - 8) / 4;
    const bool copies =
        lane >= 8 && subtile < S::kSubtiles && box < boxes && box % kClusterBlocks == rank;
    constexpr auto kAll = static_cast<uint16_t>((1u << kClusterBlocks) - 1u);
    const uint32_t to = lane < 8
                            ? static_cast<uint32_t>(S::kActivations + lane * F::kBytes)
                            : static_cast<uint32_t>(subtile * S::kSubtile + box * S::kBox * 128);
    const auto bytes = static_cast<uint32_t>(boxes * S::kBox * 128 * S::kSubtiles + S::kWeights);
    column += subtile * 64;
    row += box * S::kBox;
    for (int c = 0; c < chunks * S::kUnits / S::kSubtiles; ++c) {
        const uint32_t stage = base + static_cast<uint32_t>(ring.stage * S::kStage);
        const uint32_t full = base + static_cast<uint32_t>(S::kBarriers + 16 * ring.stage);
        mbarrier_wait(full + 8, ring.phase ^ 1);  // the first round finds every stage free
        if (lane == 0) mbarrier_expect(full, bytes);
        __syncwarp();
        if (lane < 8) {
            if constexpr (S::kWeights != 0) {
                bulk_copy(stage + to, weights, F::kBytes, full);
                weights += F::kBytes;
            }
        } else if (copies) {
            tensor_copy_multicast(stage + to, rows, column, row, full, kAll);
            column += S::kSubtiles * 64;
        }
        ring.advance();
    }
}

/// One chunk of a warp's packed tile in registers, as stored.
template <DType T>
struct RawChunk {
    uint4 words[2];
    uint2 scales;  ///< FP8: the two bytes; FP4: eight bytes of the lane's row pair

    __device__ __forceinline__ void load(const uint8_t* tile, int lane) {
        words[0] = load_once(tile + lane * 16);
        words[1] = load_once(tile + 512 + lane * 16);
        if constexpr (T == DType::kFP8E4M3)
            scales.x = __ldg(reinterpret_cast<const uint16_t*>(tile + 1024));
        else
            scales = __ldg(reinterpret_cast<const uint2*>(tile + 1024 + lane / 4 * 8));
    }
    /// The operands of 64 values of k.
    __device__ __forceinline__ void widen(WideOperand<T>& operand, int unit) const {
        if constexpr (T == DType::kFP8E4M3) {
            operand.widen(words[0], 0, scales.x & 0xFFu);
            operand.widen(words[1], 1, scales.x >> 8);
        } else {
            operand.widen(words[unit], unit == 0 ? scales.x : scales.y);
        }
    }

  private:
    static __device__ __forceinline__ uint4 load_once(const uint8_t* p) {
        uint4 v;
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
        return v;
    }
};

/// A warp's packed tiles, chunk after chunk, two chunks ahead. The last chunks of a tile already
/// load the first ones of the next.
template <DType T>
struct WeightStream {
    RawChunk<T> raw[2];

    __device__ __forceinline__ void begin(const uint8_t* tile, int lane) {
        raw[0].load(tile, lane);
        raw[1].load(tile + TileFormat<T>::kBytes, lane);
    }
};

/// The consumers' side of one tile: sums = this warp's 16 fragment rows · the tile's `count`
/// activation rows (what stands beyond them is nobody's). tile, next_tile: the warp's packed tile
/// and the one after it, where the stream brings them. parked: the warpgroup's, for sums of slices.
template <DType T, int MaxN>
__device__ __forceinline__ void cluster_multiply(float (&sums)[MaxN / 2],
                                                 int count,
                                                 int chunks,
                                                 int slices,
                                                 const uint8_t* tile,
                                                 const uint8_t* next_tile,
                                                 WeightStream<T>& stream,
                                                 uint8_t* shared,
                                                 uint8_t* parked,
                                                 WideRing<ClusterShared<T, MaxN>::kStages>& ring) {
    using F = TileFormat<T>;
    using S = ClusterShared<T, MaxN>;
    constexpr int kUnits = S::kUnits;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t base = shared_address(shared);
    [[maybe_unused]] float before[S::kParks ? 1 : MaxN / 2];
#pragma unroll
    for (int i = 0; i < MaxN / 2; ++i) sums[i] = 0.0f;
    int slice = 0, slice_left = slice_begin(chunks, slices, 1);
    int accumulate = 0, held = -1;  // held: the stage that the wgmma group under way reads
    // One thread a warpgroup and block of the cluster tells that block's copying warp.
    const auto peer = static_cast<int>(threadIdx.x % 128);
    const uint32_t empty = peer < kClusterBlocks ? cluster_address(base + S::kBarriers + 8,
                                                                   static_cast<uint32_t>(peer))
                                                 : 0;
    const auto let_go = [&](int stage) {
        if (peer < kClusterBlocks)
            mbarrier_arrive_cluster(empty + static_cast<uint32_t>(16 * stage));
    };
    const auto multiply = [&](const WideOperand<T>& op, uint64_t rows, int subtile) {
        with_width<MaxN>(count, [&](auto width) {
            constexpr int N = decltype(width)::kN;
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                WgmmaM64<N>::run(
                    *reinterpret_cast<float(*)[N / 2]>(&sums),
                    op.a[s],
                    rows + static_cast<uint64_t>((subtile * S::kSubtile + s * 32) >> 4),
                    s > 0 ? 1 : accumulate);
            }
            wgmma_commit();
        });
        accumulate = 1;
    };
    const auto wait_stage = [&] {
        mbarrier_wait(base + static_cast<uint32_t>(S::kBarriers + 16 * ring.stage), ring.phase);
        return swizzled_descriptor(base + static_cast<uint32_t>(ring.stage * S::kStage));
    };
    // After the last chunk of a slice: its sums are added to those of the slices before.
    const auto end_chunk = [&] {
        if (--slice_left > 0) return;
        wgmma_wait<0>();
        hold_registers(sums);
        if (held >= 0) let_go(held);
        held = -1;
        const bool last = slice + 1 == slices;
        if constexpr (S::kParks) {
            auto* mine = reinterpret_cast<float4*>(parked) + threadIdx.x % 128;
            if (slice == 0 && !last) warpgroup_sync(warp / 4);  // the tile before has been read
#pragma unroll
            for (int i = 0; i < MaxN / 2; i += 4) {
                if (slice > 0) {
                    const float4 v = mine[i * 32];
                    sums[i] = v.x + sums[i];
                    sums[i + 1] = v.y + sums[i + 1];
                    sums[i + 2] = v.z + sums[i + 2];
                    sums[i + 3] = v.w + sums[i + 3];
                }
                if (!last)
                    mine[i * 32] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < MaxN / 2; ++i) {
                if (slice > 0) sums[i] = before[i] + sums[i];
                before[i] = sums[i];
            }
        }
        accumulate = 0;
        ++slice;
        slice_left = slice_begin(chunks, slices, slice + 1) - slice_begin(chunks, slices, slice);
    };
    if constexpr (S::kBlocks == 1) {
        // With two operand sets the previous wgmma group may still be reading the other one.
        WideOperand<T> operand[2];
        const uint8_t* ahead = tile + 2 * F::kBytes;
        int tile_left = chunks - 2;
        const auto run_chunk = [&](RawChunk<T>& raw, WideOperand<T>& even, WideOperand<T>& odd) {
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                WideOperand<T>& op = u == 0 ? even : odd;
                raw.widen(op, u);
                if (u == kUnits - 1) {
                    if (tile_left-- == 0) ahead = next_tile;
                    raw.load(ahead, lane);
                    ahead += F::kBytes;
                }
                multiply(op, wait_stage(), 0);
                wgmma_wait<1>();
                if (held >= 0) let_go(held);
                held = ring.stage;
                ring.advance();
            }
            end_chunk();
        };
        int left = chunks;
        for (; left > 1; left -= 2) {
            run_chunk(stream.raw[0], operand[0], operand[1]);
            if constexpr (kUnits == 2)
                run_chunk(stream.raw[1], operand[0], operand[1]);
            else
                run_chunk(stream.raw[1], operand[1], operand[0]);
        }
        if (left > 0) {
            run_chunk(stream.raw[0], operand[0], operand[1]);
            const RawChunk<T> first = stream.raw[1];  // the next tile begins with the first set
            stream.raw[1] = stream.raw[0];
            stream.raw[0] = first;
        }
    } else {
        WideOperand<T> operand;
        for (int c = 0; c < chunks; ++c) {
            const uint64_t rows = wait_stage();
            const uint8_t* weights =
                shared + ring.stage * S::kStage + S::kActivations + warp * F::kBytes;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                operand.load(weights, u, lane);
                multiply(operand, rows, u);
                wgmma_wait<0>();
            }
            let_go(ring.stage);
            ring.advance();
            end_chunk();
        }
    }
    wgmma_wait<0>();  // nothing is under way; the compiler wants to see it
    hold_registers(sums);
}

/// The finished 64 fragment rows of a warpgroup as bf16: shared row = activation row, kPitch apart.
template <int N, int Pitch>
__device__ __forceinline__ void cluster_stage_rows(const float (&total)[N / 2],
                                                   uint8_t* finished,
                                                   int warp,
                                                   int lane) {
    const uint32_t to =
        shared_address(finished) +
        static_cast<uint32_t>((lane / 16 * 8 + lane % 8) * Pitch + warp * 32 + lane / 8 % 2 * 16);
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        stmatrix_x4_trans(to + static_cast<uint32_t>(j * 8 * Pitch),
                          cvt_bf16x2(total[4 * j], total[4 * j + 1]),
                          cvt_bf16x2(total[4 * j + 2], total[4 * j + 3]),
                          cvt_bf16x2(total[4 * j + 4], total[4 * j + 5]),
                          cvt_bf16x2(total[4 * j + 6], total[4 * j + 7]));
    }
}

}  // namespace deepinfer::cuda
