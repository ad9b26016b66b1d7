#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "backends/cuda/packed_weight.h"
#include "backends/cuda/widen.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct Source {
    const uint8_t* weight;
    const uint8_t* scale;
    int64_t n, k;
};

/// The four k offsets of lane t's operand in a k16 step: 2t, 2t + 1, 2t + 8, 2t + 9.
__device__ int operand_k(int t, int i) {
    return 2 * t + (i & 1) + (i >> 1) * 8;
}

__device__ uint32_t fp8_code(const Source& s, int64_t row, int64_t k) {
    return row < s.n && k < s.k ? s.weight[row * s.k + k] : 0u;
}
__device__ uint32_t fp4_code(const Source& s, int64_t row, int64_t k) {
    if (row >= s.n || k >= s.k) return 0u;
    return s.weight[(row * s.k + k) / 2] >> (4 * (k & 1)) & 15u;
}

/// Word of one FP8 row and step: pairs (k0, k1) and (k2, k3), one value of each a half. Bit homes
/// within a half: the first pair's sign 15, magnitude 10 .. 4, where a bf16 of 2^-120 times the
/// value has them; the second's magnitude 14 13 12 3 2 1 0, sign 11.
__device__ uint32_t fp8_half(uint32_t c0, uint32_t c2) {
    return (c0 >> 7) << 15 | (c0 & 0x7Fu) << 4 | (c2 >> 4 & 7u) << 12 | (c2 >> 7) << 11 |
           (c2 & 15u);
}
__device__ uint32_t fp8_word(const Source& s, int64_t row, int64_t k0, int t) {
    uint32_t w = 0;
    for (int half = 0; half < 2; ++half)
        w |= fp8_half(fp8_code(s, row, k0 + operand_k(t, half)),
                      fp8_code(s, row, k0 + operand_k(t, 2 + half)))
             << (16 * half);
    return w;
}

/// Word of one FP4 step: pairs a0 (row g, k0 k1), a1 (row g + 8), a2 (row g, k2 k3), a3, one value
/// a half. Bit homes within a half (sign, m2, m1, m0): a0 15 8 7 6, a1 12 5 4 3, a2 9 2 1 0, a3 14
/// 13 11 10.
__device__ uint32_t fp4_half(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    return (c0 >> 3) << 15 | (c0 & 7u) << 6 | (c1 >> 3) << 12 | (c1 & 7u) << 3 | (c2 >> 3) << 9 |
           (c2 & 7u) | (c3 >> 3) << 14 | (c3 >> 2 & 1u) << 13 | (c3 & 3u) << 10;
}
__device__ uint32_t fp4_word(const Source& s, int64_t row, int64_t k0, int t) {
    uint32_t w = 0;
    for (int half = 0; half < 2; ++half) {
        const int64_t ka = k0 + operand_k(t, half), kb = k0 + operand_k(t, 2 + half);
        w |= fp4_half(fp4_code(s, row, ka),
                      fp4_code(s, row + 8, ka),
                      fp4_code(s, row, kb),
                      fp4_code(s, row + 8, kb))
             << (16 * half);
    }
    return w;
}

__device__ uint32_t bf16_word(const Source& s, int64_t row, int64_t k) {
    const auto* w = reinterpret_cast<const uint16_t*>(s.weight);
    const uint32_t lo = row < s.n && k < s.k ? w[row * s.k + k] : 0u;
    const uint32_t hi = row < s.n && k + 1 < s.k ? w[row * s.k + k + 1] : 0u;
    return lo | hi << 16;
}

