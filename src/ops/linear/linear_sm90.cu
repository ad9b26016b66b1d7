// Linear layers for many activation rows on Hopper's wgmma.
//
// Few row blocks: the K slices of a block go to the blocks of one cluster, which add their tiles in
// slice order through distributed shared memory. Many: one block walks all slices. The sum is the
// same.
#include "backends/cuda/launch.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/packed_weight.h"
#include "backends/cuda/sm90/matrix_wide.cuh"
#include "backends/cuda/wide_linear.cuh"

namespace deepinfer::cuda {
namespace {

namespace cg = cooperative_groups;

template <DType T, int N>
__global__ void __launch_bounds__(kWideThreads, WideShared<T, N>::kBlocks)
    wide_linear_kernel(const __grid_constant__ LinearParams p) {
    begin_kernel();
    using S = WideShared<T, N>;
    extern __shared__ uint8_t raw[];
    uint8_t* shared = align_1024(raw);
    const cg::cluster_group cluster = cg::this_cluster();
    const int peers = static_cast<int>(cluster.num_blocks()),
              rank = static_cast<int>(cluster.block_rank());
    const int group = static_cast<int>(blockIdx.z), group_end = (group + 1) * p.group_rows;
    const int row0 = group * p.group_rows + static_cast<int>(blockIdx.x) / peers * kWideRows;
    const int token0 = static_cast<int>(blockIdx.y) * N;
    const int first = peers > 1 ? rank : 0, last = peers > 1 ? rank + 1 : p.slices;
    wide_begin<T, N>(shared);
    WideRing<S::kStages> ring;
    if (threadIdx.x >= kWideConsumers) {
        setmaxnreg_dec<S::kProducerRegisters>();
        WideRows<N> x;
        x.k = p.k;
#pragma unroll
        for (int i = 0; i < WideRows<N>::kCount; ++i) {
            const int token =
                token0 + (static_cast<int>(threadIdx.x) - kWideConsumers) / 8 + 16 * i;
            x.row[i] = token < p.num_rows
                           ? p.x + token * p.x_stride + static_cast<int64_t>(group) * p.k
                           : nullptr;
        }
        const auto tile_of = [&](int warp) {
            const int tile =
                min(row0 / 16 + warp, (group_end - 1) / 16);  // past the end: never stored
            return p.packed + static_cast<int64_t>(tile) * p.chunks * TileFormat<T>::kBytes;
        };
        wide_produce<T, N>(tile_of,
                           x,
                           slice_begin(p.chunks, p.slices, first),
                           slice_begin(p.chunks, p.slices, last),
                           shared,
                           ring);
        wide_sync(cluster, peers);
        wide_sync(cluster, peers);
        return;
    }
    setmaxnreg_inc<S::kConsumerRegisters>();
    float total[N / 2];
    wide_multiply<T, N>(total, p.chunks, p.slices, first, last, shared, ring);
    auto* mine = reinterpret_cast<float*>(shared);
    bar_sync<kWideConsumersDone, kWideConsumers>();
    wide_store_tile<T, N>(total, mine);
    wide_sync(cluster, peers);
    // This block finishes its share of the activation rows: the peers' tiles in ascending slice.
    const int share = N / peers;
    for (int i = static_cast<int>(threadIdx.x); i < share * kWideRows; i += kWideConsumers) {
        const int token = rank * share + i / kWideRows, r = i % kWideRows;
        if (token0 + token >= p.num_rows || row0 + r >= group_end) continue;
        const int at = token * S::kPitch + r;
        float y = wide_sum(cluster, mine, at, peers);
        if (p.bias != nullptr) y += p.bias[row0 + r];
        const int64_t dst = (token0 + token) * p.out_stride + row0 + r;
        if (p.out_f32)
            static_cast<float*>(p.out)[dst] = y;
        else
            static_cast<uint16_t*>(p.out)[dst] = round_bf16_bits(y);
    }
    wide_sync(cluster, peers);  // nobody leaves while its tile is being read
}

template <DType T, int N>
void run(Stream& stream, const char* name, const LinearParams& p, int groups) {
    const unsigned row_blocks = div_up(p.group_rows, kWideRows),
                   token_blocks = div_up(p.num_rows, N);
    const int64_t blocks = static_cast<int64_t>(row_blocks) * token_blocks * groups;
    const int peers = slice_peers<N>(blocks, p.chunks, p.slices);
    launch_cluster(
        stream,
        name,
        wide_linear_kernel<T, N>,
        dim3(
            row_blocks * static_cast<unsigned>(peers), token_blocks, static_cast<unsigned>(groups)),
        dim3(kWideThreads),
        WideShared<T, N>::kBytes,
        peers,
        p);
}

template <DType T>
void pick(Stream& stream, const char* name, const LinearParams& p, int groups) {
    if (p.num_rows <= 16) return run<T, 16>(stream, name, p, groups);
    if (p.num_rows <= 32) return run<T, 32>(stream, name, p, groups);
    if (p.num_rows <= 64) return run<T, 64>(stream, name, p, groups);
    run<T, 128>(stream, name, p, groups);
}

}  // namespace

bool wide_linear_takes(const LinearParams& p, int groups) {
    return p.aligned && (groups == 1 || p.group_rows % 16 == 0);
}

double wide_linear_us(DType t, const LinearParams& p, int groups) {
    const int64_t row_blocks = static_cast<int64_t>(div_up(p.group_rows, kWideRows)) * groups;
    const int chunks = t == DType::kFP4 ? 2 * p.chunks : p.chunks;
    if (p.num_rows > 64) {
        const int64_t blocks = row_blocks * div_up(p.num_rows, 128);
        return wide_us<128>(blocks, chunks, slice_peers<128>(blocks, chunks, p.slices));
    }
    // Two blocks a multiprocessor: what is measured is a tenth more once they share one.
    const int peers = slice_peers<64>(row_blocks, chunks, p.slices);
    const double shared = row_blocks * peers > 132 ? 1.1 : 1.0;
    return shared * wide_us<64>(row_blocks, chunks, peers);
}

void wide_linear(Stream& stream, const char* name, DType t, const LinearParams& p, int groups) {
    switch (t) {
        case DType::kFP8E4M3:
            return pick<DType::kFP8E4M3>(stream, name, p, groups);
        case DType::kFP4:
            return pick<DType::kFP4>(stream, name, p, groups);
        case DType::kBF16:
            return pick<DType::kBF16>(stream, name, p, groups);
        default:
            DI_CHECK_MSG(false, dtype_name(t));
    }
}

}  // namespace deepinfer::cuda
