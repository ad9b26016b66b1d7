// Expert feed-forward on the cluster core: each half is one launch over all tiles of all experts.
//
// Up: a block takes 64 hidden columns, a warpgroup the 32 gate and 32 up rows of one q8 block, so
// that it finishes alone. Down: 128 output columns a block. Activation rows lie in slot order, so a
// tile is a box of a tensor map.
#pragma once

#include <algorithm>
#include <cmath>

#include "backends/cuda/launch.cuh"
#include "backends/cuda/row_map.h"
#include "backends/cuda/sm90/matrix_cluster.cuh"
#include "backends/cuda/wide_experts.cuh"
#include "backends/cuda/wide_linear.cuh"

namespace deepinfer::cuda {

/// Walks the tiles of a cluster: expert by expert, its weight rows, its slots.
struct ExpertWalk {
    int tile;       ///< of the list of all experts
    int first = 0;  ///< first tile of expert e
    int e = 0, begin = 0, end = 0, token_blocks = 0, token_rows = 0;
    int row_block = 0, slot0 = 0, count = 0;  ///< of the cluster, where next() stopped

    /// False when the list is at its end.
    template <int MaxN>
    __device__ __forceinline__ bool next(const Routing& r, int experts, int cluster_rows) {
        while (tile >= first + token_blocks * cluster_rows) {
            first += token_blocks * cluster_rows;
            if (begin_next == experts) return false;
            e = begin_next++;
            begin = slot_begin(r, e);
            end = slot_end(r, e);
            token_blocks = (end - begin + MaxN - 1) / MaxN;
            if (token_blocks > 0) token_rows = tile_rows<MaxN>(end - begin, token_blocks);
        }
        const int i = tile - first;
        row_block = i / token_blocks;
        slot0 = begin + i % token_blocks * token_rows;
        count = min(token_rows, end - slot0);
        return true;
    }
    int begin_next = 0;
};

/// Gate and up sums of a warpgroup's 32 columns to q8: columns 0 .. 31 and 32 .. 63 of the finished
/// tile, already the bf16 that SwiGLU takes. Four lanes a slot.
template <int MaxN, int Pitch>
__device__ __forceinline__ void finish_hidden(const float (&total)[MaxN / 2],
                                              const ExpertParams& p,
                                              int slot0,
                                              int count,
                                              int column,
                                              uint8_t* finished,
                                              int warpgroup) {
    const int lane = static_cast<int>(threadIdx.x) & 31,
              warp = static_cast<int>(threadIdx.x) / 32 % 4,
              thread = static_cast<int>(threadIdx.x) % 128;
    warpgroup_sync(warpgroup);  // the tile before has been read
    cluster_stage_rows<MaxN, Pitch>(total, finished, warp, lane);
    warpgroup_sync(warpgroup);
    for (int token0 = 0; token0 < count; token0 += 32) {
        const int token = token0 + thread / 4, piece = thread % 4 * 8;
        const bool live = token < count;  // idle lanes still take part in the shuffles
        uint4 gate{}, up{};
        float w = 1.0f;
        if (live) {
            gate = *reinterpret_cast<const uint4*>(finished + token * Pitch + piece * 2);
            up = *reinterpret_cast<const uint4*>(finished + token * Pitch + 64 + piece * 2);
            if (p.routing.slot_weight != nullptr) w = p.routing.slot_weight[slot0 + token];
        }
        const auto* g = reinterpret_cast<const uint16_t*>(&gate);
        auto* u = reinterpret_cast<uint16_t*>(&up);
        float amax = 1e-4f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            u[i] = swiglu_bits(bf16_value(g[i]), bf16_value(u[i]), w, p.limit);
            amax = fmaxf(amax, fabsf(bf16_value(u[i])));
        }
        const uint32_t scale = q8_scale(group_max<4>(amax));
#pragma unroll
        for (int i = 0; i < 8; ++i) u[i] = q8_bits(bf16_value(u[i]), scale);
        if (live)
            *reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(slot0 + token) * p.n + column +
                                      piece) = up;
    }
}

