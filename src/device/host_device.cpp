#include "device/host_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace deepinfer {

void HostDevice::copy_to_device(Stream&, void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
}
void HostDevice::copy_to_host(Stream&, void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
}
void HostDevice::fill_zero(Stream&, void* dst, size_t bytes) {
    if (bytes > 0) std::memset(dst, 0, bytes);
}

size_t HostDevice::free_bytes() const {
    const long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && size > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(size) : 0;
}

void* HostDevice::raw_allocate(size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
void HostDevice::raw_free(void* p) { std::free(p); }

}  // namespace deepinfer
