// EvictionQueue: which cached, unreferenced block gives way when a new one is needed.
//
// kLru takes the least recently released one. kAdaptive keeps two recency lists, blocks used once
// and blocks used again, and balances them by what it regrets: a key that returns soon after its
// eviction (a bounded memory of evicted keys knows) shifts the balance towards the list it was
// evicted from (the idea of ARC, Megiddo & Modha 2003). A long document read once then cannot push
// out the conversations that come back, and a workload without repeats still behaves like LRU.
//
// Both respect chains: a block is used and released no earlier and no less often than the blocks
// that continue it, provided a sequence releases its deepest block first. So leaves go before their
// parents and no cached block becomes unreachable.
//
// Not thread-safe. Block ids are 0 .. num_blocks-1.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "kvcache/cache_key.h"

namespace deepinfer {

enum class EvictionPolicy { kLru, kAdaptive };

class EvictionQueue {
  public:
    EvictionQueue(EvictionPolicy policy, int32_t num_blocks);

    /// The block, referenced by its writer, now holds `key`.
    void published(int32_t block, const CacheKey& key);
    /// A sequence adopted the block by a prefix hit; it is referenced now.
    void acquired(int32_t block);
    /// Its last reference is gone: it may be evicted, as the most recently used.
    void released(int32_t block);
    /// It lost its key while referenced or evictable; it is no longer ours.
    void dropped(int32_t block);
    /// Takes the block to give up, or -1 if none is evictable.
    int32_t evict();

    int32_t num_evictable() const { return lists_[kOnce].size + lists_[kAgain].size; }
    bool evictable(int32_t block) const { return nodes_[static_cast<size_t>(block)].list != kNone; }

  private:
    enum ListId : int8_t { kOnce, kAgain, kNone };
    struct Node {
        int32_t prev = -1, next = -1;
        ListId list = kNone;     ///< the list it stands in
        ListId belongs = kNone;  ///< the list it goes to when released; kNone: holds no key
        uint64_t memory = 0;     ///< name of its key among the evicted ones
    };
    struct BlockList {
        int32_t head = -1, tail = -1;  ///< head: most recently released
        int32_t size = 0;
        int32_t members = 0;  ///< standing here or referenced
    };
    /// Keys evicted from one list, most recent first.
    struct Ghosts {
        std::list<uint64_t> order;
        std::unordered_map<uint64_t, std::list<uint64_t>::iterator> where;
        bool take(uint64_t key);
        void add(uint64_t key, size_t capacity);
    };

    void push_front(ListId list, int32_t block);
    void unlink(int32_t block);

    EvictionPolicy policy_;
    std::vector<Node> nodes_;
    BlockList lists_[2];
    Ghosts ghosts_[2];
    double once_target_ = 0;  ///< members that kOnce may have before it gives way
};

}  // namespace deepinfer
