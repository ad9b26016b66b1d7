// Device: memory and streams of one accelerator (or of the host). Backends implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace deepinfer {

class Device;

/// Device memory with an owner. Freed on destruction; movable.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Device* device, void* data, size_t bytes)
        : device_(device), data_(data), bytes_(bytes) {}
    ~Buffer();
    Buffer(Buffer&& o) noexcept;
    Buffer& operator=(Buffer&& o) noexcept;

    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }

  private:
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

/// All methods may be called from one thread at a time. Memory is 256-byte aligned.
class Device {
  public:
    virtual ~Device() = default;

    /// "cpu", "cuda:0 NVIDIA H200"
    virtual std::string name() const = 0;
    /// True if the host can read and write buffers through their pointers (no copies needed).
    virtual bool host_accessible() const = 0;

    /// kResourceExhausted with both numbers when it does not fit. Contents are unspecified.
    Result<Buffer> allocate(size_t bytes);
    /// Stream for the engine's steps; owned by the device.
    virtual Stream& stream() = 0;

    /// Copies on the stream; the host side of an asynchronous copy must stay valid until it is
    /// done.
    virtual void copy_to_device(Stream& s, void* dst, const void* src, size_t bytes) = 0;
    virtual void copy_to_host(Stream& s, void* dst, const void* src, size_t bytes) = 0;
    virtual void fill_zero(Stream& s, void* dst, size_t bytes) = 0;

    /// Bytes the device could still allocate (an estimate; for stated sizes and refusals).
    virtual size_t free_bytes() const = 0;

    virtual void* raw_allocate(size_t bytes) = 0;  ///< nullptr when out of memory
    virtual void raw_free(void* p) = 0;
};

/// Bump allocator for the activations of one step: reset at its start, one allocation made ahead.
/// take() of more than was reserved is our bug (DI_CHECK): the model computes the size first.
class Arena {
  public:
    explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
    Tensor take(DType t, std::initializer_list<int64_t> dims);
    size_t used() const { return used_; }
    size_t peak() const { return peak_; }
    size_t capacity() const { return buffer_.bytes(); }
    /// Frees everything taken after `mark` (= an earlier used()).
    void rewind(size_t mark) { used_ = mark; }

  private:
    Buffer buffer_;
    size_t used_ = 0;
    size_t peak_ = 0;
};

}  // namespace deepinfer
