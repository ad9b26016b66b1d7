#include "kvcache/window_snapshots.h"

#include "base/check.h"

namespace deepinfer {

WindowSnapshots::WindowSnapshots(int32_t first_slot, int32_t count)
    : first_slot_(first_slot), capacity_(count) {
    DI_CHECK(first_slot >= 0 && count >= 0);
    for (int32_t i = count - 1; i >= 0; --i) free_.push_back(first_slot + i);
}

const WindowSnapshot* WindowSnapshots::find(const CacheKey& key) const {
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : &it->second->snapshot;
}

void WindowSnapshots::use(const CacheKey& key) {
    const auto it = index_.find(key);
    DI_CHECK(it != index_.end());
    order_.splice(order_.begin(), order_, it->second);
}

int32_t WindowSnapshots::store(const CacheKey& key, bool complete) {
    const auto known = index_.find(key);
    if (known != index_.end()) {
        WindowSnapshot& old = known->second->snapshot;
        use(key);
        if (old.complete || !complete) return -1;
        old.complete = true;  // the same slot, better contents
        return old.slot;
    }
    if (capacity_ == 0) return -1;
    if (free_.empty()) {
        ++num_evictions_;
        drop(order_.back().key);
    }
    Entry entry;
    entry.key = key;
    entry.snapshot.slot = free_.back();
    entry.snapshot.complete = complete;
    free_.pop_back();
    order_.push_front(entry);
    index_[key] = order_.begin();
    return entry.snapshot.slot;
}

void WindowSnapshots::drop(const CacheKey& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return;
    free_.push_back(it->second->snapshot.slot);
    order_.erase(it->second);
    index_.erase(it);
}

void WindowSnapshots::check() const {
    DI_CHECK_EQ(order_.size(), index_.size());
    DI_CHECK_EQ(static_cast<int64_t>(free_.size() + order_.size()), capacity_);
    std::vector<int> users(static_cast<size_t>(capacity_));
    for (const int32_t slot : free_) ++users[static_cast<size_t>(slot - first_slot_)];
    for (const Entry& e : order_) {
        ++users[static_cast<size_t>(e.snapshot.slot - first_slot_)];
        const auto it = index_.find(e.key);
        DI_CHECK(it != index_.end() && it->second->snapshot.slot == e.snapshot.slot);
    }
    for (const int n : users) DI_CHECK_EQ(n, 1);
}

}  // namespace deepinfer