/// One thread fills one 16-byte word of one tile (64 words a tile).
template <DType T>
__global__ void __launch_bounds__(kThreads) pack_kernel(
    Source s, int64_t chunks, int64_t tiles, int chunk, int tile_bytes, uint8_t* packed) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t tile = i / 64;
    if (tile >= tiles) return;
    const int word = static_cast<int>(i % 64), lane = word % 32, vec = word / 32, g = lane / 4,
              t = lane % 4;
    const int64_t row = tile / chunks * 16 + g, k0 = tile % chunks * chunk;
    uint32_t w[4];
    if constexpr (T == DType::kFP8E4M3) {
        for (int j = 0; j < 4; ++j)
            w[j] = fp8_word(s, row + j % 2 * 8, k0 + (vec * 2 + j / 2) * 16, t);
    } else if constexpr (T == DType::kFP4) {
        for (int j = 0; j < 4; ++j) w[j] = fp4_word(s, row, k0 + (vec * 4 + j) * 16, t);
    } else {
        for (int j = 0; j < 4; ++j)
            w[j] = bf16_word(s, row + j % 2 * 8, k0 + vec * 16 + j / 2 * 8 + 2 * t);
    }
    uint8_t* dst = packed + tile * tile_bytes;
    *reinterpret_cast<uint4*>(dst + vec * 512 + lane * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    if (vec != 0) return;
    if constexpr (T == DType::kFP8E4M3) {
        if (lane < 16) {
            const int64_t kb = (s.k + 31) / 32, b = k0 / 32 + lane;
            dst[1024 + lane] = lane < 2 && b < kb ? s.scale[row / 16 * 16 / 32 * kb + b] : 0;
        }
    } else if constexpr (T == DType::kFP4) {
        // Lane (g, t) writes column block t of rows g and g + 8.
        const int64_t kb = s.k / 32, b = k0 / 32 + t;
        for (int h = 0; h < 2; ++h) {
            // Biased by 126 already: the exponent of the widening factor (check_scales keeps it a
            // byte).
            dst[1024 + g * 8 + t * 2 + h] =
                row + 8 * h < s.n && b < kb
                    ? static_cast<uint8_t>(s.scale[(row + 8 * h) * kb + b] + 126)
                    : 0;
        }
    }
}

template <DType T>
cudaError_t pack(const Source& s, void* packed, cudaStream_t stream) {
    const int64_t chunk = packed_chunk(T), chunks = (s.k + chunk - 1) / chunk,
                  tiles = (s.n + 15) / 16 * chunks;
    if (tiles == 0) return cudaSuccess;
    pack_kernel<T>
        <<<static_cast<unsigned>((tiles * 64 + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
            s,
            chunks,
            tiles,
            static_cast<int>(chunk),
            static_cast<int>(packed_tile_bytes(T)),
            static_cast<uint8_t*>(packed));
    return cudaGetLastError();
}

}  // namespace

int64_t packed_chunk(DType t) {
    switch (t) {
        case DType::kFP8E4M3:
            return 64;
        case DType::kFP4:
            return 128;
        case DType::kBF16:
            return 32;
        default:
            return 0;
    }
}

int64_t packed_tile_bytes(DType t) {
    switch (t) {
        case DType::kFP8E4M3:
            return 1040;
        case DType::kFP4:
            return 1088;
        case DType::kBF16:
            return 1024;
        default:
            return 0;
    }
}

int64_t packed_bytes(DType t, int64_t n, int64_t k) {
    const int64_t chunk = packed_chunk(t);
    return chunk == 0 ? 0 : (n + 15) / 16 * ((k + chunk - 1) / chunk) * packed_tile_bytes(t);
}

cudaError_t pack_weight(DType t,
                        int64_t n,
                        int64_t k,
                        const void* weight,
                        const uint8_t* scale,
                        void* packed,
                        cudaStream_t stream) {
    const Source s{static_cast<const uint8_t*>(weight), scale, n, k};
    switch (t) {
        case DType::kFP8E4M3:
            return pack<DType::kFP8E4M3>(s, packed, stream);
        case DType::kFP4:
            return pack<DType::kFP4>(s, packed, stream);
        case DType::kBF16:
            return pack<DType::kBF16>(s, packed, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

Status check_scales(const WeightMatrix& w) {
    if (w.scale == nullptr) return {};
    const bool fp4 = w.dtype == DType::kFP4;
    const int64_t count = fp4 ? w.n * (w.k / 32) : (w.n + 31) / 32 * ((w.k + 31) / 32);
    const uint32_t limit = fp4 ? kMaxE2m1Scale : kMaxE4m3Scale;
    const uint8_t largest = count == 0 ? uint8_t{0} : *std::max_element(w.scale, w.scale + count);
    if (largest <= limit) return {};
    return Status(StatusCode::kUnimplemented,
                  std::string(dtype_name(w.dtype)) + " weight [" + std::to_string(w.n) + ", " +
                      std::to_string(w.k) + "] has a block scale of 2^" +
                      std::to_string(static_cast<int>(largest) - 127) +
                      "; the CUDA kernels take scales up to 2^" +
                      std::to_string(static_cast<int>(limit) - 127));
}

}  // namespace deepinfer::cuda
