// A file mapped read-only. Pages are read on first touch; nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "deepinfer/status.h"

namespace deepinfer {

/// Owns the mapping; the bytes stay valid until it is destroyed. Movable, not copyable.
class MmapFile {
  public:
    MmapFile() = default;
    ~MmapFile();
    MmapFile(MmapFile&& other) noexcept;
    MmapFile& operator=(MmapFile&& other) noexcept;

    /// kNotFound if it cannot be opened, kInvalidFile if it is no regular file. An empty file is
    /// fine.
    static Result<MmapFile> open(const std::string& path);

    std::span<const uint8_t> bytes() const { return {data_, size_}; }
    const std::string& path() const { return path_; }

  private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    std::string path_;
};

/// Reads a whole (small) file; refuses more than `max_bytes` before allocating.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace deepinfer
