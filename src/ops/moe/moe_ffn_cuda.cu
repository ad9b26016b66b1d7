// Mixture-of-experts feed-forward on the device, routing included: nothing goes back to the host.
//
//   route    one block an expert lists its (row, choice) pairs: slots of one expert are neighbours
//   up       gate and up rows of 32 columns in one warp, SwiGLU and q8 where the sums are added ->
//   hidden[slot] down     hidden[slot] · w2, rounded to bf16 -> y[slot] combine  the row's slots in
//   ascending choice (ids are ascending), then the shared expert, one rounding
//
// The shared expert runs through the same up and down kernels as a list of one expert with every
// row. A slot's numbers never depend on which slot it is (matrix_tile.cuh).
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/matrix_tile.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/packed_weight.h"
#include "backends/cuda/views.cuh"
#include "backends/cuda/wide_experts.cuh"

namespace deepinfer::cuda {
namespace {

/// Block e counts the pairs of smaller experts and places its own in pair order. Warps take
/// segments in ascending order: first all count, then each places what is its.
template <int Threads>
__global__ void __launch_bounds__(Threads) route_kernel(const int32_t* __restrict__ ids,
                                                        const float* __restrict__ weights,
                                                        int pairs,
                                                        int k,
                                                        int experts,
                                                        Routing r) {
    begin_kernel();
    constexpr int kWarps = Threads / 32;
    __shared__ int all_smaller[kWarps], all_mine[kWarps];
    const int e = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) & 31,
              warp = static_cast<int>(threadIdx.x) / 32;
    const int segment = (pairs + Threads - 1) / Threads * 32, first = warp * segment,
              last = min(pairs, first + segment);
    int smaller = 0, mine = 0;
#pragma unroll 4
    for (int i = first; i < last; i += 32) {
        const int id = i + lane < last ? ids[i + lane] : experts;
        smaller += __popc(__ballot_sync(0xFFFFFFFFu, id < e));
        mine += __popc(__ballot_sync(0xFFFFFFFFu, id == e));
    }
    if (lane == 0) {
        all_smaller[warp] = smaller;
        all_mine[warp] = mine;
    }
    __syncthreads();
    int begin = 0, before = 0, total = 0;
    for (int w = 0; w < kWarps; ++w) {
        begin += all_smaller[w];
        if (w < warp) before += all_mine[w];
        total += all_mine[w];
    }
    int at = begin + before;
#pragma unroll 4
    for (int i = first; i < last; i += 32) {
        const bool found = i + lane < last && ids[i + lane] == e;
        const uint32_t mask = __ballot_sync(0xFFFFFFFFu, found);
        if (found) {
            const int slot = at + __popc(mask & ((1u << lane) - 1u));
            r.slot_row[slot] = (i + lane) / k;
            r.slot_weight[slot] = weights[i + lane];
            r.pair_slot[i + lane] = slot;
        }
        at += __popc(mask);
    }
    if (threadIdx.x == 0) {
        r.begin[e] = begin;
        if (e == experts - 1) r.begin[experts] = begin + total;
    }
}

/// Gate and up: a warp's four row tiles are rows b·32 .. b·32 + 31 of w1 and the same of w3.
template <DType T, int NT, int W>
__global__ void __launch_bounds__(W * 32) expert_up_kernel(const __grid_constant__ ExpertParams p) {
    begin_kernel();
    constexpr int R = 4;
    using S = MatrixShared<T, R, NT, W>;
    extern __shared__ __align__(16) uint8_t shared[];
    const int begin = slot_begin(p.routing, static_cast<int>(blockIdx.y)),
              end = slot_end(p.routing, static_cast<int>(blockIdx.y));
    if (begin == end) return;
    auto** rows = reinterpret_cast<const uint16_t**>(shared + S::kBody);
    auto* partials = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int slice = warp % p.slices, mg = warp / p.slices, row_groups = W / p.slices;
    const ExpertPointers expert = expert_of(p);
    const int blocks = p.n / 32;
    const int block0 = static_cast<int>(blockIdx.x) * row_groups;
    const int mine = min(block0 + mg, blocks - 1);  // past the end: computed, never stored
    const uint8_t* tiles[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int64_t tile =
            static_cast<int64_t>(mine * 2 + r % 2) * p.chunks * TileFormat<T>::kBytes;
        tiles[r] = (r < 2 ? expert.w1 : expert.w3) + tile;
    }
    for (int slot0 = begin; slot0 < end; slot0 += 8 * NT) {
        __syncthreads();  // the last tile's sums have been read
        if (threadIdx.x < 8 * NT) {
            const int slot = slot0 + static_cast<int>(threadIdx.x);
            const int row =
                slot < end ? (p.routing.slot_row != nullptr ? p.routing.slot_row[slot] : slot) : 0;
            rows[threadIdx.x] = slot < end ? p.x + row * p.x_stride : nullptr;
        }
        __syncthreads();
        float acc[R][NT][4];
        multiply_slice<T, R, NT>(acc,
                                 tiles,
                                 RowSource{rows, p.k, p.aligned},
                                 slice_begin(p.chunks, p.slices, slice),
                                 slice_begin(p.chunks, p.slices, slice + 1),
                                 shared + warp * S::kStages * S::kStage);
        __syncthreads();
        store_partials<R, NT>(acc, partials, p.slices, mg, slice);
        __syncthreads();
        const int count = min(8 * NT, end - slot0);
        for (int i = warp; i < row_groups * count; i += W) {
            const int group = i % row_groups, token = i / row_groups;
            if (block0 + group >= blocks) continue;
            const float g =
                add_slices<NT>(partials, p.slices, group * R + lane / 16, token, lane % 16);
            const float u =
                add_slices<NT>(partials, p.slices, group * R + 2 + lane / 16, token, lane % 16);
            const float w =
                p.routing.slot_weight != nullptr ? p.routing.slot_weight[slot0 + token] : 1.0f;
            p.out[static_cast<int64_t>(slot0 + token) * p.n + (block0 + group) * 32 + lane] =
                hidden_bits(g, u, w, p.limit);
        }
    }
}

template <DType T, int NT, int W>
__global__ void __launch_bounds__(W * 32)
    expert_down_kernel(const __grid_constant__ ExpertParams p) {
    begin_kernel();
    constexpr int R = 2;
    using S = MatrixShared<T, R, NT, W>;
    extern __shared__ __align__(16) uint8_t shared[];
    const int begin = slot_begin(p.routing, static_cast<int>(blockIdx.y)),
              end = slot_end(p.routing, static_cast<int>(blockIdx.y));
    if (begin == end) return;
    auto** rows = reinterpret_cast<const uint16_t**>(shared + S::kBody);
    auto* partials = reinterpret_cast<float*>(shared);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int slice = warp % p.slices, mg = warp / p.slices, row_groups = W / p.slices;
    const int tile0 = static_cast<int>(blockIdx.x) * row_groups * R, last_tile = (p.n - 1) / 16;
    const ExpertPointers expert = expert_of(p);
    const uint8_t* tiles[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        tiles[r] = expert.w2 + static_cast<int64_t>(min(tile0 + mg * R + r, last_tile)) * p.chunks *
                                   TileFormat<T>::kBytes;
    }
    for (int slot0 = begin; slot0 < end; slot0 += 8 * NT) {
        __syncthreads();
        if (threadIdx.x < 8 * NT) {
            const int slot = slot0 + static_cast<int>(threadIdx.x);
            rows[threadIdx.x] = slot < end ? p.x + slot * p.x_stride : nullptr;
        }
        __syncthreads();
        float acc[R][NT][4];
        multiply_slice<T, R, NT>(acc,
                                 tiles,
                                 RowSource{rows, p.k, p.aligned},
                                 slice_begin(p.chunks, p.slices, slice),
                                 slice_begin(p.chunks, p.slices, slice + 1),
                                 shared + warp * S::kStages * S::kStage);
        __syncthreads();
        store_partials<R, NT>(acc, partials, p.slices, mg, slice);
        __syncthreads();
        const int count = min(8 * NT, end - slot0), block_rows = row_groups * R * 16;
        for (int i = static_cast<int>(threadIdx.x); i < block_rows * count; i += W * 32) {
            const int r = i % block_rows, token = i / block_rows, col = tile0 * 16 + r;
            if (col >= p.n) continue;
            p.out[static_cast<int64_t>(slot0 + token) * p.n + col] =
                round_bf16_bits(add_slices<NT>(partials, p.slices, r / 16, token, r % 16));
        }
    }
}

constexpr int kCombineThreads = 128;

/// Eight columns a thread.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const uint16_t* __restrict__ y,
                   const int32_t* __restrict__ pair_slot,
                   const uint16_t* __restrict__ shared_y,
                   int k,
                   int d,
                   Bf16Rows out) {
    begin_kernel();
    const int j =
        (static_cast<int>(blockIdx.x) * kCombineThreads + static_cast<int>(threadIdx.x)) * 8;
    if (j >= d) return;
    const int64_t t = blockIdx.y;
    float sum[8] = {};
    const auto add = [&](const uint16_t* row) {
        const Bf16x8 v = load8(row + j, true);
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[c] += bf16_value(v.v[c]);
    };
#pragma unroll 6
    for (int i = 0; i < k; ++i) add(y + static_cast<int64_t>(pair_slot[t * k + i]) * d);
    add(shared_y + t * d);
    Bf16x8 rounded;
#pragma unroll
    for (int c = 0; c < 8; ++c) rounded.v[c] = round_bf16_bits(sum[c]);
    store8(out.row(t) + j, rounded, out.aligned);
}

