// Scratch memory of the CPU ops: one growing buffer per thread and slot, kept between calls.
#pragma once

#include <cstdint>

namespace deepinfer::cpu {

/// What a buffer is for: two uses that live at the same time on one thread need two slots.
enum class Slot {
    kActivations,
    kPanel,
    kMoeRows,
    kMoeGathered,
    kMoeHidden,
    kMoeHiddenWide,
    kMoeOut,
    kAttention,
    kIndex,
    kIndexDots,
    kKeys,
    kVitKeys,
    kVitValues,
    kVitRows,
    kCount
};

/// 64-byte aligned memory of this thread, at least `bytes`, contents unspecified. Valid until the
/// next call with the same slot on the same thread.
void* scratch_bytes(Slot slot, int64_t bytes);

template <typename T>
T* scratch(Slot slot, int64_t count) {
    return static_cast<T*>(scratch_bytes(slot, count * static_cast<int64_t>(sizeof(T))));
}

}  // namespace deepinfer::cpu
