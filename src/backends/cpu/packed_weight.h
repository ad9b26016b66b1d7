// PackedWeight: what WeightMatrix::packed points to on the CPU backend.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cpu/pack.h"
#include "device/stream.h"
#include "ops/weight_matrix.h"

namespace deepinfer::cpu {

/// Memory for packed panels: large anonymous mappings, huge pages where the kernel gives them,
/// filled from the front. Pages that nothing was packed into are never touched.
class PanelArena {
  public:
    PanelArena() = default;
    ~PanelArena();
    PanelArena(const PanelArena&) = delete;
    PanelArena& operator=(const PanelArena&) = delete;

    /// 64-byte aligned; nullptr when the system has no memory.
    uint8_t* allocate(int64_t bytes);
    int64_t used_bytes() const { return used_; }

  private:
    struct Chunk {
        uint8_t* base;
        int64_t bytes;
    };
    std::mutex mutex_;
    std::vector<Chunk> chunks_;
    int64_t free_ = 0;
    int64_t used_ = 0;
};

/// One weight's panels, made at load by all threads (tables that are only gathered from are
/// prepared as tensors and never copied). Threads pack the panels that they will multiply with, so
/// first touch puts a panel on its reader's NUMA node. After packing, the stored pages are given
/// back to the system if they are a read-only file mapping: resident memory holds one copy.
/// Thread-safe.
class PackedWeight {
  public:
    PackedWeight(const WeightMatrix& w, Isa isa, PanelArena* arena)
        : source_(w), isa_(isa), arena_(arena) {}

    /// False if the twin has to compute this weight (see packable()).
    bool ready(Stream& stream);
    /// What ready() returned; false before its first call.
    bool packed() const { return data_ != nullptr; }
    PanelFormat format() const { return format_; }
    /// Panel p: kPanelRows rows from row 32 · p.
    const uint8_t* panel(int64_t p) const { return data_ + p * stride_; }
    Isa isa() const { return isa_; }

  private:
    void pack(Stream& stream);

    WeightMatrix source_;
    Isa isa_;
    PanelArena* arena_;
    std::once_flag once_;
    PanelFormat format_ = PanelFormat::kBf16;
    uint8_t* data_ = nullptr;
    int64_t stride_ = 0;
};

/// The packed form of w, or nullptr if the twin has to compute it.
const PackedWeight* packed_weight(Stream& stream, const WeightMatrix& w);

/// Gives the whole pages of [p, p + bytes) back if they belong to a private read-only file mapping
/// (they are read again from the page cache when touched); does nothing for other memory.
void release_file_pages(const void* p, int64_t bytes);

}  // namespace deepinfer::cpu
