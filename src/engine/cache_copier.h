// CacheCopier: the copies that a fork needs, inside one CacheView.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/cache/cache_view.h"

namespace deepinfer {

/// Device and view outlive it. The executor's thread alone; ordered after earlier work of the
/// stream.
class CacheCopier {
  public:
    CacheCopier(Device& device, const CacheView& view) : device_(device), view_(view) {}

    /// Window rings and compressor tails of one slot to another.
    void copy_slot(int32_t from, int32_t to);
    /// Entries and index keys of one block to another.
    void copy_block(int32_t from, int32_t to);

  private:
    void copy_rows(const Tensor& t, int64_t from, int64_t to, int64_t rows);

    Device& device_;
    const CacheView& view_;
    std::vector<uint8_t> bounce_;  ///< devices copy through the host: forks are rare
};

}  // namespace deepinfer
