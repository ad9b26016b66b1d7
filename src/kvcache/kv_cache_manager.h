// KvCacheManager: blocks and slots of all live sequences, and what earlier ones left behind.
//
// What a scheduler does with it, per request:
//   keys  = block_keys(root, prompt)              once, at admission (can run on another thread)
//   match = match_prefix(keys, prompt, exact)     longest chain of cached full blocks; no side
//   effect start(seq, root, match')                      takes a slot, shares the blocks (match' =
//   match, cut
//                                                 to what replay can use: kvcache/replay.h)
//   allocate(seq, n)                              before each step: blocks for positions [0, n)
//   commit(seq, tokens)                           after it: full blocks become visible to others
//   truncate(seq, n)                              rejected drafts: surplus blocks go back
//   free(seq)                                     finished, aborted or preempted
//
// Always true between calls: every reference belongs to one entry of one block table; free + cached
// + held = all; a sequence's published blocks are never written again. Failing calls change
// nothing.
//
// Not thread-safe: the scheduler's thread owns it. A caller that runs ahead of the device frees a
// sequence only after the last step that writes its blocks has completed, and commits only what
// completed steps wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "deepinfer/status.h"
#include "kvcache/block_pool.h"
#include "kvcache/cache_key.h"

namespace deepinfer {

struct KvCacheOptions {
    int32_t num_blocks = 0;
    int32_t num_slots = 0;
    int block_tokens = 64;
    bool prefix_caching = true;
    EvictionPolicy eviction = EvictionPolicy::kAdaptive;
};

struct KvCacheStats {
    int64_t query_tokens = 0;  ///< tokens of prompts that were started
    int64_t hit_tokens = 0;    ///< of those, found in the cache and used
    int64_t evicted_blocks = 0;
    int64_t failed_allocations = 0;
    int32_t num_blocks = 0, free_blocks = 0, cached_blocks = 0, held_blocks = 0;
    int32_t num_slots = 0, free_slots = 0;
};

/// A chain of cached blocks from a prompt's start. Stays valid until the next call that may evict;
/// start() notices if it did not.
struct PrefixMatch {
    std::vector<int32_t> block_ids;
    std::vector<uint32_t> generations;
    int block_tokens = 0;
    /// Full blocks right behind the chain that a live sequence is computing now: a request that
    /// waits for its next commit gets them for nothing.
    int64_t pending_tokens = 0;

    int64_t num_tokens() const { return static_cast<int64_t>(block_ids.size()) * block_tokens; }
    /// The same match, cut to at most this many tokens (whole blocks).
    PrefixMatch limited_to(int64_t tokens) const;
};

class KvCacheManager {
  public:
    using SeqId = uint64_t;

    explicit KvCacheManager(const KvCacheOptions& options);

    const KvCacheOptions& options() const { return options_; }

    /// Keys of the full blocks of `tokens` under `root` (kvcache/cache_key.h).
    std::vector<CacheKey> block_keys(const CacheKey& root,
                                     std::span<const int32_t> tokens,
                                     std::span<const ImageSpan> images = {}) const;

    /// Longest chain of cached blocks of `tokens`, whose keys are `keys`. exact_only: blocks
    /// computed after a bounded replay do not count (deterministic mode).
    PrefixMatch match_prefix(std::span<const CacheKey> keys,
                             std::span<const int32_t> tokens,
                             bool exact_only = false) const;

    struct StartOptions {
        CacheKey root{};
        /// block_keys of the tokens known now: the prompt, and the output if resumed.
        std::vector<CacheKey> prompt_keys;
        bool cacheable = true;  ///< false: nothing of it becomes visible to others
        int64_t prompt_tokens =
            0;  ///< for the statistics; 0: not counted (resumed after preemption)
        bool approximate = false;  ///< a bounded replay will run: its blocks are marked
    };
    /// Registers a sequence, takes a slot and shares the matched blocks. kResourceExhausted: no
    /// slot; kUnavailable: a matched block was evicted since (match again).
    Status start(SeqId seq, StartOptions start, const PrefixMatch& match);

    /// Makes the block table cover positions [0, num_tokens). kResourceExhausted names both
    /// numbers; nothing has changed then.
    Status allocate(SeqId seq, int64_t num_tokens);
    /// Blocks that allocate() would take.
    int64_t blocks_needed(SeqId seq, int64_t num_tokens) const;

    /// `tokens`: all tokens of the sequence whose entries are written and final. Publishes the
    /// blocks that became full. `images` as at block_keys.
    void commit(SeqId seq, std::span<const int32_t> tokens, std::span<const ImageSpan> images = {});
    /// From now on blocks of this sequence are marked as approximate.
    void mark_approximate(SeqId seq);

    /// Gives back the blocks that positions [0, num_tokens) do not need. num_tokens >= committed.
    void truncate(SeqId seq, int64_t num_tokens);
    /// Gives back everything; published blocks stay cached.
    void free(SeqId seq);

    const std::vector<int32_t>& block_table(SeqId seq) const { return at(seq).blocks; }
    int32_t slot(SeqId seq) const { return at(seq).slot; }
    bool contains(SeqId seq) const { return sequences_.count(seq) != 0; }

    int32_t num_available_blocks() const { return pool_.num_available(); }
    int32_t num_free_slots() const { return static_cast<int32_t>(free_slots_.size()); }
    KvCacheStats stats() const;

    /// Hears of every block key that can no longer be found.
    void on_forget(std::function<void(const CacheKey&)> listener) {
        pool_.on_forget(std::move(listener));
    }

    /// True when nothing is held: every block free or cached, every slot free. Also recounts all
    /// structures and stops the process on a contradiction; call it when idle.
    bool all_free() const;
    /// The recount alone, at any time (tests, debug builds).
    void check() const;
    /// Drops every cached prefix. Live sequences keep their blocks, unshared from now on.
    void clear_prefix_cache();

  private:
    struct Sequence {
        int32_t slot = -1;
        std::vector<int32_t> blocks;
        CacheKey root{};
        std::vector<CacheKey> keys;  ///< of full blocks, known ahead for the prompt
        size_t num_prompt_keys = 0;
        size_t num_committed = 0;  ///< leading blocks that are final (published or duplicates)
        bool cacheable = false;
        bool approximate = false;
    };
    const Sequence& at(SeqId seq) const;
    Sequence& at(SeqId seq) { return const_cast<Sequence&>(std::as_const(*this).at(seq)); }
    size_t blocks_for(int64_t num_tokens) const;
    void add_pending(const CacheKey& key, int change);

    KvCacheOptions options_;
    BlockPool pool_;
    std::vector<int32_t> free_slots_;  ///< a stack; the lowest slot is on top at first
    std::unordered_map<SeqId, Sequence> sequences_;
    std::unordered_map<CacheKey, int, CacheKeyHash> pending_;  ///< prompt blocks being computed
    KvCacheStats counters_;
};

}  // namespace deepinfer