__global__ void __launch_bounds__(256) swiglu_kernel(Bf16Rows gate,
                                                     Bf16Rows up,
                                                     const float* __restrict__ weight,
                                                     float limit,
                                                     int64_t total,
                                                     int n,
                                                     Bf16Rows out) {
    begin_kernel();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (i >= total) return;
    const int64_t t = i / n;
    const int j = static_cast<int>(i % n);
    const float w = weight != nullptr ? weight[t] : 1.0f;
    out.row(t)[j] = round_bf16_bits(
        swiglu_value(bf16_value(gate.row(t)[j]), bf16_value(up.row(t)[j]), w, limit));
}

template <DType T, int NT>
void run_experts(Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts) {
    // Four warps a block where the slices allow it: with few rows the blocks are few, and half as
    // large ones spread more evenly over the multiprocessors.
    if (up.slices <= 4) {
        launch(stream,
               "expert_up",
               expert_up_kernel<T, NT, 4>,
               dim3(div_up(up.n / 32, 4 / up.slices), static_cast<unsigned>(experts)),
               dim3(128),
               MatrixShared<T, 4, NT, 4>::kBytes,
               up);
    } else {
        launch(stream,
               "expert_up",
               expert_up_kernel<T, NT, 8>,
               dim3(div_up(up.n / 32, 8 / up.slices), static_cast<unsigned>(experts)),
               dim3(256),
               MatrixShared<T, 4, NT, 8>::kBytes,
               up);
    }
    if (down.slices <= 4) {
        launch(stream,
               "expert_down",
               expert_down_kernel<T, NT, 4>,
               dim3(div_up(down.n, 4 / down.slices * 32), static_cast<unsigned>(experts)),
               dim3(128),
               MatrixShared<T, 2, NT, 4>::kBytes,
               down);
    } else {
        launch(stream,
               "expert_down",
               expert_down_kernel<T, NT, 8>,
               dim3(div_up(down.n, 8 / down.slices * 32), static_cast<unsigned>(experts)),
               dim3(256),
               MatrixShared<T, 2, NT, 8>::kBytes,
               down);
    }
}

