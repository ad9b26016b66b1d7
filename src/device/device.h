// Device: memory and streams of one accelerator (or of the host). Backends implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// Host memory that copies to and from a device run beside its work from (pinned where the device
/// has such a thing). Freed on destruction; movable.
class HostBuffer {
  public:
    HostBuffer() = default;
    HostBuffer(Device* device, void* data, size_t bytes)
        : device_(device), data_(data), bytes_(bytes) {}
    ~HostBuffer();
    HostBuffer(HostBuffer&& o) noexcept;
    HostBuffer& operator=(HostBuffer&& o) noexcept;

    uint8_t* data() const { return static_cast<uint8_t*>(data_); }
    size_t bytes() const { return bytes_; }

  private:
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

/// Recorded work of a stream. Replaying it does the same calls on the same addresses; what stands
/// in the memory may have changed.
class DeviceGraph {
  public:
    virtual ~DeviceGraph() = default;
    /// True if memory that the recorded ops own has moved since: it must be recorded anew.
    virtual bool stale(const Stream& s) const = 0;
    /// Queues the whole recording.
    virtual void launch(Stream& s) = 0;
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

    /// kResourceExhausted when it is not there.
    Result<HostBuffer> allocate_host(size_t bytes);

    /// True if capture() records.
    virtual bool records_graphs() const { return false; }
    /// Runs `queue` with the stream in recording mode: nothing that it queues is done. It must have
    /// run for real once before (so that no op still has to allocate), and may neither copy from or
    /// to host memory that moves nor wait. nullptr with the reason in the stream's status.
    virtual std::unique_ptr<DeviceGraph> capture(Stream& s, const std::function<void()>& queue);

    /// Bytes the device could still allocate (an estimate; for stated sizes and refusals).
    virtual size_t free_bytes() const = 0;

    virtual void* raw_allocate(size_t bytes) = 0;  ///< nullptr when out of memory
    virtual void raw_free(void* p) = 0;
    virtual void* raw_allocate_host(size_t bytes);  ///< nullptr when out of memory
    virtual void raw_free_host(void* p);
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
