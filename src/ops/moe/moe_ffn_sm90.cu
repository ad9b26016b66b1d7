// Expert feed-forward for more than a handful of rows an expert, on Hopper's wgmma.
//
// A block takes one expert, 64 hidden columns (gate in the first warpgroup, up in the second) or
// 128 output columns, and N of the expert's slots; it goes on with further slots while the expert
// has them. With too few blocks to fill the chip, the K slices are spread over a cluster, as in
// linear_sm90.cu.
#include "backends/cuda/launch.cuh"
#include "backends/cuda/sm90/matrix_wide.cuh"
#include "backends/cuda/wide_experts.cuh"

namespace deepinfer::cuda {
namespace {

namespace cg = cooperative_groups;

template <int N>
__device__ __forceinline__ WideRows<N> slot_rows(const ExpertParams& p,
                                                 const int32_t* slot_row,
                                                 int slot0,
                                                 int end) {
    WideRows<N> x;
    x.k = p.k;
#pragma unroll
    for (int i = 0; i < WideRows<N>::kCount; ++i) {
        const int slot = slot0 + (static_cast<int>(threadIdx.x) - kWideConsumers) / 8 + 16 * i;
        const bool live = slot < end;
        const int row = live ? (slot_row != nullptr ? slot_row[slot] : slot) : 0;
        x.row[i] = live ? p.x + row * p.x_stride : nullptr;
    }
    return x;
}

template <DType T, int N, bool kUp>
__global__ void __launch_bounds__(kWideThreads, WideShared<T, N>::kBlocks)
    wide_expert_kernel(const __grid_constant__ ExpertParams p) {
    begin_kernel();
    using S = WideShared<T, N>;
    extern __shared__ uint8_t raw[];
    uint8_t* shared = align_1024(raw);
    const cg::cluster_group cluster = cg::this_cluster();
    const int peers = static_cast<int>(cluster.num_blocks()),
              rank = static_cast<int>(cluster.block_rank());
    const int e = static_cast<int>(blockIdx.z);
    const int begin = slot_begin(p.routing, e), end = slot_end(p.routing, e);
    const int block = static_cast<int>(blockIdx.x) / peers;
    const int first = peers > 1 ? rank : 0, last = peers > 1 ? rank + 1 : p.slices;
    const int slot_first = begin + static_cast<int>(blockIdx.y) * N,
              slot_step = static_cast<int>(gridDim.y) * N;
    if (slot_first >= end) return;  // the whole cluster
    wide_begin<T, N>(shared);
    WideRing<S::kStages> ring;
    if (threadIdx.x >= kWideConsumers) {
        setmaxnreg_dec<S::kProducerRegisters>();
        const ExpertPointers expert = p.table != nullptr ? p.table[e] : p.single;
        const auto tile_of = [&](int warp) {
            const uint8_t* matrix = !kUp ? expert.w2 : warp < 4 ? expert.w1 : expert.w3;
            const int tile =
                kUp ? block * 4 + warp % 4
                    : min(block * 8 + warp, (p.n - 1) / 16);  // past the end: never stored
            return matrix + static_cast<int64_t>(tile) * p.chunks * TileFormat<T>::kBytes;
        };
        for (int slot0 = slot_first; slot0 < end; slot0 += slot_step) {
            const WideRows<N> x = slot_rows<N>(p, kUp ? p.routing.slot_row : nullptr, slot0, end);
            wide_produce<T, N>(tile_of,
                               x,
                               slice_begin(p.chunks, p.slices, first),
                               slice_begin(p.chunks, p.slices, last),
                               shared,
                               ring);
            wide_sync(cluster, peers);
            wide_sync(cluster, peers);
        }
        return;
    }
    setmaxnreg_inc<S::kConsumerRegisters>();
    auto* tile = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int share = N / peers;
    for (int slot0 = slot_first; slot0 < end; slot0 += slot_step) {
        float total[N / 2];
        wide_multiply<T, N>(total, p.chunks, p.slices, first, last, shared, ring);
        bar_sync<kWideConsumersDone, kWideConsumers>();
        wide_store_tile<T, N>(total, tile);
        wide_sync(cluster, peers);
        const int token_begin = rank * share, count = min(token_begin + share, end - slot0);
        if constexpr (kUp) {
            for (int i = token_begin * 2 + warp; i < count * 2; i += kWideConsumers / 32) {
                const int token = i / 2, col = i % 2 * 32 + lane;
                const float g = wide_sum(cluster, tile, token * S::kPitch + col, peers),
                            u = wide_sum(cluster, tile, token * S::kPitch + 64 + col, peers);
                const float w =
                    p.routing.slot_weight != nullptr ? p.routing.slot_weight[slot0 + token] : 1.0f;
                p.out[static_cast<int64_t>(slot0 + token) * p.n + block * 64 + col] =
                    hidden_bits(g, u, w, p.limit);
            }
        } else {
            for (int i = token_begin * kWideRows + static_cast<int>(threadIdx.x);
                 i < count * kWideRows;
                 i += kWideConsumers) {
                const int token = i / kWideRows, r = i % kWideRows, col = block * kWideRows + r;
                if (col >= p.n) continue;
                p.out[static_cast<int64_t>(slot0 + token) * p.n + col] =
                    round_bf16_bits(wide_sum(cluster, tile, token * S::kPitch + r, peers));
            }
        }
        wide_sync(cluster, peers);  // nobody overwrites or leaves while its tile is being read
    }
}

template <DType T, int N, bool kUp>
void run_half(Stream& stream, const ExpertParams& p, int experts, double rows) {
    const unsigned blocks = div_up(p.n, kUp ? 64 : kWideRows);
    // Uneven routing: an expert with more rows than this walks its slots in a loop.
    const auto token_blocks = static_cast<unsigned>(rows * (experts > 1 ? 1.25 : 1.0) / N + 0.999);
    const int64_t total = static_cast<int64_t>(blocks) * token_blocks * experts;
    const int peers = slice_peers<N>(total, T == DType::kFP4 ? 2 * p.chunks : p.chunks, p.slices);
    launch_cluster(
        stream,
        kUp ? "wide_expert_up" : "wide_expert_down",
        wide_expert_kernel<T, N, kUp>,
        dim3(blocks * static_cast<unsigned>(peers), token_blocks, static_cast<unsigned>(experts)),
        dim3(kWideThreads),
        WideShared<T, N>::kBytes,
        peers,
        p);
}

template <DType T, int N>
void run(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    run_half<T, N, true>(stream, up, experts, rows);
    run_half<T, N, false>(stream, down, experts, rows);
}

template <DType T>
void pick(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    // Room above the mean, so that one pass over the weights serves nearly every expert.
    if (rows <= (experts > 1 ? 10 : 16)) return run<T, 16>(stream, up, down, experts, rows);
    if (rows <= (experts > 1 ? 22 : 32)) return run<T, 32>(stream, up, down, experts, rows);
    if (rows <= (experts > 1 ? 50 : 64)) return run<T, 64>(stream, up, down, experts, rows);
    run<T, 128>(stream, up, down, experts, rows);
}

}  // namespace

void wide_experts(Stream& stream,
                  DType t,
                  const ExpertParams& up,
                  const ExpertParams& down,
                  int experts,
                  double rows) {
    if (t == DType::kFP4)
        pick<DType::kFP4>(stream, up, down, experts, rows);
    else
        pick<DType::kFP8E4M3>(stream, up, down, experts, rows);
}

}  // namespace deepinfer::cuda
