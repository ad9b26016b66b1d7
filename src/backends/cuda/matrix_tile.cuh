// The streaming matrix core: packed weight tiles times a few activation rows, one warp at a time.
//
// Weights are the A operand of mma (16 rows), activations the B operand (8 rows a tile), so few
// rows waste nothing. A warp owns R row tiles × 8·NT activation rows of one K slice and runs its
// own cp.async pipeline in its own shared memory: no block barrier until the slices are added.
//
// The order of one output element's sum is fixed by (k, format) alone: num_slices(k) slices of
// whole chunks, each walked in steps of 16 by one accumulator that starts at zero, then added in
// ascending slice. R, NT and the grid change with the number of rows; the sum does not.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/mma.cuh"
#include "backends/cuda/widen.cuh"
#include "tensor/dtype.h"

namespace deepinfer::cuda {

constexpr int kMatrixWarps =
    8;  ///< a block's warps; kernels with small tiles run with half of them for an even spread
constexpr int kMatrixThreads = kMatrixWarps * 32;

template <DType T>
struct TileFormat;
template <>
struct TileFormat<DType::kFP8E4M3> {
    static constexpr int kChunk = 64, kBytes = 1040;
};
template <>
struct TileFormat<DType::kFP4> {
    static constexpr int kChunk = 128, kBytes = 1088;
};
template <>
struct TileFormat<DType::kBF16> {
    static constexpr int kChunk = 32, kBytes = 1024;
};

/// K slices of a matrix with `chunks` chunks: at least eight chunks each, a power of two up to 8.
__host__ __device__ inline int num_slices(int chunks) {
    return chunks >= 64 ? 8 : chunks >= 32 ? 4 : chunks >= 16 ? 2 : 1;
}
__host__ __device__ inline int slice_begin(int chunks, int slices, int s) {
    return chunks * s / slices;
}

/// Shared memory of a block: pipelines of all warps, later overlaid by the partial sums.
template <DType T, int R, int NT, int W = kMatrixWarps>
struct MatrixShared {
    static constexpr int kRowPitch =
        TileFormat<T>::kChunk * 2 + 16;  ///< ldmatrix without bank conflicts
    static constexpr int kStage = R * TileFormat<T>::kBytes + 8 * NT * kRowPitch;
    static constexpr int kWanted = 13 * 1024 / kStage;  // two blocks a multiprocessor
    static constexpr int kRoom = 26 * 1024 / kStage;    // or one
    static constexpr int kStages = kWanted >= 4 ? 4 : kWanted >= 2 ? kWanted : kRoom >= 3 ? 3 : 2;
    static constexpr int kPipeline = W * kStages * kStage;
    static constexpr int kPartialPitch = 17;  ///< [token][16 rows + 1]
    static constexpr int kPartials = W * R * 8 * NT * kPartialPitch * 4;
    static constexpr int kBody = (kPipeline > kPartials ? kPipeline : kPartials + 15) / 16 * 16;
    static constexpr int kBytes = kBody + 8 * NT * 8;  ///< then the row pointers
};

/// acc[r] += tile r · rows, for one chunk in shared memory.
template <DType T, int R, int NT>
__device__ __forceinline__ void multiply_chunk(float (&acc)[R][NT][4],
                                               const uint8_t* stage,
                                               int lane) {
    using F = TileFormat<T>;
    using S = MatrixShared<T, R, NT>;
    const uint8_t* rows = stage + R * F::kBytes;
    const uint32_t row_address = shared_address(rows + lane % 8 * S::kRowPitch + lane / 8 * 16);
    // Two 16-byte words a lane and tile; one word covers kChunk / 2 values of k.
#pragma unroll
    for (int vec = 0; vec < 2; ++vec) {
        if constexpr (T == DType::kBF16) {
            uint32_t b[NT][4];
            if (vec == 0) {
#pragma unroll
                for (int i = 0; i < NT; ++i) ldmatrix_x4(b[i], row_address + i * 8 * S::kRowPitch);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const uint4 w0 =
                        *reinterpret_cast<const uint4*>(stage + r * F::kBytes + lane * 16);
                    const uint4 w1 =
                        *reinterpret_cast<const uint4*>(stage + r * F::kBytes + 512 + lane * 16);
                    const uint32_t a0[4] = {w0.x, w0.y, w0.z, w0.w},
                                   a1[4] = {w1.x, w1.y, w1.z, w1.w};
#pragma unroll
                    for (int i = 0; i < NT; ++i) {
                        mma_m16n8k16(acc[r][i], a0, b[i][0], b[i][1]);
                        mma_m16n8k16(acc[r][i], a1, b[i][2], b[i][3]);
                    }
                }
            }
        } else if constexpr (T == DType::kFP8E4M3) {
            uint32_t b[NT][4];
#pragma unroll
            for (int i = 0; i < NT; ++i)
                ldmatrix_x4(b[i], row_address + i * 8 * S::kRowPitch + vec * 64);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const uint8_t* tile = stage + r * F::kBytes;
                const uint4 w = *reinterpret_cast<const uint4*>(tile + vec * 512 + lane * 16);
                const uint32_t factor = e4m3_factor(tile[1024 + vec]);
                uint32_t a[4];
                a[0] = mul_bf16x2(e4m3_first(w.x), factor);
                a[1] = mul_bf16x2(e4m3_first(w.y), factor);
                a[2] = mul_bf16x2(e4m3_second(w.x), factor);
                a[3] = mul_bf16x2(e4m3_second(w.y), factor);
#pragma unroll
                for (int i = 0; i < NT; ++i) mma_m16n8k16(acc[r][i], a, b[i][0], b[i][1]);
                a[0] = mul_bf16x2(e4m3_first(w.z), factor);
                a[1] = mul_bf16x2(e4m3_first(w.w), factor);
                a[2] = mul_bf16x2(e4m3_second(w.z), factor);
                a[3] = mul_bf16x2(e4m3_second(w.w), factor);
#pragma unroll
                for (int i = 0; i < NT; ++i) mma_m16n8k16(acc[r][i], a, b[i][2], b[i][3]);
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int block = vec * 2 + half;  // 32 columns, one scale a row
                uint32_t b[NT][4];
#pragma unroll
                for (int i = 0; i < NT; ++i)
                    ldmatrix_x4(b[i], row_address + i * 8 * S::kRowPitch + block * 64);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const uint8_t* tile = stage + r * F::kBytes;
                    const uint2 w =
                        *reinterpret_cast<const uint2*>(tile + vec * 512 + lane * 16 + half * 8);
                    const uint32_t scales =
                        *reinterpret_cast<const uint16_t*>(tile + 1024 + lane / 4 * 8 + block * 2);
                    const uint32_t top = factor_from_byte<0>(scales),
                                   bottom = factor_from_byte<1>(scales);
                    const uint32_t words[2] = {w.x, w.y};
#pragma unroll
                    for (int step = 0; step < 2; ++step) {
                        const uint32_t v = words[step];
                        uint32_t a[4];
                        a[0] = mul_bf16x2(v & 0x81C081C0u, top);
                        a[1] = mul_bf16x2((v << 3) & 0x81C081C0u, bottom);
                        a[2] = mul_bf16x2((v << 6) & 0x81C081C0u, top);
                        a[3] = mul_bf16x2(((v << 1) & 0x80008000u) | ((v >> 4) & 0x00C000C0u) |
                                              ((v >> 5) & 0x01000100u),
                                          bottom);
#pragma unroll
                        for (int i = 0; i < NT; ++i)
                            mma_m16n8k16(acc[r][i], a, b[i][2 * step], b[i][2 * step + 1]);
                    }
                }
            }
        }
    }
}

