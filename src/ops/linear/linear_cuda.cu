// Linear layers on the device: packed FP8, FP4 and BF16 weights through the streaming matrix core,
// F32 weights by plain dot products. The grouped output projection is the same kernel with one grid
// layer a group.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/matrix_tile.cuh"
#include "backends/cuda/numerics.cuh"
#include "backends/cuda/packed_weight.h"
#include "backends/cuda/views.cuh"
#include "backends/cuda/wide_linear.cuh"

namespace deepinfer::cuda {
namespace {

template <DType T, int R, int NT>
__global__ void __launch_bounds__(kMatrixThreads)
    linear_kernel(const __grid_constant__ LinearParams p) {
    using S = MatrixShared<T, R, NT>;
    extern __shared__ __align__(16) uint8_t shared[];
    auto** rows = reinterpret_cast<const uint16_t**>(shared + S::kBody);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int slice = warp % p.slices, mg = warp / p.slices, row_groups = kMatrixWarps / p.slices;
    const int token0 = static_cast<int>(blockIdx.y) * 8 * NT;
    const int first_row = static_cast<int>(blockIdx.z) * p.group_rows,
              end_row = first_row + p.group_rows;
    const int tile0 = first_row / 16 + static_cast<int>(blockIdx.x) * row_groups * R;
    const uint8_t* tiles[R];
    const int last_tile = (end_row - 1) / 16;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int tile =
            min(tile0 + mg * R + r, last_tile);  // past the end: computed, never stored
        tiles[r] = p.packed + static_cast<int64_t>(tile) * p.chunks * TileFormat<T>::kBytes;
    }
    // The weights do not depend on the kernel before: their first chunks come to L2 while it
    // finishes.
    const int begin = slice_begin(p.chunks, p.slices, slice),
              end = slice_begin(p.chunks, p.slices, slice + 1);
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const uint8_t* first = tiles[r] + static_cast<int64_t>(begin) * TileFormat<T>::kBytes;
        const int bytes = min(end - begin, 4) * TileFormat<T>::kBytes;
        for (int at = lane * 128; at < bytes; at += 32 * 128) prefetch_l2(first + at);
    }
    begin_kernel();
    if (threadIdx.x < 8 * NT) {
        const int token = token0 + static_cast<int>(threadIdx.x);
        rows[threadIdx.x] = token < p.num_rows
                                ? p.x + token * p.x_stride + static_cast<int64_t>(blockIdx.z) * p.k
                                : nullptr;
    }
    __syncthreads();
    float acc[R][NT][4];
    multiply_slice<T, R, NT>(acc,
                             tiles,
                             RowSource{rows, p.k, p.aligned},
                             begin,
                             end,
                             shared + warp * S::kStages * S::kStage);
    __syncthreads();
    auto* partials = reinterpret_cast<float*>(shared);
    store_partials<R, NT>(acc, partials, p.slices, mg, slice);
    __syncthreads();
    const int block_rows = row_groups * R * 16;
    for (int i = static_cast<int>(threadIdx.x); i < block_rows * 8 * NT; i += kMatrixThreads) {
        const int r = i % block_rows, token = i / block_rows, row = tile0 * 16 + r;
        if (token0 + token >= p.num_rows || row < first_row || row >= end_row) continue;
        float y = add_slices<NT>(partials, p.slices, r / 16, token, r % 16);
        if (p.bias != nullptr) y += p.bias[row];
        const int64_t at = (token0 + token) * p.out_stride + row;
        if (p.out_f32)
            static_cast<float*>(p.out)[at] = y;
        else
            static_cast<uint16_t*>(p.out)[at] = round_bf16_bits(y);
    }
}

template <DType T, int R, int NT>
void run(Stream& stream, const char* name, const LinearParams& p, int groups) {
    const int block_rows = kMatrixWarps / p.slices * R * 16;
    // A group that starts inside a tile of 16 rows reaches one tile further.
    const int reach = p.group_rows + (p.group_rows % 16 != 0 && groups > 1 ? 15 : 0);
    launch(
        stream,
        name,
        linear_kernel<T, R, NT>,
        dim3(div_up(reach, block_rows), div_up(p.num_rows, 8 * NT), static_cast<unsigned>(groups)),
        dim3(kMatrixThreads),
        MatrixShared<T, R, NT>::kBytes,
        p);
}

template <DType T>
void pick(Stream& stream, const char* name, const LinearParams& p, int groups) {
    // Two row tiles a warp halve the activation traffic; one when the matrix would not fill the
    // chip.
    const int64_t blocks =
        static_cast<int64_t>(groups) * div_up(p.group_rows, kMatrixWarps / p.slices * 32);
    if (p.num_rows <= 8) {
        if (blocks < 160) return run<T, 1, 1>(stream, name, p, groups);
        return run<T, 2, 1>(stream, name, p, groups);
    }
    if (p.num_rows <= 16) return run<T, 2, 2>(stream, name, p, groups);
    run<T, 2, 4>(stream, name, p, groups);
}

