#include "backends/cpu/scratch.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace deepinfer::cpu {
namespace {

struct Free {
    void operator()(void* p) const { std::free(p); }
};
struct Buffer {
    std::unique_ptr<void, Free> data;
    int64_t bytes = 0;
};
thread_local std::array<Buffer, static_cast<size_t>(Slot::kCount)> buffers;

}  // namespace

void* scratch_bytes(Slot slot, int64_t bytes) {
    Buffer& b = buffers[static_cast<size_t>(slot)];
    if (b.bytes < bytes) {
        // Large buffers on huge pages: a block's working set is hundreds of 4 KiB pages.
        constexpr int64_t kHuge = int64_t{2} << 20;
        const int64_t unit = bytes > kHuge / 4 ? kHuge : 4096;
        const int64_t rounded = (bytes + bytes / 4 + unit - 1) / unit * unit;
        b.data.reset(std::aligned_alloc(static_cast<size_t>(unit), static_cast<size_t>(rounded)));
        DI_CHECK_MSG(b.data != nullptr, "out of memory for the scratch buffers of the CPU ops");
        if (unit == kHuge) madvise(b.data.get(), static_cast<size_t>(rounded), MADV_HUGEPAGE);
        b.bytes = rounded;
    }
    return b.data.get();
}

}  // namespace deepinfer::cpu
