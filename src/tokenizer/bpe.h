// Byte-pair merging of one piece: join the adjacent pair of lowest rank, the leftmost among equals,
// until no pair has a rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer {

/// (left id, right id) → rank and joined id. Open addressing, at most half full, 12 bytes a slot.
class MergeTable {
  public:
    static constexpr uint32_t kNoRank = UINT32_MAX;

    /// Makes room for `num_merges` and forgets what was there.
    void reset(size_t num_merges);
    /// The next rank, for a pair that joins to `result`; false if the pair has one already.
    bool add(uint32_t left, uint32_t right, uint32_t result);

    uint32_t rank(uint32_t left, uint32_t right) const {
        for (size_t i = slot_of(left, right);; i = (i + 1) & mask_) {
            const Slot& slot = slots_[i];
            if (slot.rank == kNoRank) return kNoRank;
            if (slot.left == left && slot.right == right) return slot.rank;
        }
    }
    uint32_t result(uint32_t rank) const { return result_of_rank_[rank]; }
    size_t size() const { return result_of_rank_.size(); }

  private:
    struct Slot {
        uint32_t left = 0;
        uint32_t right = 0;
        uint32_t rank = kNoRank;
    };

    size_t slot_of(uint32_t left, uint32_t right) const {
        const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
        return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
    }

    std::vector<Slot> slots_ = std::vector<Slot>(2);
    std::vector<uint32_t> result_of_rank_;
    size_t mask_ = 1;
    int shift_ = 63;
};

/// Merges pieces; keeps its work space between calls, so use one per thread and call.
class BpeMerger {
  public:
    /// Both outlive the merger; `byte_ids` has the token of each byte.
    BpeMerger(const MergeTable& merges, const std::array<int32_t, 256>& byte_ids)
        : merges_(merges), byte_ids_(byte_ids) {}

    /// Appends the ids of `piece` (shorter than 2^32 − 1 bytes). Short pieces are scanned for the
    /// best pair, long ones keep a heap: n log n, so that a megabyte without a space is no attack.
    void append(std::string_view piece, std::vector<int32_t>& ids);

  private:
    static constexpr size_t kScanLimit = 48;  // where the heap starts to win (measured on letters)

    void append_short(std::string_view piece, std::vector<int32_t>& ids);
    void append_long(std::string_view piece, std::vector<int32_t>& ids);

    struct Node {
        uint32_t id;
        uint32_t rank;  // of the pair (this, next); kNoRank at the end and for nodes merged away
        uint32_t prev;
        uint32_t next;
    };

    const MergeTable& merges_;
    const std::array<int32_t, 256>& byte_ids_;
    std::vector<Node> nodes_;
    std::vector<uint64_t> heap_;
};

}  // namespace deepinfer
