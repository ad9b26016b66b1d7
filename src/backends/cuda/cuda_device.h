// CudaDevice: memory and the step stream of one NVIDIA device.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/cuda_stream.h"
#include "device/device.h"

namespace deepinfer::cuda {

class CudaDevice final : public Device {
  public:
    /// kUnavailable without a driver, a device or that index (both numbers are named);
    /// kUnimplemented for a chip the kernels were not built for.
    static Result<std::unique_ptr<CudaDevice>> create(int index);

    std::string name() const override { return name_; }
    bool host_accessible() const override { return false; }
    Stream& stream() override { return *stream_; }
    CudaStream& cuda() { return *stream_; }
    void copy_to_device(Stream& s, void* dst, const void* src, size_t bytes) override;
    void copy_to_host(Stream& s, void* dst, const void* src, size_t bytes) override;
    void fill_zero(Stream& s, void* dst, size_t bytes) override;
    size_t free_bytes() const override;
    void* raw_allocate(size_t bytes) override;
    void raw_free(void* p) override;
    void* raw_allocate_host(size_t bytes) override;  ///< pinned
    void raw_free_host(void* p) override;
    bool records_graphs() const override { return true; }
    std::unique_ptr<DeviceGraph> capture(Stream& s, const std::function<void()>& queue) override;

  private:
    CudaDevice() = default;
    std::string name_;
    std::unique_ptr<CudaStream> stream_;
};

}  // namespace deepinfer::cuda
