// Kernel launches with named errors, and the block-wide sums every row kernel shares.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "backends/cuda/cuda_stream.h"

namespace deepinfer::cuda {

inline std::string shape_text(dim3 grid, dim3 block, size_t smem) {
    return "grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
           std::to_string(grid.z) + ", block " + std::to_string(block.x) + ", shared " +
           std::to_string(smem) + " bytes";
}

/// Launches on the op's stream. An empty grid launches nothing.
template <typename... Params, typename... Args>
void launch(Stream& stream,
            const char* name,
            void (*kernel)(Params...),
            dim3 grid,
            dim3 block,
            size_t smem,
            Args... args) {
    CudaStream& s = cuda_stream(stream);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !s.status().ok()) return;
    if (smem > 48 * 1024) {
        DI_CUDA(s,
                cudaFuncSetAttribute(kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(smem)),
                name,
                shape_text(grid, block, smem));
    }
    kernel<<<grid, block, smem, s.get()>>>(static_cast<Params>(args)...);
    DI_CUDA(s, cudaGetLastError(), name, shape_text(grid, block, smem));
}

inline unsigned div_up(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace deepinfer::cuda
