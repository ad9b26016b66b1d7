#include "engine/kv_block_space.h"

#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

KvCacheOptions manager_options(const KvBlockSpaceOptions& o) {
    KvCacheOptions k;
    k.num_blocks = static_cast<int32_t>(o.num_blocks);
    k.num_slots = static_cast<int32_t>(o.max_num_seqs);
    k.block_tokens = o.block_tokens;
    k.eviction = o.eviction;
    return k;
}

}  // namespace

KvBlockSpace::KvBlockSpace(const KvBlockSpaceOptions& options)
    : options_(options),
      manager_(manager_options(options)),
      snapshots_(static_cast<int32_t>(options.max_num_seqs),
                 static_cast<int32_t>(options.stored_windows)) {
    manager_.on_forget([this](const CacheKey& key) { snapshots_.drop(key); });
}

void KvBlockSpace::open(SequenceBlocks& seq, const std::string& tenant, const std::string& salt) {
    DI_CHECK(seq.handle == 0 && seq.ids.empty());
    seq.handle = ++last_handle_;
    roots_[seq.handle] = root_key(
        options_.model_fingerprint, options_.layout_fingerprint, "", salt_id("", tenant, salt));
}

PrefixFound KvBlockSpace::find_prefix(SequenceBlocks& seq, std::span<const int32_t> tokens) {
    extend_block_keys(roots_.at(seq.handle), tokens, options_.block_tokens, seq.images, &seq.keys);
    found_ = manager_.match_prefix(seq.keys, tokens, options_.exact);
    return {found_.num_tokens(), found_.pending_tokens};
}

/// Registers the sequence with the manager; until now it was only a name.
void KvBlockSpace::begin(SequenceBlocks& seq, const PrefixMatch& match, int64_t num_tokens) {
    KvCacheManager::StartOptions start;
    start.root = roots_.at(seq.handle);
    start.prompt_keys = seq.keys;
    start.prompt_tokens = num_tokens;
    start.approximate = !options_.exact && match.num_tokens() > 0;
    // The scheduler holds at most max_num_seqs sequences, and nothing was evicted since the match.
    const Status status = manager_.start(seq.handle, std::move(start), match);
    DI_CHECK_MSG(status.ok(), status.message());
    refresh(seq);
}

void KvBlockSpace::refresh(SequenceBlocks& seq) const {
    const std::vector<int32_t>& table = manager_.block_table(seq.handle);
    seq.ids.insert(
        seq.ids.end(), table.begin() + static_cast<int64_t>(seq.ids.size()), table.end());
}

void KvBlockSpace::adopt(SequenceBlocks& seq, std::span<const int32_t> tokens, int64_t num_tokens) {
    begin(seq, found_.limited_to(num_tokens), static_cast<int64_t>(tokens.size()));
    DI_CHECK_EQ(static_cast<int64_t>(seq.ids.size()) * options_.block_tokens, num_tokens);
}

bool KvBlockSpace::grow(SequenceBlocks& seq, int64_t num_tokens) {
    if (!manager_.allocate(seq.handle, num_tokens).ok()) return false;
    refresh(seq);
    return true;
}

int64_t KvBlockSpace::fork(const SequenceBlocks& from,
                           SequenceBlocks& to,
                           std::span<const int32_t> tokens,
                           int64_t num_tokens) {
    to.keys = from.keys;
    find_prefix(to, tokens);
    const PrefixMatch match = found_.limited_to(num_tokens);
    begin(to, match, num_tokens);
    if (!grow(to, num_tokens)) {
        manager_.free(to.handle);
        to.ids.clear();
        return -1;
    }
    return static_cast<int64_t>(match.block_ids.size());
}

void KvBlockSpace::commit(SequenceBlocks& seq,
                          std::span<const int32_t> tokens,
                          int64_t num_computed) {
    manager_.commit(seq.handle, tokens.first(static_cast<size_t>(num_computed)), seq.images);
}

std::vector<StoredWindow> KvBlockSpace::stored_windows(const SequenceBlocks& seq,
                                                       int64_t up_to) const {
    std::vector<StoredWindow> all;
    for (size_t i = 0; i < seq.keys.size(); ++i) {
        const int64_t end = static_cast<int64_t>(i + 1) * options_.block_tokens;
        if (end > up_to) break;
        const WindowSnapshot* s = snapshots_.find(seq.keys[i]);
        if (s != nullptr) all.push_back({end, s->slot, s->complete});
    }
    return all;
}

void KvBlockSpace::use_window(const SequenceBlocks& seq, int64_t position) {
    snapshots_.use(seq.keys[static_cast<size_t>(position / options_.block_tokens) - 1]);
}

int32_t KvBlockSpace::store_window(SequenceBlocks& seq,
                                   std::span<const int32_t> tokens,
                                   bool complete) {
    const size_t blocks = tokens.size() / static_cast<size_t>(options_.block_tokens);
    DI_CHECK(blocks > 0 && blocks * static_cast<size_t>(options_.block_tokens) == tokens.size());
    extend_block_keys(roots_.at(seq.handle), tokens, options_.block_tokens, {}, &seq.keys);
    return snapshots_.store(seq.keys[blocks - 1], complete);
}

int64_t KvBlockSpace::forget_prefixes() {
    const int64_t cached = manager_.stats().cached_blocks;
    manager_.clear_prefix_cache();
    return cached;
}

void KvBlockSpace::release(SequenceBlocks& seq) {
    if (seq.handle == 0) return;
    if (manager_.contains(seq.handle)) manager_.free(seq.handle);
    roots_.erase(seq.handle);
    seq.handle = 0;
    seq.ids.clear();
}

}  // namespace deepinfer
