#include "device/device.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace deepinfer {

Buffer::~Buffer() {
    if (data_ != nullptr) device_->raw_free(data_);
}

Buffer::Buffer(Buffer&& o) noexcept
    : device_(std::exchange(o.device_, nullptr)),
      data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
}

HostBuffer::~HostBuffer() {
    if (data_ != nullptr) device_->raw_free_host(data_);
}

HostBuffer::HostBuffer(HostBuffer&& o) noexcept
    : device_(std::exchange(o.device_, nullptr)),
      data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
}

Result<HostBuffer> Device::allocate_host(size_t bytes) {
    void* p = raw_allocate_host(bytes == 0 ? 1 : bytes);
    if (p == nullptr) {
        return Status(
            StatusCode::kResourceExhausted,
            "cannot allocate " + std::to_string(bytes) + " bytes of host memory for " + name());
    }
    return HostBuffer(this, p, bytes);
}

std::unique_ptr<DeviceGraph> Device::capture(Stream&, const std::function<void()>&) {
    DI_CHECK_MSG(false, name() + " records no graphs");
    return nullptr;
}

void* Device::raw_allocate_host(size_t bytes) {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}
void Device::raw_free_host(void* p) {
    std::free(p);
}

Result<Buffer> Device::allocate(size_t bytes) {
    void* p = raw_allocate(bytes == 0 ? 1 : bytes);
    if (p == nullptr) {
        return Status(StatusCode::kResourceExhausted,
                      "cannot allocate " + std::to_string(bytes) + " bytes on " + name() + " (" +
                          std::to_string(free_bytes()) + " free)");
    }
    return Buffer(this, p, bytes);
}

Tensor Arena::take(DType t, std::initializer_list<int64_t> dims) {
    Tensor out(static_cast<uint8_t*>(buffer_.data()) + used_, t, dims);
    const size_t bytes = (static_cast<size_t>(std::max<int64_t>(0, out.bytes())) + 255) / 256 * 256;
    DI_CHECK_LE(used_ + bytes, buffer_.bytes());
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return out;
}

}  // namespace deepinfer