void matrix(Stream& stream,
            const char* name,
            const Tensor& x,
            const WeightMatrix& w,
            int groups,
            const float* bias,
            Tensor out) {
    DI_CHECK(x.dtype == DType::kBF16 && (out.dtype == DType::kBF16 || out.dtype == DType::kF32));
    DI_CHECK_EQ(x.dim(1), w.k * groups);
    DI_CHECK_EQ(out.dim(1), w.n);
    DI_CHECK_EQ(out.dim(0), x.dim(0));
    DI_CHECK_MSG(w.packed != nullptr, "the weight has not been through Backend::prepare");
    if (x.dim(0) == 0) return;
    LinearParams p{};
    p.packed = static_cast<const uint8_t*>(w.packed);
    p.chunks = static_cast<int>((w.k + packed_chunk(w.dtype) - 1) / packed_chunk(w.dtype));
    p.slices = num_slices(p.chunks);
    p.k = static_cast<int>(w.k);
    p.group_rows = static_cast<int>(w.n / groups);
    p.x = x.ptr<uint16_t>();
    p.x_stride = x.stride[0];
    p.aligned =
        reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride[0] % 8 == 0 && w.k % 8 == 0;
    p.num_rows = static_cast<int>(x.dim(0));
    p.out = out.data;
    p.out_stride = out.stride[0];
    p.out_f32 = out.dtype == DType::kF32;
    p.bias = bias;
    if (cluster_linear_takes(p, w.dtype, groups, wide_linear_us(w.dtype, p, groups)))
        return cluster_linear(stream, name, w.dtype, p, groups);
    // Above 8 rows the streaming kernel would issue more matrix instructions and read activations
    // more often.
    if (p.num_rows > 8 && wide_linear_takes(p, groups))
        return wide_linear(stream, name, w.dtype, p, groups);
    switch (w.dtype) {
        case DType::kFP8E4M3:
            return pick<DType::kFP8E4M3>(stream, name, p, groups);
        case DType::kFP4:
            return pick<DType::kFP4>(stream, name, p, groups);
        case DType::kBF16:
            return pick<DType::kBF16>(stream, name, p, groups);
        default:
            DI_CHECK_MSG(false, dtype_name(w.dtype));
    }
}

/// One warp an output element; lanes stride over k, one tree.
__global__ void __launch_bounds__(256) linear_f32_kernel(Bf16Rows x,
                                                         const float* __restrict__ w,
                                                         int n,
                                                         int k,
                                                         const float* bias,
                                                         void* out,
                                                         int64_t out_stride,
                                                         bool out_f32) {
    begin_kernel();
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int j = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
    if (j >= n) return;
    const uint16_t* row = x.row(blockIdx.y);
    float sum = 0.0f;
    for (int i = lane; i < k; i += 32)
        sum = fmaf(bf16_value(row[i]), w[static_cast<int64_t>(j) * k + i], sum);
    sum = warp_sum(sum);
    if (lane != 0) return;
    if (bias != nullptr) sum += bias[j];
    if (out_f32)
        static_cast<float*>(out)[blockIdx.y * out_stride + j] = sum;
    else
        static_cast<uint16_t*>(out)[blockIdx.y * out_stride + j] = round_bf16_bits(sum);
}

/// x · wᵀ, plus a bias a weight row where there is one.
void product(Stream& stream,
             const char* name,
             const Tensor& x,
             const WeightMatrix& w,
             const float* bias,
             Tensor out) {
    if (w.dtype != DType::kF32) return matrix(stream, name, x, w, 1, bias, out);
    DI_CHECK(x.dim(1) == w.k && out.dim(1) == w.n);
    launch(stream,
           name,
           linear_f32_kernel,
           dim3(div_up(w.n, 8), static_cast<unsigned>(x.dim(0))),
           dim3(256),
           0,
           bf16_rows(x),
           static_cast<const float*>(w.weight),
           static_cast<int>(w.n),
           static_cast<int>(w.k),
           bias,
           out.data,
           out.stride[0],
           out.dtype == DType::kF32);
}

}  // namespace

void linear(Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out) {
    product(stream, "linear", x, w, nullptr, out);
}

void linear_bias(
    Stream& stream, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Tensor out) {
    DI_CHECK(bias.dtype == DType::kF32 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(bias.dim(0), w.n);
    product(stream, "linear_bias", x, w, bias.ptr<float>(), out);
}

void grouped_o_proj(
    Stream& stream, const Tensor& o, const WeightMatrix& wo_a, int groups, Tensor out) {
    DI_CHECK_EQ(wo_a.n % groups, 0);
    matrix(stream, "grouped_o_proj", o, wo_a, groups, nullptr, out);
}

}  // namespace deepinfer::cuda
