#include "kvcache/kv_cache_manager.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace deepinfer {

PrefixMatch PrefixMatch::limited_to(int64_t tokens) const {
    PrefixMatch m = *this;
    const auto keep = static_cast<size_t>(std::max<int64_t>(tokens, 0) / std::max(block_tokens, 1));
    if (keep < m.block_ids.size()) {
        m.block_ids.resize(keep);
        m.generations.resize(keep);
        m.pending_tokens = 0;
    }
    return m;
}

KvCacheManager::KvCacheManager(const KvCacheOptions& options)
    : options_(options), pool_(options.num_blocks, options.block_tokens, options.eviction) {
    for (int32_t s = options.num_slots - 1; s >= 0; --s) free_slots_.push_back(s);
}

const KvCacheManager::Sequence& KvCacheManager::at(SeqId seq) const {
    const auto it = sequences_.find(seq);
    DI_CHECK_MSG(it != sequences_.end(), "sequence " + std::to_string(seq));
    return it->second;
}

size_t KvCacheManager::blocks_for(int64_t num_tokens) const {
    DI_CHECK_GE(num_tokens, 0);
    return static_cast<size_t>((num_tokens + options_.block_tokens - 1) / options_.block_tokens);
}

void KvCacheManager::add_pending(const CacheKey& key, int change) {
    int& count = pending_[key];
    count += change;
    DI_CHECK_GE(count, 0);
    if (count == 0) pending_.erase(key);
}

std::vector<CacheKey> KvCacheManager::block_keys(const CacheKey& root,
                                                 std::span<const int32_t> tokens,
                                                 std::span<const ImageSpan> images) const {
    std::vector<CacheKey> keys;
    if (options_.prefix_caching)
        extend_block_keys(root, tokens, options_.block_tokens, images, &keys);
    return keys;
}

PrefixMatch KvCacheManager::match_prefix(std::span<const CacheKey> keys,
                                         std::span<const int32_t> tokens,
                                         bool exact_only) const {
    const auto size = static_cast<size_t>(options_.block_tokens);
    DI_CHECK_LE(keys.size() * size, tokens.size());
    PrefixMatch match;
    match.block_tokens = options_.block_tokens;
    size_t i = 0;
    for (; i < keys.size(); ++i) {
        const int32_t block = pool_.find(keys[i], tokens.subspan(i * size, size), exact_only);
        if (block < 0) break;
        match.block_ids.push_back(block);
        match.generations.push_back(pool_.generation(block));
    }
    for (; i < keys.size() && pending_.count(keys[i]) != 0; ++i) {
        match.pending_tokens += options_.block_tokens;
    }
    return match;
}

Status KvCacheManager::start(SeqId seq, StartOptions start, const PrefixMatch& match) {
    DI_CHECK_MSG(!contains(seq), "sequence " + std::to_string(seq) + " was started twice");
    DI_CHECK_LE(match.block_ids.size(), start.prompt_keys.size());
    if (free_slots_.empty()) {
        return {StatusCode::kResourceExhausted,
                "no free sequence slot: all " + std::to_string(options_.num_slots) + " are in use"};
    }
    for (size_t i = 0; i < match.block_ids.size(); ++i) {
        if (pool_.generation(match.block_ids[i]) != match.generations[i] ||
            !pool_.has_key(match.block_ids[i])) {
            return {
                StatusCode::kUnavailable,
                "cached block " + std::to_string(i) + " of the prefix was evicted after the match"};
        }
    }
    Sequence s;
    s.slot = free_slots_.back();
    free_slots_.pop_back();
    s.blocks = match.block_ids;
    for (const int32_t block : s.blocks) pool_.adopt(block);
    s.root = start.root;
    s.cacheable = options_.prefix_caching && start.cacheable;
    s.keys = std::move(start.prompt_keys);
    s.num_prompt_keys = s.keys.size();
    s.num_committed = s.blocks.size();
    s.approximate = start.approximate;
    if (!s.cacheable) s.num_prompt_keys = s.num_committed;  // nobody should wait for it
    for (size_t i = s.num_committed; i < s.num_prompt_keys; ++i) add_pending(s.keys[i], 1);
    if (start.prompt_tokens > 0) {
        counters_.query_tokens += start.prompt_tokens;
        counters_.hit_tokens += match.num_tokens();
    }
    sequences_.emplace(seq, std::move(s));
    return {};
}

