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

/// The same with clusters of `cluster` neighbouring blocks along x (a power of two up to 8).
template <typename... Params, typename... Args>
void launch_cluster(Stream& stream,
                    const char* name,
                    void (*kernel)(Params...),
                    dim3 grid,
                    dim3 block,
                    size_t smem,
                    int cluster,
                    Args... args) {
    CudaStream& s = cuda_stream(stream);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !s.status().ok()) return;
    DI_CUDA(s,
            cudaFuncSetAttribute(
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem)),
            name,
            shape_text(grid, block, smem));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = s.get();
    config.attrs = &attribute;
    config.numAttrs = 1;
    DI_CUDA(s,
            cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
            name,
            shape_text(grid, block, smem) + ", cluster " + std::to_string(cluster));
}

inline unsigned div_up(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace deepinfer::cuda
