#include "kvcache/cache_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

int64_t aligned(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/// Calls f(which, bytes) for every tensor of a layer.
enum class Part { kRing, kKvPool, kKeyPool, kTail };

void for_each_part(const CacheGeometry& g,
                   int64_t num_blocks,
                   int64_t num_slots,
                   const std::function<void(size_t, Part, int64_t)>& f) {
    for (size_t i = 0; i < g.layers.size(); ++i) {
        const CacheGeometry::Layer& l = g.layers[i];
        if (l.window_row_bytes > 0) f(i, Part::kRing, num_slots * g.ring_len * l.window_row_bytes);
        if (!l.kv_source) continue;
        DI_CHECK(l.ratio > 0 && g.block_tokens % l.ratio == 0);
        const int64_t entries = num_blocks * (g.block_tokens / l.ratio);
        f(i, Part::kKvPool, entries * l.kv_entry_bytes);
        f(i, Part::kKeyPool, entries * l.index_key_bytes);
        if (l.tail_row_bytes > 0) f(i, Part::kTail, num_slots * g.tail_len * l.tail_row_bytes);
    }
}

}  // namespace

int64_t CacheMemory::bytes(const CacheGeometry& geometry, int64_t num_blocks, int64_t num_slots) {
    int64_t sum = 0;
    for_each_part(
        geometry, num_blocks, num_slots, [&](size_t, Part, int64_t part) { sum += aligned(part); });
    return sum;
}

int64_t CacheMemory::blocks_for(int64_t budget_bytes,
                                const CacheGeometry& geometry,
                                int64_t num_slots) {
    if (bytes(geometry, 0, num_slots) > budget_bytes) return 0;
    const int64_t block = geometry.block_bytes();
    if (block == 0) return 0;
    int64_t blocks = budget_bytes / block + 1;
    while (blocks > 0 && bytes(geometry, blocks, num_slots) > budget_bytes) {
        const int64_t over = bytes(geometry, blocks, num_slots) - budget_bytes;
        blocks -= std::max<int64_t>(1, over / block);
    }
    return std::max<int64_t>(blocks, 0);
}

Result<CacheMemory> CacheMemory::allocate(Device& device,
                                          const CacheGeometry& geometry,
                                          DType acc,
                                          int64_t num_blocks,
                                          int64_t num_slots) {
    DI_CHECK(acc == DType::kF32 || acc == DType::kF64);
    // Asked for as a whole first: filling part after part until the host runs dry would take others
    // along.
    const int64_t wanted = bytes(geometry, num_blocks, num_slots);
    if (static_cast<uint64_t>(wanted) > device.free_bytes()) {
        return Status(StatusCode::kResourceExhausted,
                      "the caches take " + std::to_string(wanted) + " bytes (" +
                          std::to_string(num_blocks) + " blocks, " + std::to_string(num_slots) +
                          " sequence slots), " + device.name() + " has " +
                          std::to_string(device.free_bytes()) + " free");
    }
    CacheMemory memory;
    CacheView& view = memory.view_;
    view.num_blocks = num_blocks;
    view.num_slots = num_slots;
    view.layers.resize(geometry.layers.size());
    Status status;
    for_each_part(geometry, num_blocks, num_slots, [&](size_t i, Part part, int64_t part_bytes) {
        if (!status.ok()) return;
        Result<Buffer> buffer = device.allocate(static_cast<size_t>(aligned(part_bytes)));
        if (!buffer.ok()) {
            status = buffer.status();
            return;
        }
        void* const p = buffer.value().data();
        device.fill_zero(device.stream(), p, static_cast<size_t>(part_bytes));
        memory.buffers_.push_back(std::move(buffer).value());

        const CacheGeometry::Layer& l = geometry.layers[i];
        CacheView::Layer& out = view.layers[i];
        if (l.kv_source) out.entries_per_block = geometry.block_tokens / l.ratio;
        const int64_t entries = num_blocks * out.entries_per_block;
        switch (part) {
            case Part::kRing:
                out.window_ring = {
                    p, DType::kU8, {num_slots, geometry.ring_len, l.window_row_bytes}};
                break;
            case Part::kKvPool:
                out.kv_pool = {p, DType::kU8, {entries, l.kv_entry_bytes}};
                break;
            case Part::kKeyPool:
                out.key_pool = {p, DType::kU8, {entries, l.index_key_bytes}};
                break;
            case Part::kTail: {
                const int64_t lanes = l.tail_row_bytes / 2 / (dtype_bits(acc) / 8);
                DI_CHECK_EQ(lanes * 2 * dtype_bits(acc) / 8, l.tail_row_bytes);
                out.tail = {p, acc, {num_slots, geometry.tail_len, 2, lanes}};
                break;
            }
        }
    });
    if (!status.ok()) {
        return Status(status.code(),
                      "cache of " + std::to_string(num_blocks) + " blocks and " +
                          std::to_string(num_slots) + " slots takes " +
                          std::to_string(bytes(geometry, num_blocks, num_slots)) +
                          " bytes: " + status.message());
    }
    device.stream().synchronize();
    return memory;
}

}  // namespace deepinfer
