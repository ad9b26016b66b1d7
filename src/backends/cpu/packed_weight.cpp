#include "backends/cpu/packed_weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>

namespace deepinfer::cpu {
namespace {

constexpr int64_t kChunkBytes = int64_t{64} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;

/// Private read-only file mappings of this process, read from /proc/self/maps when an address is
/// new.
class FileMappings {
  public:
    bool contains(uintptr_t begin, uintptr_t end) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (find(begin, end)) return true;
        read();
        return find(begin, end);
    }

  private:
    struct Range {
        uintptr_t begin, end;
    };
    bool find(uintptr_t begin, uintptr_t end) const {
        return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) {
            return begin >= r.begin && end <= r.end;
        });
    }
    void read() {
        ranges_.clear();
        std::ifstream f("/proc/self/maps");
        std::string line;
        while (std::getline(f, line)) {
            unsigned long begin = 0, end = 0, inode = 0;
            char perms[8] = {};
            if (std::sscanf(line.c_str(), "%lx-%lx %7s %*x %*s %lu", &begin, &end, perms, &inode) !=
                4)
                continue;
            const std::string p = perms;
            if (inode != 0 && (p == "r--p" || p == "r--s")) ranges_.push_back({begin, end});
        }
    }
    std::mutex mutex_;
    std::vector<Range> ranges_;
};

}  // namespace

void release_file_pages(const void* p, int64_t bytes) {
    static FileMappings mappings;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(p) + kPage - 1) / kPage * kPage;
    const uintptr_t end =
        (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes)) / kPage * kPage;
    if (end <= begin || !mappings.contains(begin, end)) return;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

PanelArena::~PanelArena() {
    for (const Chunk& c : chunks_) munmap(c.base, static_cast<size_t>(c.bytes));
}

uint8_t* PanelArena::allocate(int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > free_) {
        const int64_t size = std::max(kChunkBytes, (bytes + kHugePage - 1) / kHugePage * kHugePage);
        void* p = mmap(nullptr,
                       static_cast<size_t>(size),
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1,
                       0);
        if (p == MAP_FAILED) return nullptr;
        madvise(p, static_cast<size_t>(size), MADV_HUGEPAGE);
        chunks_.push_back({static_cast<uint8_t*>(p), size});
        free_ = size;
    }
    uint8_t* out = chunks_.back().base + (chunks_.back().bytes - free_);
    free_ -= bytes;
    used_ += bytes;
    return out;
}

bool PackedWeight::ready(Stream& stream) {
    std::call_once(once_, [&] { pack(stream); });
    return data_ != nullptr;
}

void PackedWeight::pack(Stream& stream) {
    if (!packable(source_)) return;
    // Reads the file for the first time, on all threads.
    std::atomic<bool> nan{false};
    parallel_for(stream, source_.n, 256, [&](int64_t begin, int64_t end) {
        if (has_nan_codes(source_, begin, end)) nan = true;
    });
    if (nan) return;
    format_ = panel_format(source_.dtype, isa_);
    stride_ = panel_bytes(format_, source_.k);
    const int64_t panels = num_panels(source_.n);
    uint8_t* data = arena_->allocate(panels * stride_);
    if (data == nullptr) return;  // the twin reads the stored form
    parallel_for(stream, panels, 8, [&](int64_t begin, int64_t end) {
        pack_panels(source_, format_, begin, end, data);
    });
    release_file_pages(source_.weight, source_.n * source_.k * dtype_bits(source_.dtype) / 8);
    data_ = data;
}

const PackedWeight* packed_weight(Stream& stream, const WeightMatrix& w) {
    if (w.packed == nullptr) return nullptr;
    PackedWeight* p = static_cast<PackedWeight*>(const_cast<void*>(w.packed));
    return p->ready(stream) ? p : nullptr;
}

}  // namespace deepinfer::cpu