template <int MaxN, int Pitch>
__device__ __forceinline__ void finish_output(const float (&total)[MaxN / 2],
                                              const ExpertParams& p,
                                              int slot0,
                                              int count,
                                              int column,
                                              uint8_t* finished,
                                              int warpgroup) {
    const int lane = static_cast<int>(threadIdx.x) & 31,
              warp = static_cast<int>(threadIdx.x) / 32 % 4,
              thread = static_cast<int>(threadIdx.x) % 128;
    warpgroup_sync(warpgroup);  // the tile before has been read
    cluster_stage_rows<MaxN, Pitch>(total, finished, warp, lane);
    warpgroup_sync(warpgroup);
    for (int j = thread; j < count * 8; j += 128) {
        const int token = j / 8, piece = j % 8 * 8;
        if (column + piece >= p.n) continue;
        *reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(slot0 + token) * p.n + column +
                                  piece) =
            *reinterpret_cast<const uint4*>(finished + token * Pitch + piece * 2);
    }
}

/// Row tile `slot` (0 .. 7) of a block of weight rows. Past the end: computed, never stored.
template <DType T, bool kUp>
__device__ __forceinline__ const uint8_t* packed_tile(const ExpertParams& p,
                                                      int e,
                                                      int block,
                                                      int slot) {
    const ExpertPointers expert = p.table != nullptr ? p.table[e] : p.single;
    const uint8_t* matrix = !kUp ? expert.w2 : slot % 4 < 2 ? expert.w1 : expert.w3;
    const int tile = kUp ? block * 4 + slot / 4 * 2 + slot % 2 : block * 8 + slot,
              last = (p.n + 15) / 16 - 1;
    return matrix + static_cast<int64_t>(min(tile, last)) * p.chunks * TileFormat<T>::kBytes;
}

template <DType T, int MaxN, bool kUp>
__global__ void __launch_bounds__(kClusterThreads, ClusterShared<T, MaxN>::kBlocks)
    cluster_expert_kernel(const __grid_constant__ ExpertParams p,
                          const __grid_constant__ CUtensorMap rows,
                          int experts) {
    begin_kernel();
    using S = ClusterShared<T, MaxN>;
    extern __shared__ uint8_t raw[];
    uint8_t* shared = align_1024(raw);
    const int rank = static_cast<int>(blockIdx.x) % kClusterBlocks;
    const int clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
    constexpr int kColumns = kUp ? 64 : kClusterRows;
    const int cluster_rows = (p.n + kColumns * kClusterBlocks - 1) / (kColumns * kClusterBlocks);
    ExpertWalk walk{};
    walk.tile = static_cast<int>(blockIdx.x) / kClusterBlocks;
    cluster_begin<T, MaxN>(shared);
    WideRing<S::kStages> ring;
    if (threadIdx.x >= kClusterConsumers) {
        setmaxnreg_dec<S::kProducerRegisters>();
        if (threadIdx.x < kClusterConsumers + 32) {
            const int lane = static_cast<int>(threadIdx.x) & 31;
            if (lane == 0) prefetch_tensor_map(rows);
            for (; walk.next<MaxN>(p.routing, experts, cluster_rows); walk.tile += clusters) {
                cluster_produce<T, MaxN>(
                    rows,
                    0,
                    walk.slot0,
                    (walk.count + S::kBox - 1) / S::kBox,
                    packed_tile<T, kUp>(
                        p, walk.e, walk.row_block * kClusterBlocks + rank, lane % 8),
                    p.chunks,
                    rank,
                    shared,
                    ring);
            }
        }
    } else {
        setmaxnreg_inc<S::kConsumerRegisters>();
        const int warpgroup = static_cast<int>(threadIdx.x) / 128;
        uint8_t* finished = shared + S::kFinishedAt + warpgroup * S::kFinished;
        const int lane = static_cast<int>(threadIdx.x) & 31,
                  slot = static_cast<int>(threadIdx.x) / 32;
        WeightStream<T> stream;
        const uint8_t* next = nullptr;
        bool more = walk.next<MaxN>(p.routing, experts, cluster_rows);
        constexpr bool kLoads = S::kWeights == 0;  // consumers load their weights themselves
        if (kLoads && more) {
            next = packed_tile<T, kUp>(p, walk.e, walk.row_block * kClusterBlocks + rank, slot);
            stream.begin(next, lane);
        }
        for (ExpertWalk ahead = walk; more; walk = ahead) {
            const uint8_t* packed = next;
            ahead.tile += clusters;
            more = ahead.next<MaxN>(p.routing, experts, cluster_rows);
            if (kLoads && more)
                next =
                    packed_tile<T, kUp>(p, ahead.e, ahead.row_block * kClusterBlocks + rank, slot);
            const int block = walk.row_block * kClusterBlocks + rank, count = walk.count;
            float total[MaxN / 2];
            cluster_multiply<T, MaxN>(
                total, count, p.chunks, p.slices, packed, next, stream, shared, finished, ring);
            const int column = block * kColumns + warpgroup * (kColumns / 2);
            if constexpr (kUp) {
                if (column < p.n)  // the same for the whole warpgroup
                    finish_hidden<MaxN, S::kPitch>(
                        total, p, walk.slot0, count, column, finished, warpgroup);
            } else {
                finish_output<MaxN, S::kPitch>(
                    total, p, walk.slot0, count, column, finished, warpgroup);
            }
            __syncwarp();
        }
    }
    __syncwarp();
    cluster_sync();  // nobody leaves while another block still copies to it or tells it
}

