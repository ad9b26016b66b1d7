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

/// First statement of every kernel of this backend: waits for what the stream did before (the
/// launch may have been early, see launch()), then lets the next kernel come early in turn.
__device__ __forceinline__ void begin_kernel() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Brings a line of memory that no kernel writes (weights) to L2; allowed before begin_kernel().
__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Launches on the op's stream, in clusters of `cluster` neighbouring blocks along x (a power of
/// two up to 8). An empty grid launches nothing.
///
/// Programmatic dependent launch: the kernel's blocks may be placed while the previous kernel of
/// the stream finishes and wait in begin_kernel(), which hides most of the launch latency. Not
/// after a fork, join or copy.
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
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !s.first_failure().ok()) return;
    if (smem > 48 * 1024) {
        DI_CUDA(s,
                cudaFuncSetAttribute(
                    kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem)),
                name,
                shape_text(grid, block, smem));
    }
    cudaLaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (s.take_early_launch()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = static_cast<unsigned>(cluster);
        attributes[count].val.clusterDim.y = 1;
        attributes[count++].val.clusterDim.z = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = s.get();
    config.attrs = attributes;
    config.numAttrs = count;
    DI_CUDA(s,
            cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...),
            name,
            shape_text(grid, block, smem) + ", cluster " + std::to_string(cluster));
}

template <typename... Params, typename... Args>
void launch(Stream& stream,
            const char* name,
            void (*kernel)(Params...),
            dim3 grid,
            dim3 block,
            size_t smem,
            Args... args) {
    launch_cluster(stream, name, kernel, grid, block, smem, 1, args...);
}

inline unsigned div_up(int64_t a, int64_t b) {
    return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace deepinfer::cuda