/// Activation rows of a block as pointers in shared memory (null: a row of zeros).
struct RowSource {
    const uint16_t* const* rows;
    int k;         ///< values beyond it are zero
    bool aligned;  ///< 16-byte addresses and k % 8 == 0
};

template <DType T, int R, int NT>
__device__ __forceinline__ void fetch_chunk(
    uint8_t* stage, const uint8_t* const (&tiles)[R], const RowSource& x, int chunk, int lane) {
    using F = TileFormat<T>;
    using S = MatrixShared<T, R, NT>;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const uint8_t* src = tiles[r] + static_cast<int64_t>(chunk) * F::kBytes;
        const uint32_t dst = shared_address(stage + r * F::kBytes);
        cp_async_16(dst + lane * 16, src + lane * 16);
        cp_async_16(dst + 512 + lane * 16, src + 512 + lane * 16);
        constexpr int kTail = F::kBytes / 16 - 64;
        if (lane < kTail) cp_async_16(dst + 1024 + lane * 16, src + 1024 + lane * 16);
    }
    constexpr int kPieces = F::kChunk / 8;  // 16-byte pieces of a row
    uint8_t* rows = stage + R * F::kBytes;
#pragma unroll
    for (int i = 0; i < NT * F::kChunk / 32; ++i) {
        const int piece = lane + 32 * i, token = piece / kPieces, col = piece % kPieces * 8;
        const int at = chunk * F::kChunk + col;
        const uint16_t* row = x.rows[token];
        uint8_t* dst = rows + token * S::kRowPitch + col * 2;
        if (x.aligned) {
            const bool live = row != nullptr && at < x.k;
            cp_async_16(shared_address(dst),
                        live ? row + at : reinterpret_cast<const uint16_t*>(tiles[0]),
                        live ? 16u : 0u);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                reinterpret_cast<uint16_t*>(dst)[j] =
                    row != nullptr && at + j < x.k ? row[at + j] : uint16_t{0};
            }
        }
    }
}

