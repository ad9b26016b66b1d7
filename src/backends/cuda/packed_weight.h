// Packed weights: the layout the matrix kernels stream, made once at load.
//
// A matrix [n, k] becomes tiles of 16 rows × one chunk of k (64 FP8, 128 FP4, 32 BF16 values),
// zero-padded, stored row tile by row tile, chunks in ascending k. A tile is one straight copy and
// needs no shuffling in the kernel: lane l of a warp finds its tensor-core operand for every k16
// step in two 16-byte words at l · 16 and 512 + l · 16. Scales travel with their tile:
//
//   FP8   1024 code bytes, then 16 bytes: the two UE8M0 scales of the tile (its rows share a 32 ×
//   32 block) FP4   1024 bytes, then 64: eight bytes a row pair (row g, row g + 8), two per 32
//   columns, each the UE8M0 scale
//         plus 126, which is the exponent of the widening factor
//   BF16  1024 bytes
//
// Inside a word bits are placed so that widening takes the fewest integer
// operations (backends/cuda/widen.cuh and tile_operand in matrix_tile.cuh are the readers).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "deepinfer/status.h"
#include "ops/weight_matrix.h"

namespace deepinfer::cuda {

/// Values of k in one chunk, and bytes of one tile. 0 for formats that are not packed (F32).
int64_t packed_chunk(DType t);
int64_t packed_tile_bytes(DType t);
/// Bytes of the packed matrix.
int64_t packed_bytes(DType t, int64_t n, int64_t k);

/// Fills `packed` (device, packed_bytes) from stored codes and scales in device memory.
cudaError_t pack_weight(DType t,
                        int64_t n,
                        int64_t k,
                        const void* weight,
                        const uint8_t* scale,
                        void* packed,
                        cudaStream_t stream);

/// kUnimplemented if a block scale is too large for one-multiply widening. Reads host memory.
Status check_scales(const WeightMatrix& w);

}  // namespace deepinfer::cuda