/// `rows`: activation rows an expert typically has.
template <DType T>
void pick_experts(
    Stream& stream, const ExpertParams& up, const ExpertParams& down, int experts, double rows) {
    if (rows <= 5) return run_experts<T, 1>(stream, up, down, experts);
    if (cluster_experts_take(T, up, down, experts, rows))
        return cluster_experts(stream, T, up, down, experts, rows);
    if (up.aligned && up.n % 64 == 0) return wide_experts(stream, T, up, down, experts, rows);
    run_experts<T, 2>(stream, up, down, experts);
}

struct Sizes {
    int64_t rows, d, inter;
};

void feed_forward(Stream& stream,
                  const ExpertWeights& like,
                  const ExpertPointers* table,
                  int experts,
                  const Routing& routing,
                  const Sizes& sizes,
                  double rows_per_expert,
                  float limit,
                  const uint16_t* x,
                  uint16_t* hidden,
                  uint16_t* y) {
    auto chunks = [](const WeightMatrix& w) {
        return static_cast<int>((w.k + packed_chunk(w.dtype) - 1) / packed_chunk(w.dtype));
    };
    ExpertParams up{};
    up.table = table;
    up.single = {static_cast<const uint8_t*>(like.w1.packed),
                 static_cast<const uint8_t*>(like.w3.packed),
                 static_cast<const uint8_t*>(like.w2.packed)};
    up.routing = routing;
    up.x = x;
    up.x_stride = sizes.d;
    up.k = static_cast<int>(sizes.d);
    up.chunks = chunks(like.w1);
    up.slices = num_slices(up.chunks);
    up.n = static_cast<int>(sizes.inter);
    up.limit = limit;
    up.out = hidden;
    up.aligned = sizes.d % 8 == 0;
    ExpertParams down = up;
    down.x = hidden;
    down.x_stride = sizes.inter;
    down.k = static_cast<int>(sizes.inter);
    down.chunks = chunks(like.w2);
    down.slices = num_slices(down.chunks);
    down.n = static_cast<int>(sizes.d);
    down.out = y;
    down.aligned = true;
    switch (like.w1.dtype) {
        case DType::kFP4:
            return pick_experts<DType::kFP4>(stream, up, down, experts, rows_per_expert);
        case DType::kFP8E4M3:
            return pick_experts<DType::kFP8E4M3>(stream, up, down, experts, rows_per_expert);
        default:
            DI_CHECK_MSG(false, dtype_name(like.w1.dtype));
    }
}

size_t padded(int64_t bytes) {
    return (static_cast<size_t>(bytes) + 255) / 256 * 256;
}

}  // namespace

