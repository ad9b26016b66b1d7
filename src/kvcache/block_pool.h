// BlockPool: the blocks of the global cache by id. Who holds them, what they are known as, and
// which one to take next.
//
// A block is in exactly one state:
//   free         no reference, no key; handed out first
//   held         referenced by sequences; more of them can join while it has a key
//   cached       no reference, but a key: a later prompt can adopt it, until it is evicted
// The index never names a block that could be handed out: eviction removes the key before the id is
// given away, and the generation then changes, so a match from before cannot be adopted by mistake.
//
// Not thread-safe: the scheduler's thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/cache_key.h"
#include "kvcache/eviction.h"

namespace deepinfer {

class BlockPool {
  public:
    BlockPool(int32_t num_blocks, int block_tokens, EvictionPolicy policy);

    int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
    int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
    int32_t num_cached() const { return queue_.num_evictable(); }
    int32_t num_held() const { return num_blocks() - num_free() - num_cached(); }
    /// Blocks that take() can give now.
    int32_t num_available() const { return num_free() + num_cached(); }
    int64_t num_evictions() const { return num_evictions_; }

    /// A block with one reference and no key, or -1 when every block is held.
    int32_t take();
    /// Takes one reference back.
    void release(int32_t block);
    /// One reference more for a prefix hit.
    void adopt(int32_t block);

    /// What a block's contents are worth to others.
    struct Content {
        CacheKey key{};
        bool approximate = false;  ///< computed after a bounded replay: not the bits of a cold run
    };
    /// Gives a held block its key. If the key is known already the older block stays the one that
    /// is found, unless it is approximate and this one is not. Returns whether this one is found
    /// now.
    bool publish(int32_t block, const Content& content, std::span<const int32_t> tokens);
    /// The block with this key and exactly these tokens, or -1. exact_only: approximate ones do not
    /// count.
    int32_t find(const CacheKey& key, std::span<const int32_t> tokens, bool exact_only) const;
    /// Hears of every key that the index loses (eviction, replacement by an exact block).
    void on_forget(std::function<void(const CacheKey&)> listener) {
        forgotten_ = std::move(listener);
    }
    /// Forgets every key; cached blocks become free.
    void forget_all();

    int32_t references(int32_t block) const { return at(block).references; }
    uint32_t generation(int32_t block) const { return at(block).generation; }
    bool has_key(int32_t block) const { return at(block).known; }

    /// Recounts everything and stops the process on a contradiction. `held` = references per block
    /// that the caller knows of.
    void check(const std::vector<int32_t>& held) const;

  private:
    struct Block {
        int32_t references = 0;
        uint32_t generation = 0;  ///< times it was handed out
        bool known = false;       ///< the index leads here
        Content content;
    };
    Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
    const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
    int32_t* tokens_of(int32_t block) {
        return tokens_.data() + static_cast<size_t>(block) * static_cast<size_t>(block_tokens_);
    }
    void forget(int32_t block);

    int block_tokens_;
    std::vector<Block> blocks_;
    std::vector<int32_t> tokens_;  ///< [num_blocks, block_tokens]: compared on every hit
    std::vector<int32_t> free_;    ///< a stack
    EvictionQueue queue_;
    std::unordered_map<CacheKey, int32_t, CacheKeyHash> index_;
    int64_t num_evictions_ = 0;
    std::function<void(const CacheKey&)> forgotten_;
};

}  // namespace deepinfer
