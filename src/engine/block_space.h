// BlockSpace: what the scheduler asks of the block pool. Knows tokens and blocks, no bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace deepinfer {

/// The blocks one sequence holds, in order of position.
struct SequenceBlocks {
    std::vector<int32_t> ids;
    uint64_t handle = 0;  ///< the pool's name for the sequence; 0 = closed
};

/// One thread. A block handed out may still be written by steps launched earlier: executors run steps
/// in order, so the new owner's writes come later.
class BlockSpace {
  public:
    virtual ~BlockSpace() = default;

    virtual int block_tokens() const = 0;
    virtual int64_t total_blocks() const = 0;
    /// Blocks that could be handed out now: never used, or cached without a user.
    virtual int64_t free_blocks() const = 0;

    /// Begins a sequence without blocks. Blocks are shared among equal (tenant, salt) only.
    virtual void open(SequenceBlocks& seq, const std::string& tenant, const std::string& salt) = 0;
    /// Tokens (whole blocks) of the longest cached beginning of `tokens`. Changes nothing.
    virtual int64_t find_prefix(const SequenceBlocks& seq, std::span<const int32_t> tokens) = 0;
    /// Takes the blocks of the first num_tokens tokens that find_prefix just found.
    virtual void adopt(SequenceBlocks& seq, std::span<const int32_t> tokens, int64_t num_tokens) = 0;
    /// Makes the blocks cover positions [0, num_tokens). False, and nothing changed, if the pool
    /// has too few.
    virtual bool grow(SequenceBlocks& seq, int64_t num_tokens) = 0;
    /// Gives `to` (open, empty) the whole blocks of from's first num_tokens tokens, shared, and a new
    /// block where num_tokens ends inside one. False, and nothing changed, if the pool is empty.
    virtual bool fork(const SequenceBlocks& from, SequenceBlocks& to, int64_t num_tokens) = 0;
    /// Positions below num_computed are final: whole blocks become findable.
    virtual void commit(SequenceBlocks& seq, std::span<const int32_t> tokens, int64_t num_computed) = 0;
    /// Gives everything back and ends the sequence.
    virtual void release(SequenceBlocks& seq) = 0;
};

}  // namespace deepinfer
