// The wide matrix core (Hopper): packed weight tiles times 16 .. 128 activation rows on wgmma.
//
// Two warpgroups of 64 weight rows each share the activation rows. Weights are the A operand from
// registers: every warp copies its own packed tiles, widens them in registers and never writes them
// back. Activations are the B operand in swizzled shared memory. docs/kernels/cuda_matrix.md has
// the sums and the schedule.
//
// The sum of an output element walks k exactly as in matrix_tile.cuh: the same slices, steps of 16,
// slices added in ascending order. wgmma and mma give the same bits for the same steps
// (LinearGpu.RowIgnoresItsBatch compares them), so the two cores are one numeric class and the row
// count may choose between them.
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/matrix_tile.cuh"
#include "backends/cuda/sm90/wgmma.cuh"

namespace deepinfer::cuda {

constexpr int kWideThreads = 256;  ///< two warpgroups
constexpr int kWideRows = 128;     ///< weight rows of a block

template <DType T, int N>
struct WideShared {
    static constexpr int kSubtiles =
        T == DType::kFP4 ? 2 : 1;  ///< 64 values of k each (BF16 chunks fill half of one)
    static constexpr int kActivations = kSubtiles * N * 128;
    static constexpr int kStage = (kActivations + 8 * TileFormat<T>::kBytes + 1023) / 1024 * 1024;
    static constexpr int kStages =
        kStage > 34 * 1024
            ? 5
            : 6;  ///< all but two in flight; two blocks a multiprocessor up to N = 32
    static constexpr int kPitch =
        kWideRows + 4;  ///< floats between two activation rows of the finished tile
    static constexpr int kTile = N * kPitch * 4;
    static constexpr int kBytes =
        (kStages * kStage > kTile ? kStages * kStage : kTile) + 1024;  ///< room to align
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
            for (int v = 0; v < 2; ++v) {
                const uint4 w = *reinterpret_cast<const uint4*>(tile + v * 512 + lane * 16);
                const uint32_t factor = e4m3_factor(tile[1024 + v]);
                a[2 * v][0] = mul_bf16x2(e4m3_odd(w.x), factor);
                a[2 * v][1] = mul_bf16x2(e4m3_odd(w.y), factor);
                a[2 * v][2] = mul_bf16x2(e4m3_even(w.x), factor);
                a[2 * v][3] = mul_bf16x2(e4m3_even(w.y), factor);
                a[2 * v + 1][0] = mul_bf16x2(e4m3_odd(w.z), factor);
                a[2 * v + 1][1] = mul_bf16x2(e4m3_odd(w.w), factor);
                a[2 * v + 1][2] = mul_bf16x2(e4m3_even(w.z), factor);
                a[2 * v + 1][3] = mul_bf16x2(e4m3_even(w.w), factor);
            }
        } else {
            const uint4 w = *reinterpret_cast<const uint4*>(tile + unit * 512 + lane * 16);
            const uint32_t scales =
                *reinterpret_cast<const uint32_t*>(tile + 1024 + lane / 4 * 8 + unit * 4);
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
    }
};

/// Activation rows as this thread copies them: rows thread / 8 + 32 i of the block's N (null:
/// zeros).
template <int N>
struct WideRows {
    static constexpr int kCount =
        N < 32 ? 1 : N / 32;  ///< with N = 16 half of the threads copy none
    const uint16_t* row[kCount];
    int k;
};

