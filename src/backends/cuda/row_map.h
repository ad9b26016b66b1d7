// Tensor maps: how Hopper's copy engine finds boxes of activation rows.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/cuda_stream.h"

namespace deepinfer::cuda {

/// Boxes of 64 columns × box_rows of a bf16 matrix, 128-byte swizzled in shared memory, zeros
/// outside. rows: 16-byte aligned, stride (in elements) a multiple of 8. A failure is kept in the
/// stream.
CUtensorMap row_map(CudaStream& stream,
                    const void* rows,
                    int64_t num_columns,
                    int64_t num_rows,
                    int64_t stride,
                    int box_rows);

}  // namespace deepinfer::cuda
