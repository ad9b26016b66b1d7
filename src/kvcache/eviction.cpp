#include "kvcache/eviction.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace deepinfer {

bool EvictionQueue::Ghosts::take(uint64_t key) {
    const auto it = where.find(key);
    if (it == where.end()) return false;
    order.erase(it->second);
    where.erase(it);
    return true;
}

void EvictionQueue::Ghosts::add(uint64_t key, size_t capacity) {
    take(key);
    order.push_front(key);
    where[key] = order.begin();
    if (order.size() > capacity) {
        where.erase(order.back());
        order.pop_back();
    }
}

EvictionQueue::EvictionQueue(EvictionPolicy policy, int32_t num_blocks)
    : policy_(policy), nodes_(static_cast<size_t>(num_blocks)) {}

void EvictionQueue::push_front(ListId list, int32_t block) {
    Node& node = nodes_[static_cast<size_t>(block)];
    BlockList& l = lists_[list];
    node.list = list;
    node.prev = -1;
    node.next = l.head;
    (l.head >= 0 ? nodes_[static_cast<size_t>(l.head)].prev : l.tail) = block;
    l.head = block;
    ++l.size;
}

void EvictionQueue::unlink(int32_t block) {
    Node& node = nodes_[static_cast<size_t>(block)];
    BlockList& l = lists_[node.list];
    (node.prev >= 0 ? nodes_[static_cast<size_t>(node.prev)].next : l.head) = node.next;
    (node.next >= 0 ? nodes_[static_cast<size_t>(node.next)].prev : l.tail) = node.prev;
    node.list = kNone;
    --l.size;
}

void EvictionQueue::published(int32_t block, const CacheKey& key) {
    Node& node = nodes_[static_cast<size_t>(block)];
    DI_CHECK(node.belongs == kNone && node.list == kNone);
    std::memcpy(&node.memory, key.data(), sizeof node.memory);
    node.belongs = kOnce;
    if (policy_ == EvictionPolicy::kAdaptive) {
        const auto count = [&](ListId id) {
            return std::max<double>(1, static_cast<double>(ghosts_[id].order.size()));
        };
        const double step_up = std::max(1.0, count(kAgain) / count(kOnce));
        const double step_down = std::max(1.0, count(kOnce) / count(kAgain));
        if (ghosts_[kOnce].take(node.memory)) {
            once_target_ = std::min(once_target_ + step_up, static_cast<double>(nodes_.size()));
            node.belongs = kAgain;
        } else if (ghosts_[kAgain].take(node.memory)) {
            once_target_ = std::max(once_target_ - step_down, 0.0);
            node.belongs = kAgain;
        }
    }
    ++lists_[node.belongs].members;
}

void EvictionQueue::acquired(int32_t block) {
    Node& node = nodes_[static_cast<size_t>(block)];
    DI_CHECK(node.belongs != kNone);
    if (node.list != kNone) unlink(block);
    if (policy_ == EvictionPolicy::kAdaptive && node.belongs == kOnce) {
        --lists_[kOnce].members;
        node.belongs = kAgain;
        ++lists_[kAgain].members;
    }
}

void EvictionQueue::released(int32_t block) {
    Node& node = nodes_[static_cast<size_t>(block)];
    DI_CHECK(node.belongs != kNone && node.list == kNone);
    push_front(node.belongs, block);
}

void EvictionQueue::dropped(int32_t block) {
    Node& node = nodes_[static_cast<size_t>(block)];
    DI_CHECK(node.belongs != kNone);
    if (node.list != kNone) unlink(block);
    --lists_[node.belongs].members;
    node.belongs = kNone;
}

int32_t EvictionQueue::evict() {
    if (num_evictable() == 0) return -1;
    ListId from = kOnce;
    if (lists_[kOnce].size == 0 ||
        (lists_[kAgain].size > 0 && static_cast<double>(lists_[kOnce].members) <= once_target_)) {
        from = kAgain;
    }
    const int32_t block = lists_[from].tail;
    if (policy_ == EvictionPolicy::kAdaptive) {
        ghosts_[from].add(nodes_[static_cast<size_t>(block)].memory, nodes_.size());
    }
    dropped(block);
    return block;
}

}  // namespace deepinfer
