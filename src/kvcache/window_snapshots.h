// WindowSnapshots: which prefixes have their window state stored, and in which slot.
//
// A snapshot is a copy of one sequence slot (window rings, compressor tails, draft windows) taken
// when the sequence stood at the end of a whole block; its name is that block's key. A later prompt
// that hits the block takes the copy instead of running part of the hit again. Snapshots live in
// slots of their own, of a fixed number: the least recently used one gives way, and one whose block
// is evicted goes with it.
//
// Bookkeeping alone: whoever asks for a slot copies the bytes, in the order of the calls. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "kvcache/cache_key.h"

namespace deepinfer {

struct WindowSnapshot {
    int32_t slot = -1;
    /// Every layer's windows have the bits of a run of the whole prefix. False: only those of the
    /// layers up to the last kv source (prefill truncation left out the others).
    bool complete = false;
};

class WindowSnapshots {
  public:
    /// Slots first_slot … first_slot + count − 1.
    WindowSnapshots(int32_t first_slot, int32_t count);

    /// Null: none. Does not count as use.
    const WindowSnapshot* find(const CacheKey& key) const;
    /// It was found useful: the last to give way from now on.
    void use(const CacheKey& key);
    /// Slot to copy to, or −1 when the key has as good a snapshot already (or there are no slots).
    int32_t store(const CacheKey& key, bool complete);
    /// Its block is gone. Unknown keys are ignored.
    void drop(const CacheKey& key);

    int32_t size() const { return static_cast<int32_t>(index_.size()); }
    int32_t capacity() const { return capacity_; }
    int64_t num_evictions() const { return num_evictions_; }
    /// Recounts; stops the process on a contradiction.
    void check() const;

  private:
    struct Entry {
        CacheKey key{};
        WindowSnapshot snapshot;
    };
    using Entries = std::list<Entry>;

    int32_t first_slot_, capacity_;
    std::vector<int32_t> free_;
    Entries order_;  ///< most recently used first
    std::unordered_map<CacheKey, Entries::iterator, CacheKeyHash> index_;
    int64_t num_evictions_ = 0;
};

}  // namespace deepinfer
