// The host as a Device: aligned heap memory and a thread pool. Used by the ref, exact and cpu
// backends.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace deepinfer {

class HostDevice final : public Device {
  public:
    explicit HostDevice(int num_threads) : pool_(num_threads), stream_(&pool_) {}

    std::string name() const override { return "cpu"; }
    bool host_accessible() const override { return true; }
    Stream& stream() override { return stream_; }
    void copy_to_device(Stream& s, void* dst, const void* src, size_t bytes) override;
    void copy_to_host(Stream& s, void* dst, const void* src, size_t bytes) override;
    void fill_zero(Stream& s, void* dst, size_t bytes) override;
    size_t free_bytes() const override;
    void* raw_allocate(size_t bytes) override;
    void raw_free(void* p) override;
    int num_threads() const { return pool_.num_threads(); }

  private:
    ThreadPool pool_;
    CpuStream stream_;
};

}  // namespace deepinfer