int64_t KvCacheManager::blocks_needed(SeqId seq, int64_t num_tokens) const {
    const size_t have = at(seq).blocks.size(), want = blocks_for(num_tokens);
    return want > have ? static_cast<int64_t>(want - have) : 0;
}

Status KvCacheManager::allocate(SeqId seq, int64_t num_tokens) {
    Sequence& s = at(seq);
    const int64_t needed = blocks_needed(seq, num_tokens);
    if (needed > pool_.num_available()) {
        ++counters_.failed_allocations;
        return {StatusCode::kResourceExhausted,
                "KV cache: " + std::to_string(needed) + " more blocks needed, " +
                    std::to_string(pool_.num_available()) + " of " +
                    std::to_string(pool_.num_blocks()) + " available"};
    }
    for (int64_t i = 0; i < needed; ++i) s.blocks.push_back(pool_.take());
    return {};
}

void KvCacheManager::commit(SeqId seq,
                            std::span<const int32_t> tokens,
                            std::span<const ImageSpan> images) {
    Sequence& s = at(seq);
    const auto size = static_cast<size_t>(options_.block_tokens);
    const size_t full = tokens.size() / size;
    DI_CHECK_LE(full, s.blocks.size());
    DI_CHECK_GE(full, s.num_committed);
    if (s.cacheable) extend_block_keys(s.root, tokens, options_.block_tokens, images, &s.keys);
    for (size_t i = s.num_committed; i < full; ++i) {
        if (s.cacheable) {
            pool_.publish(s.blocks[i], {s.keys[i], s.approximate}, tokens.subspan(i * size, size));
        }
        if (i < s.num_prompt_keys) add_pending(s.keys[i], -1);
    }
    s.num_committed = full;
}

void KvCacheManager::mark_approximate(SeqId seq) {
    at(seq).approximate = true;
}

void KvCacheManager::truncate(SeqId seq, int64_t num_tokens) {
    Sequence& s = at(seq);
    const size_t keep = blocks_for(num_tokens);
    DI_CHECK_GE(num_tokens, static_cast<int64_t>(s.num_committed) * options_.block_tokens);
    while (s.blocks.size() > keep) {
        pool_.release(s.blocks.back());
        s.blocks.pop_back();
    }
}

void KvCacheManager::free(SeqId seq) {
    Sequence& s = at(seq);
    for (size_t i = s.num_committed; i < s.num_prompt_keys; ++i) add_pending(s.keys[i], -1);
    while (!s.blocks.empty()) {  // deepest first: leaves are evicted before what they continue
        pool_.release(s.blocks.back());
        s.blocks.pop_back();
    }
    free_slots_.push_back(s.slot);
    sequences_.erase(seq);
}

KvCacheStats KvCacheManager::stats() const {
    KvCacheStats s = counters_;
    s.evicted_blocks = pool_.num_evictions();
    s.num_blocks = pool_.num_blocks();
    s.free_blocks = pool_.num_free();
    s.cached_blocks = pool_.num_cached();
    s.held_blocks = pool_.num_held();
    s.num_slots = options_.num_slots;
    s.free_slots = num_free_slots();
    return s;
}

void KvCacheManager::check() const {
    std::vector<int32_t> held(static_cast<size_t>(pool_.num_blocks()));
    std::vector<int> slot_users(static_cast<size_t>(options_.num_slots));
    for (const int32_t slot : free_slots_) ++slot_users[static_cast<size_t>(slot)];
    std::unordered_map<CacheKey, int, CacheKeyHash> pending;
    for (const auto& [id, s] : sequences_) {
        for (const int32_t block : s.blocks) ++held[static_cast<size_t>(block)];
        ++slot_users[static_cast<size_t>(s.slot)];
        DI_CHECK_LE(s.num_committed, s.blocks.size());
        for (size_t i = s.num_committed; i < s.num_prompt_keys; ++i) ++pending[s.keys[i]];
    }
    for (const int users : slot_users) DI_CHECK_EQ(users, 1);
    DI_CHECK(pending == pending_);
    pool_.check(held);
}

bool KvCacheManager::all_free() const {
    check();
    return sequences_.empty() && pool_.num_held() == 0;
}

void KvCacheManager::clear_prefix_cache() {
    pool_.forget_all();
    for (auto& [id, s] : sequences_) {
        for (size_t i = s.num_committed; i < s.num_prompt_keys; ++i) add_pending(s.keys[i], -1);
        s.num_prompt_keys = std::min(s.num_prompt_keys, s.num_committed);
        s.cacheable = false;
    }
}

}  // namespace deepinfer
