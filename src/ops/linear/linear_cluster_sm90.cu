// Linear layers for very many activation rows: the cluster core over a list of tiles.
#include <algorithm>

#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/packed_weight.h"
#include "backends/cuda/row_map.h"
#include "backends/cuda/sm90/matrix_cluster.cuh"
#include "backends/cuda/wide_linear.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kSpan = 8;  ///< tiles of activation rows whose blocks run together, for L2

constexpr int kClusters = 132 / kClusterBlocks;

/// Clusters' worth of weight rows.
__host__ __device__ inline int cluster_row_count(int rows) {
    constexpr int kRows = kClusterRows * kClusterBlocks;
    return (rows + kRows - 1) / kRows;
}

struct Tile {
    int group, row_block, token_block;
};

/// Tile i of the list: groups, spans of activation rows, weight rows, activation rows within a
/// span.
__device__ __forceinline__ Tile tile_at(int i, int cluster_rows, int token_blocks, int rank) {
    const int per_group = cluster_rows * token_blocks, group = i / per_group;
    i -= group * per_group;
    const int span = i / (cluster_rows * kSpan), width = min(kSpan, token_blocks - span * kSpan);
    i -= span * cluster_rows * kSpan;
    return {group, i / width * kClusterBlocks + rank, span * kSpan + i % width};
}

/// Row tile `slot` (0 .. 7) of a block. Past the end of the group: computed, never stored.
template <DType T>
__device__ __forceinline__ const uint8_t* packed_tile(const LinearParams& p,
                                                      const Tile& t,
                                                      int slot) {
    const int first = t.group * p.group_rows / 16, last = (p.group_rows + 15) / 16 - 1,
              tile = first + min(t.row_block * 8 + slot, last);
    return p.packed + static_cast<int64_t>(tile) * p.chunks * TileFormat<T>::kBytes;
}

template <DType T, int MaxN>
__global__ void __launch_bounds__(kClusterThreads, ClusterShared<T, MaxN>::kBlocks)
    cluster_linear_kernel(const __grid_constant__ LinearParams p,
                          const __grid_constant__ CUtensorMap rows,
                          int groups) {
    begin_kernel();
    using S = ClusterShared<T, MaxN>;
    extern __shared__ uint8_t raw[];
    uint8_t* shared = align_1024(raw);
    const int rank = static_cast<int>(blockIdx.x) % kClusterBlocks;
    const int cluster = static_cast<int>(blockIdx.x) / kClusterBlocks,
              clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
    const int cluster_rows = cluster_row_count(p.group_rows);
    const int token_blocks = (p.num_rows + MaxN - 1) / MaxN,
              token_rows = tile_rows<MaxN>(p.num_rows, token_blocks);
    const int tiles = groups * cluster_rows * token_blocks;
    cluster_begin<T, MaxN>(shared);
    WideRing<S::kStages> ring;
    if (threadIdx.x >= kClusterConsumers) {
        setmaxnreg_dec<S::kProducerRegisters>();
        if (threadIdx.x < kClusterConsumers + 32) {
            const int lane = static_cast<int>(threadIdx.x) & 31;
            if (lane == 0) prefetch_tensor_map(rows);
            for (int i = cluster; i < tiles; i += clusters) {
                const Tile t = tile_at(i, cluster_rows, token_blocks, rank);
                const int token0 = t.token_block * token_rows;
                cluster_produce<T, MaxN>(
                    rows,
                    t.group * p.k,
                    token0,
                    (min(token_rows, p.num_rows - token0) + S::kBox - 1) / S::kBox,
                    packed_tile<T>(p, t, lane % 8),
                    p.chunks,
                    rank,
                    shared,
                    ring);
            }
        }
    } else {
        setmaxnreg_inc<S::kConsumerRegisters>();
        const int lane = static_cast<int>(threadIdx.x) & 31,
                  warp = static_cast<int>(threadIdx.x) / 32 % 4,
                  warpgroup = static_cast<int>(threadIdx.x) / 128,
                  thread = static_cast<int>(threadIdx.x) % 128;
        uint8_t* finished = shared + S::kFinishedAt + warpgroup * S::kFinished;
        const bool wide_stores = !p.out_f32 && reinterpret_cast<uintptr_t>(p.out) % 16 == 0 &&
                                 p.out_stride % 8 == 0 && p.group_rows % 8 == 0;
        const int slot = warpgroup * 4 + warp;
        WeightStream<T> stream;
        const uint8_t* next =
            packed_tile<T>(p, tile_at(cluster, cluster_rows, token_blocks, rank), slot);
        stream.begin(next, lane);
        for (int i = cluster; i < tiles; i += clusters) {
            const Tile t = tile_at(i, cluster_rows, token_blocks, rank);
            const uint8_t* packed = next;
            if (i + clusters < tiles)
                next = packed_tile<T>(
                    p, tile_at(i + clusters, cluster_rows, token_blocks, rank), slot);
            const int group_end = (t.group + 1) * p.group_rows,
                      row0 = t.group * p.group_rows + t.row_block * kClusterRows + warpgroup * 64;
            const int token0 = t.token_block * token_rows,
                      count = min(token_rows, p.num_rows - token0);
            float total[MaxN / 2];
            cluster_multiply<T, MaxN>(
                total, count, p.chunks, p.slices, packed, next, stream, shared, finished, ring);
            const int row = row0 + warp * 16 + lane / 4;  // and 8 further
            if (p.bias != nullptr) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float bias = row + 8 * h < group_end ? p.bias[row + 8 * h] : 0.0f;
#pragma unroll
                    for (int j = 0; j < MaxN / 8; ++j) {
                        total[4 * j + 2 * h] += bias;
                        total[4 * j + 2 * h + 1] += bias;
                    }
                }
            }
            if (wide_stores) {
                warpgroup_sync(warpgroup);  // the tile before has been read
                cluster_stage_rows<MaxN, S::kPitch>(total, finished, warp, lane);
                warpgroup_sync(warpgroup);
                for (int j = thread; j < count * 8; j += 128) {
                    const int token = j / 8, piece = j % 8 * 8;
                    if (row0 + piece >= group_end) continue;
                    auto* to = static_cast<uint16_t*>(p.out) +
                               static_cast<int64_t>(token0 + token) * p.out_stride + row0 + piece;
                    *reinterpret_cast<uint4*>(to) =
                        *reinterpret_cast<const uint4*>(finished + token * S::kPitch + piece * 2);
                }
                continue;
            }
#pragma unroll
            for (int j = 0; j < MaxN / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int token = j * 8 + lane % 4 * 2 + c % 2, r = row + c / 2 * 8;
                    if (token >= count || r >= group_end) continue;
                    const int64_t to = static_cast<int64_t>(token0 + token) * p.out_stride + r;
                    if (p.out_f32)
                        static_cast<float*>(p.out)[to] = total[4 * j + c];
                    else
                        static_cast<uint16_t*>(p.out)[to] = round_bf16_bits(total[4 * j + c]);
                }
            }
        }
    }
    __syncwarp();
    cluster_sync();  // nobody leaves while another block still copies to it or tells it
}