/// acc = tiles[r] · rows over chunks [begin, end), one warp.
template <DType T, int R, int NT>
__device__ __forceinline__ void multiply_slice(float (&acc)[R][NT][4],
                                               const uint8_t* const (&tiles)[R],
                                               const RowSource& x,
                                               int begin,
                                               int end,
                                               uint8_t* pipeline) {
    using S = MatrixShared<T, R, NT>;
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < NT; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[r][i][j] = 0.0f;
        }
    }
#pragma unroll
    for (int s = 0; s < S::kStages - 1; ++s) {
        if (begin + s < end)
            fetch_chunk<T, R, NT>(pipeline + s * S::kStage, tiles, x, begin + s, lane);
        cp_async_commit();
    }
    int read = 0, write = S::kStages - 1;
    for (int c = begin; c < end; ++c) {
        cp_async_wait<S::kStages - 2>();
        __syncwarp();
        const int next = c + S::kStages - 1;
        if (next < end) fetch_chunk<T, R, NT>(pipeline + write * S::kStage, tiles, x, next, lane);
        cp_async_commit();
        multiply_chunk<T, R, NT>(acc, pipeline + read * S::kStage, lane);
        read = read + 1 == S::kStages ? 0 : read + 1;
        write = write + 1 == S::kStages ? 0 : write + 1;
    }
    cp_async_wait<0>();
}

/// Where the partial sum of (row tile slot, slice, token, row) stands; slots are mg · R + r.
template <int NT>
__device__ __forceinline__ int partial_index(int slices, int slot, int slice, int token, int row) {
    return ((slot * slices + slice) * 8 * NT + token) * 17 + row;
}

template <int R, int NT>
__device__ __forceinline__ void store_partials(
    const float (&acc)[R][NT][4], float* partials, int slices, int mg, int slice) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < NT; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int token = i * 8 + lane % 4 * 2 + j % 2, row = lane / 4 + j / 2 * 8;
                partials[partial_index<NT>(slices, mg * R + r, slice, token, row)] = acc[r][i][j];
            }
        }
    }
}

/// The finished sum: slices added in ascending order.
template <int NT>
__device__ __forceinline__ float add_slices(
    const float* partials, int slices, int slot, int token, int row) {
    float sum = partials[partial_index<NT>(slices, slot, 0, token, row)];
    for (int s = 1; s < slices; ++s)
        sum += partials[partial_index<NT>(slices, slot, s, token, row)];
    return sum;
}

}  // namespace deepinfer::cuda