template <DType T, int N>
__device__ __forceinline__ void wide_fetch(uint8_t* stage,
                                           const uint8_t* tile,
                                           const WideRows<N>& x,
                                           int chunk) {
    using F = TileFormat<T>;
    using S = WideShared<T, N>;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const uint8_t* src = tile + static_cast<int64_t>(chunk) * F::kBytes;
    const uint32_t weights = shared_address(stage + S::kActivations + warp * F::kBytes);
    cp_async_16(weights + lane * 16, src + lane * 16);
    cp_async_16(weights + 512 + lane * 16, src + 512 + lane * 16);
    constexpr int kTail = F::kBytes / 16 - 64;
    if (lane < kTail) cp_async_16(weights + 1024 + lane * 16, src + 1024 + lane * 16);
    const int piece = static_cast<int>(threadIdx.x) % 8;
    if (T == DType::kBF16 && piece >= 4) return;  // 32 values: half a swizzled row
    if (N < 32 && threadIdx.x >= 8 * N) return;
    const uint32_t rows = shared_address(stage);
#pragma unroll
    for (int sub = 0; sub < S::kSubtiles; ++sub) {
        const int at = chunk * F::kChunk + sub * 64 + piece * 8;
#pragma unroll
        for (int i = 0; i < WideRows<N>::kCount; ++i) {
            const int r = static_cast<int>(threadIdx.x) / 8 + 32 * i;
            const bool live = x.row[i] != nullptr && at < x.k;
            cp_async_16(rows + sub * N * 128 + r * 128 + ((piece ^ (r & 7)) << 4),
                        live ? x.row[i] + at : reinterpret_cast<const uint16_t*>(src),
                        live ? 16u : 0u);
        }
    }
}

/// total = this warp's row tile · all N rows over slices [first, last). `shared` is 1024-byte
/// aligned.
template <DType T, int N>
__device__ __forceinline__ void wide_multiply(float (&total)[N / 2],
                                              const uint8_t* tile,
                                              const WideRows<N>& x,
                                              int chunks,
                                              int slices,
                                              int first,
                                              int last,
                                              uint8_t* shared) {
    using F = TileFormat<T>;
    using S = WideShared<T, N>;
    constexpr int kUnits = T == DType::kFP4 ? 2 : 1;
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) / 32;
    const int begin = slice_begin(chunks, slices, first), end = slice_begin(chunks, slices, last);
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[i] = 0.0f;
#pragma unroll
    for (int s = 0; s < S::kStages - 2; ++s) {
        if (begin + s < end) wide_fetch<T, N>(shared + s * S::kStage, tile, x, begin + s);
        cp_async_commit();
    }
    int slice = first, slice_last = slice_begin(chunks, slices, first + 1) - 1;
    int accumulate = 0;
    WideOperand<T> operand[2];
    // One chunk; `parity` picks the operand registers, which the previous wgmma group may still be
    // reading.
    auto run_chunk = [&](int c, WideOperand<T>& even, WideOperand<T>& odd) {
        cp_async_wait<S::kStages - 3>();
        fence_proxy_async();
        __syncthreads();
        const int next = c + S::kStages - 2;
        if (next < end)
            wide_fetch<T, N>(shared + (next - begin) % S::kStages * S::kStage, tile, x, next);
        cp_async_commit();
        const uint8_t* stage = shared + (c - begin) % S::kStages * S::kStage;
        const uint8_t* weights = stage + S::kActivations + warp * F::kBytes;
        const uint64_t rows = swizzled_descriptor(shared_address(stage));
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
            wgmma_wait<1>();
        }
        if (c == slice_last) {
            wgmma_wait<0>();
            hold_registers(acc);
#pragma unroll
            for (int i = 0; i < N / 2; ++i) total[i] = slice == first ? acc[i] : total[i] + acc[i];
            accumulate = 0;
            ++slice;
            slice_last = slice_begin(chunks, slices, slice + 1) - 1;
        }
    };
    int c = begin;
    for (; c + 1 < end; c += 2) {
        if constexpr (kUnits == 2) {
            run_chunk(c, operand[0], operand[1]);
            run_chunk(c + 1, operand[0], operand[1]);
        } else {
            run_chunk(c, operand[0], operand[1]);
            run_chunk(c + 1, operand[1], operand[0]);
        }
    }
    if (c < end) run_chunk(c, operand[0], operand[1]);
    wgmma_wait<0>();
    cp_async_wait<0>();
    __syncthreads();
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

__device__ __forceinline__ uint8_t* align_1024(uint8_t* p) {
    return p + ((1024u - (shared_address(p) & 1023u)) & 1023u);
}

}  // namespace deepinfer::cuda