template <DType T, int MaxN, bool kUp>
void run_cluster_half(Stream& stream, const ExpertParams& p, int experts) {
    using S = ClusterShared<T, MaxN>;
    const int slots = p.routing.num_slots;
    const CUtensorMap rows = row_map(cuda_stream(stream), p.x, p.k, slots, p.x_stride, S::kBox);
    const int64_t cluster_rows = div_up(p.n, (kUp ? 64 : kClusterRows) * kClusterBlocks),
                  most = cluster_rows * (slots / MaxN + experts);
    const auto clusters =
        static_cast<unsigned>(std::min<int64_t>(most, 132 * S::kBlocks / kClusterBlocks));
    launch_cluster(stream,
                   kUp ? "cluster_expert_up" : "cluster_expert_down",
                   cluster_expert_kernel<T, MaxN, kUp>,
                   dim3(clusters * kClusterBlocks),
                   dim3(kClusterThreads),
                   S::kBytes,
                   kClusterBlocks,
                   p,
                   rows,
                   experts);
}

template <DType T, int MaxN>
void run_cluster_experts(Stream& stream,
                         const ExpertParams& up,
                         const ExpertParams& down,
                         int experts) {
    run_cluster_half<T, MaxN, true>(stream, up, experts);
    run_cluster_half<T, MaxN, false>(stream, down, experts);
}

/// What an expert's tiles cost a step of 64 values of k, for about `rows` slots: the mean over a
/// usual spread.
template <int MaxN>
double expert_step_us(double rows) {
    double sum = 0;
    for (const double off : {-1.0, 0.0, 1.0}) {
        const int n = static_cast<int>(rows + off * std::sqrt(rows)) + 1,
                  tiles = (n + MaxN - 1) / MaxN;
        sum += tiles * cluster_step_us(tile_rows<MaxN>(n, tiles)) / 3;
    }
    return sum;
}

/// For more than 64 slots an expert.
template <DType T>
void pick_cluster_experts(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    if (expert_step_us<192>(rows) <= expert_step_us<256>(rows))
        return run_cluster_experts<T, 192>(stream, up, down, experts);
    run_cluster_experts<T, 256>(stream, up, down, experts);
}

}  // namespace deepinfer::cuda
