// CacheMemory: the pools, rings and tails of one engine on a device, allocated once at start-up.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/status.h"
#include "device/device.h"
#include "ops/cache/cache_view.h"

namespace deepinfer {

class CacheMemory {
  public:
    /// Bytes that allocate() takes (each tensor rounded up to the device's 256-byte alignment).
    static int64_t bytes(const CacheGeometry& geometry, int64_t num_blocks, int64_t num_slots);
    /// The most blocks that fit into budget_bytes beside num_slots slots; 0 if not even the slots
    /// fit.
    static int64_t blocks_for(int64_t budget_bytes,
                              const CacheGeometry& geometry,
                              int64_t num_slots);

    /// Everything or nothing; kResourceExhausted says both numbers. Memory starts as zeros, so a
    /// row that was never written reads the same everywhere. `acc` is the dtype of the raw
    /// compressor rows.
    static Result<CacheMemory> allocate(Device& device,
                                        const CacheGeometry& geometry,
                                        DType acc,
                                        int64_t num_blocks,
                                        int64_t num_slots);

    const CacheView& view() const { return view_; }

  private:
    std::vector<Buffer> buffers_;
    CacheView view_;
};

}  // namespace deepinfer
