#include "kvcache/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

BlockPool::BlockPool(int32_t num_blocks, int block_tokens, EvictionPolicy policy)
    : block_tokens_(block_tokens),
      blocks_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens)),
      queue_(policy, num_blocks) {
    DI_CHECK(num_blocks >= 0 && block_tokens > 0);
    free_.reserve(blocks_.size());
    for (int32_t b = num_blocks - 1; b >= 0; --b) free_.push_back(b);
}

int32_t BlockPool::take() {
    int32_t block = -1;
    if (!free_.empty()) {
        block = free_.back();
        free_.pop_back();
    } else {
        block = queue_.evict();
        if (block < 0) return -1;
        ++num_evictions_;
        index_.erase(at(block).content.key);
        if (forgotten_) forgotten_(at(block).content.key);
        at(block).known = false;
    }
    Block& b = at(block);
    DI_CHECK(b.references == 0 && !b.known);
    b.references = 1;
    ++b.generation;
    return block;
}

void BlockPool::release(int32_t block) {
    Block& b = at(block);
    DI_CHECK_GE(b.references, 1);
    if (--b.references > 0) return;
    if (b.known) {
        queue_.released(block);
    } else {
        free_.push_back(block);
    }
}

void BlockPool::adopt(int32_t block) {
    Block& b = at(block);
    DI_CHECK(b.known);
    queue_.acquired(block);
    ++b.references;
}

/// Takes a key away; the caller decides what becomes of the block.
void BlockPool::forget(int32_t block) {
    Block& b = at(block);
    DI_CHECK(b.known);
    index_.erase(b.content.key);
    if (forgotten_) forgotten_(b.content.key);
    queue_.dropped(block);
    b.known = false;
    if (b.references == 0) free_.push_back(block);
}

bool BlockPool::publish(int32_t block, const Content& content, std::span<const int32_t> tokens) {
    DI_CHECK(at(block).references >= 1 && !at(block).known);
    DI_CHECK_EQ(tokens.size(), static_cast<size_t>(block_tokens_));
    const auto it = index_.find(content.key);
    if (it != index_.end()) {
        const int32_t older = it->second;
        if (!at(older).content.approximate || content.approximate) return false;
        forget(older);
    }
    Block& b = at(block);
    b.content = content;
    b.known = true;
    std::copy(tokens.begin(), tokens.end(), tokens_of(block));
    index_.emplace(content.key, block);
    queue_.published(block, content.key);
    return true;
}

int32_t BlockPool::find(const CacheKey& key,
                        std::span<const int32_t> tokens,
                        bool exact_only) const {
    const auto it = index_.find(key);
    if (it == index_.end()) return -1;
    const int32_t block = it->second;
    if (exact_only && at(block).content.approximate) return -1;
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(block) * block_tokens_;
    if (!std::equal(tokens.begin(), tokens.end(), first, first + block_tokens_)) return -1;
    return block;
}

void BlockPool::forget_all() {
    for (int32_t b = 0; b < num_blocks(); ++b) {
        if (at(b).known) forget(b);
    }
}

void BlockPool::check(const std::vector<int32_t>& held) const {
    DI_CHECK_EQ(held.size(), blocks_.size());
    std::vector<int> free_count(blocks_.size());
    for (const int32_t b : free_) ++free_count[static_cast<size_t>(b)];
    size_t known = 0;
    int32_t evictable = 0;
    for (int32_t b = 0; b < num_blocks(); ++b) {
        const Block& block = at(b);
        const bool is_free = block.references == 0 && !block.known;
        DI_CHECK_EQ(block.references, held[static_cast<size_t>(b)]);
        DI_CHECK_EQ(free_count[static_cast<size_t>(b)], is_free ? 1 : 0);
        DI_CHECK_EQ(queue_.evictable(b), block.references == 0 && block.known);
        evictable += queue_.evictable(b) ? 1 : 0;
        if (!block.known) continue;
        ++known;
        const auto it = index_.find(block.content.key);
        DI_CHECK(it != index_.end());
        DI_CHECK_EQ(it->second, b);
    }
    DI_CHECK_EQ(known, index_.size());
    DI_CHECK_EQ(evictable, queue_.num_evictable());
}

}  // namespace deepinfer
