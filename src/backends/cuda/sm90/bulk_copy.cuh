// Thin wrappers around Hopper's bulk copies, cluster barriers and stmatrix, named after them.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/mma.cuh"

namespace deepinfer::cuda {

/// The same shared-memory place in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
/// Arrival at a barrier of any block of the cluster. Orders this block's own accesses only: a
/// release at cluster scope would flush to L2 every time.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// One arrival; the phase ends after `bytes` more have been copied to this barrier.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/// `bytes` (a multiple of 16) from global to shared memory of this block.
__device__ __forceinline__ void bulk_copy(uint32_t to,
                                          const void* from,
                                          uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from),
        "r"(bytes),
        "r"(barrier)
        : "memory");
}
/// The box at (column, row) of a tensor map, zeros outside the tensor, to this place in every block
/// of the cluster whose bit is set, signalled at each one's own barrier.
__device__ __forceinline__ void tensor_copy_multicast(
    uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
        "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map),
        "r"(column),
        "r"(row),
        "r"(barrier),
        "h"(blocks)
        : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Stores 8 × 8 bf16 matrices held in the accumulator layout, transposed: shared row = fragment
/// column. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4_trans(
    uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m0),
                 "r"(m1),
                 "r"(m2),
                 "r"(m3)
                 : "memory");
}

}  // namespace deepinfer::cuda
