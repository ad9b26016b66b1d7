#include "device/host_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace deepinfer {

void HostDevice::copy_to_device(Stream&, void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
}
void HostDevice::copy_to_host(Stream&, void* dst, const void* src, size_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, bytes);
}
void HostDevice::fill_zero(Stream& stream, void* dst, size_t bytes) {
    constexpr int64_t kPart = int64_t{1} << 20;  // a thread's least share
    parallel_for(stream, static_cast<int64_t>(bytes), kPart, [&](int64_t begin, int64_t end) {
        std::memset(static_cast<uint8_t*>(dst) + begin, 0, static_cast<size_t>(end - begin));
    });
}

size_t HostDevice::free_bytes() const {
    // What the kernel could hand out (free memory and droppable page cache), and no more than the
    // container's limit leaves.
    const auto number_of =
        [](const char* path, const std::string& key, double unit, double fallback) {
            std::ifstream f(path);
            std::string word;
            while (f >> word) {
                double value = 0;
                if (key.empty()) return word == "max" ? fallback : std::atof(word.c_str()) * unit;
                if (word == key && f >> value) return value * unit;
            }
            return fallback;
        };
    const double available = number_of("/proc/meminfo", "MemAvailable:", 1024.0, 0.0);
    const double limit = number_of("/sys/fs/cgroup/memory.max", "", 1.0, 0.0);
    const double used = number_of("/sys/fs/cgroup/memory.current", "", 1.0, 0.0);
    const double free = limit > 0 ? std::min(available, std::max(0.0, limit - used)) : available;
    return static_cast<size_t>(free);
}

void* HostDevice::raw_allocate(size_t bytes) {
    constexpr size_t kLine = 256, kHugePage = size_t{2} << 20;
    if (bytes < 4 * kHugePage)
        return std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
    // Caches and workspaces in huge pages: a fault for every 2 MiB, and rows far apart keep their
    // place in the TLB.
    const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* p = std::aligned_alloc(kHugePage, rounded);
    if (p != nullptr) madvise(p, rounded, MADV_HUGEPAGE);
    return p;
}
void HostDevice::raw_free(void* p) {
    std::free(p);
}

}  // namespace deepinfer