void swiglu(Stream& stream,
            const Tensor& gate,
            const Tensor& up,
            const Tensor& weight,
            float limit,
            Tensor out) {
    launch(stream,
           "swiglu",
           swiglu_kernel,
           dim3(div_up(gate.numel(), 256)),
           dim3(256),
           0,
           bf16_rows(gate),
           bf16_rows(up),
           weight ? weight.ptr<float>() : nullptr,
           limit,
           gate.numel(),
           static_cast<int>(gate.dim(1)),
           bf16_rows(out));
}

void moe_ffn(Stream& stream,
             const Tensor& u,
             const Tensor& ids,
             const Tensor& weights,
             std::span<const ExpertWeights> experts,
             const ExpertWeights& shared,
             float limit,
             Tensor out) {
    const Sizes routed{u.dim(0), u.dim(1), experts.empty() ? 0 : experts[0].w1.n},
        all{u.dim(0), u.dim(1), shared.w1.n};
    const int64_t rows = u.dim(0), d = u.dim(1), k = ids.dim(1), pairs = rows * k;
    DI_CHECK(ids.dense() && weights.dense() && weights.dtype == DType::kF32);
    DI_CHECK(d % 32 == 0 && routed.inter % 32 == 0 && all.inter % 32 == 0 && !experts.empty());
    DI_CHECK(shared.w1.packed != nullptr && experts[0].w1.packed != nullptr);
    if (rows == 0) return;
    CudaStream& s = cuda_stream(stream);
    const ExpertPointers* table = s.expert_table(experts);

    const size_t sizes[] = {padded(rows * d * 2),
                            padded(pairs * routed.inter * 2),
                            padded(pairs * d * 2),
                            padded(rows * all.inter * 2),
                            padded(rows * d * 2),
                            padded((static_cast<int64_t>(experts.size()) + 1) * 4),
                            padded(pairs * 4),
                            padded(pairs * 4),
                            padded(pairs * 4)};
    size_t total = 0;
    for (size_t b : sizes) total += b;
    auto* at = static_cast<uint8_t*>(s.scratch(total));
    if (at == nullptr) return;
    size_t next = 0;
    auto take = [&]() {
        uint8_t* p = at;
        at += sizes[next++];
        return p;
    };
    auto* quantized = reinterpret_cast<uint16_t*>(take());
    auto* hidden = reinterpret_cast<uint16_t*>(take());
    auto* y = reinterpret_cast<uint16_t*>(take());
    auto* shared_hidden = reinterpret_cast<uint16_t*>(take());
    auto* shared_y = reinterpret_cast<uint16_t*>(take());
    Routing routing{};
    routing.begin = reinterpret_cast<int32_t*>(take());
    routing.slot_row = reinterpret_cast<int32_t*>(take());
    routing.slot_weight = reinterpret_cast<float*>(take());
    routing.pair_slot = reinterpret_cast<int32_t*>(take());
    routing.num_rows = static_cast<int>(rows);
    routing.num_slots = static_cast<int>(pairs);

    quant_q8(stream, u, Tensor(quantized, DType::kBF16, {rows, d}));
    // The shared expert needs only the quantized rows: it runs beside the routed ones.
    Stream& side = s.fork();
    Routing everyone{};
    everyone.num_rows = everyone.num_slots = static_cast<int>(rows);
    feed_forward(side,
                 shared,
                 nullptr,
                 1,
                 everyone,
                 all,
                 static_cast<double>(rows),
                 limit,
                 quantized,
                 shared_hidden,
                 shared_y);
    const int num_experts = static_cast<int>(experts.size());
    // Many pairs: more warps a block, so that each has few to read.
    const bool many = pairs > 2048;
    launch(stream,
           "moe_route",
           many ? route_kernel<1024> : route_kernel<256>,
           dim3(static_cast<unsigned>(num_experts)),
           dim3(many ? 1024 : 256),
           0,
           ids.ptr<int32_t>(),
           weights.ptr<float>(),
           static_cast<int>(pairs),
           static_cast<int>(k),
           num_experts,
           routing);
    const double per_expert =
        rows <= 5 ? static_cast<double>(rows) : static_cast<double>(pairs) / num_experts;
    feed_forward(stream,
                 experts[0],
                 table,
                 num_experts,
                 routing,
                 routed,
                 per_expert,
                 limit,
                 quantized,
                 hidden,
                 y);
    s.join();
    launch(stream,
           "moe_combine",
           combine_kernel,
           dim3(div_up(d, kCombineThreads * 8), static_cast<unsigned>(rows)),
           dim3(kCombineThreads),
           0,
           y,
           routing.pair_slot,
           shared_y,
           static_cast<int>(k),
           static_cast<int>(d),
           bf16_rows(out));
}

}  // namespace deepinfer::cuda
