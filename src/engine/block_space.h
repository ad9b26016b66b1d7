// BlockSpace: what the scheduler asks of the block pool. Knows tokens and blocks, no bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache/cache_key.h"

namespace deepinfer {

/// The blocks one sequence holds, in order of position.
struct SequenceBlocks {
    std::vector<int32_t> ids;
    uint64_t handle = 0;            ///< the pool's name for the sequence; 0 = closed
    std::vector<CacheKey> keys;     ///< of its whole blocks; kept while it waits, so hashed once
    std::vector<ImageSpan> images;  ///< pictures among its tokens: part of the keys
};

/// Tokens of a prompt's beginning, in whole blocks.
struct PrefixFound {
    int64_t cached = 0;   ///< can be adopted now
    int64_t pending = 0;  ///< right behind them: being computed by a running sequence
};

/// Stored window state at the end of one of a prefix's blocks (kvcache/window_snapshots.h).
struct StoredWindow {
    int64_t position = 0;
    int32_t slot = -1;      ///< where the copy is
    bool complete = false;  ///< of every layer, not only of those up to the last kv source
};

/// One thread. A block handed out may still be written by steps launched earlier: executors run
/// steps in order, so the new owner's writes come later. Findable blocks are never written again.
class BlockSpace {
  public:
    virtual ~BlockSpace() = default;

    virtual int block_tokens() const = 0;
    virtual int64_t total_blocks() const = 0;
    /// Blocks that could be handed out now: never used, or cached without a user.
    virtual int64_t free_blocks() const = 0;

    /// Begins a sequence without blocks. Blocks are shared among equal (tenant, salt) only.
    virtual void open(SequenceBlocks& seq, const std::string& tenant, const std::string& salt) = 0;
    /// The longest beginning of `tokens` that the pool knows. Changes nothing but seq.keys.
    virtual PrefixFound find_prefix(SequenceBlocks& seq, std::span<const int32_t> tokens) = 0;
    /// Takes the blocks of the first num_tokens tokens, which find_prefix just found. 0 = none.
    virtual void adopt(SequenceBlocks& seq,
                       std::span<const int32_t> tokens,
                       int64_t num_tokens) = 0;
    /// Makes the blocks cover positions [0, num_tokens). False, and nothing changed, if the pool
    /// has too few.
    virtual bool grow(SequenceBlocks& seq, int64_t num_tokens) = 0;
    /// Gives `to` (open, empty) blocks for positions [0, num_tokens) of `from`'s tokens: as many
    /// whole ones as possible are shared, the rest are new. Returns how many are shared (the caller
    /// copies the rest), or −1, and nothing changed, if the pool has too few.
    virtual int64_t fork(const SequenceBlocks& from,
                         SequenceBlocks& to,
                         std::span<const int32_t> tokens,
                         int64_t num_tokens) = 0;
    /// Positions below num_computed are final: whole blocks become findable.
    virtual void commit(SequenceBlocks& seq,
                        std::span<const int32_t> tokens,
                        int64_t num_computed) = 0;
    /// Gives everything back and ends the sequence; its keys stay.
    virtual void release(SequenceBlocks& seq) = 0;
    /// Window state stored at block ends of the prefix that find_prefix just found, up to a
    /// position; ascending.
    virtual std::vector<StoredWindow> stored_windows(const SequenceBlocks&, int64_t) const {
        return {};
    }
    /// The one at `position` is used: keep it longest.
    virtual void use_window(const SequenceBlocks&, int64_t /*position*/) {}
    /// Slot to copy the sequence's windows to, which now stand behind all of `tokens` (whole
    /// blocks); −1: nothing to store. It counts as stored from now on.
    virtual int32_t store_window(SequenceBlocks&,
                                 std::span<const int32_t> /*tokens*/,
                                 bool /*complete*/) {
        return -1;
    }
    /// Recounts; stops the process on a contradiction.
    virtual void check() const {}
    /// Forgets every prefix; open sequences keep their blocks. Between two steps. Returns how many
    /// blocks only the cache held.
    virtual int64_t forget_prefixes() { return 0; }
};

}  // namespace deepinfer