template <DType T, int MaxN>
void run(Stream& stream, const char* name, const LinearParams& p, int groups) {
    using S = ClusterShared<T, MaxN>;
    const CUtensorMap rows =
        row_map(cuda_stream(stream), p.x, p.k * groups, p.num_rows, p.x_stride, S::kBox);
    const int64_t tiles =
        static_cast<int64_t>(groups) * cluster_row_count(p.group_rows) * div_up(p.num_rows, MaxN);
    const auto clusters = static_cast<unsigned>(std::min<int64_t>(tiles, kClusters));
    launch_cluster(stream,
                   name,
                   cluster_linear_kernel<T, MaxN>,
                   dim3(clusters * kClusterBlocks),
                   dim3(kClusterThreads),
                   S::kBytes,
                   kClusterBlocks,
                   p,
                   rows,
                   groups);
}

/// Waves of clusters times a tile's microseconds.
template <int MaxN>
double estimate(const LinearParams& p, int groups) {
    const int token_blocks = static_cast<int>(div_up(p.num_rows, MaxN));
    const int64_t tiles =
        static_cast<int64_t>(groups) * cluster_row_count(p.group_rows) * token_blocks;
    return static_cast<double>((tiles + kClusters - 1) / kClusters) *
           cluster_tile_us<MaxN>(p.num_rows, token_blocks, (p.k + 63) / 64);
}

}  // namespace

bool cluster_linear_takes(const LinearParams& p, DType t, int groups, double otherwise_us) {
    if (t != DType::kFP8E4M3 && t != DType::kFP4) return false;
    if (p.num_rows <= 32 || p.chunks < 2 || !wide_linear_takes(p, groups)) return false;
    if (groups > 1 && p.k % packed_chunk(t) != 0) return false;  // boxes end with the whole row
    return std::min(
               {estimate<128>(p, groups), estimate<192>(p, groups), estimate<256>(p, groups)}) <
           otherwise_us;
}

void cluster_linear(Stream& stream, const char* name, DType t, const LinearParams& p, int groups) {
    if (t == DType::kFP4) return run<DType::kFP4, 128>(stream, name, p, groups);
    const double n128 = estimate<128>(p, groups), n192 = estimate<192>(p, groups),
                 n256 = estimate<256>(p, groups);
    if (n128 <= n192 && n128 <= n256) return run<DType::kFP8E4M3, 128>(stream, name, p, groups);
    if (n192 <= n256) return run<DType::kFP8E4M3, 192>(stream, name, p, groups);
    run<DType::kFP8E4M3, 256>(stream, name, p, groups);
}

}  // namespace deepinfer::cuda
