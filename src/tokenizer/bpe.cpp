#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace deepinfer {

void MergeTable::reset(size_t num_merges) {
    size_t capacity = 2;
    shift_ = 63;
    while (capacity < 2 * num_merges) {
        capacity *= 2;
        --shift_;
    }
    slots_.assign(capacity, Slot{});
    mask_ = capacity - 1;
    result_of_rank_.clear();
    result_of_rank_.reserve(num_merges);
}

bool MergeTable::add(uint32_t left, uint32_t right, uint32_t result) {
    DI_CHECK_LT(2 * size(), slots_.size());
    size_t i = slot_of(left, right);
    for (; slots_[i].rank != kNoRank; i = (i + 1) & mask_) {
        if (slots_[i].left == left && slots_[i].right == right) return false;
    }
    slots_[i] = {left, right, static_cast<uint32_t>(size())};
    result_of_rank_.push_back(result);
    return true;
}

void BpeMerger::append(std::string_view piece, std::vector<int32_t>& ids) {
    if (piece.size() <= kScanLimit) {
        append_short(piece, ids);
    } else {
        append_long(piece, ids);
    }
}

void BpeMerger::append_short(std::string_view piece, std::vector<int32_t>& ids) {
    uint32_t id[kScanLimit];
    uint32_t rank[kScanLimit];  // rank[i] is that of the pair (i, i + 1)
    size_t n = piece.size();
    for (size_t i = 0; i < n; ++i) {
        id[i] = static_cast<uint32_t>(byte_ids_[static_cast<uint8_t>(piece[i])]);
    }
    for (size_t i = 0; i + 1 < n; ++i) rank[i] = merges_.rank(id[i], id[i + 1]);
    while (n > 1) {
        const size_t best = static_cast<size_t>(std::min_element(rank, rank + n - 1) - rank);
        if (rank[best] == MergeTable::kNoRank) break;
        id[best] = merges_.result(rank[best]);
        std::copy(id + best + 2, id + n, id + best + 1);
        if (best + 2 < n) std::copy(rank + best + 2, rank + n - 1, rank + best + 1);
        --n;
        if (best > 0) rank[best - 1] = merges_.rank(id[best - 1], id[best]);
        if (best + 1 < n) rank[best] = merges_.rank(id[best], id[best + 1]);
    }
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(id[i]));
}

// A linked list of the tokens and a heap of (rank, position). An entry is stale when its node no
// longer has that rank; the order of the heap is the order of the rule, because the position of a
// pair is that of its first byte and never changes.
void BpeMerger::append_long(std::string_view piece, std::vector<int32_t>& ids) {
    DI_CHECK_LT(piece.size(), size_t{UINT32_MAX});
    const uint32_t n = static_cast<uint32_t>(piece.size());
    nodes_.resize(n);
    heap_.clear();
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t id = static_cast<uint32_t>(byte_ids_[static_cast<uint8_t>(piece[i])]);
        nodes_[i] = {id, MergeTable::kNoRank, i - 1, i + 1};  // prev of 0 is never read
    }
    const auto update_rank = [&](uint32_t i) {
        Node& node = nodes_[i];
        node.rank =
            node.next < n ? merges_.rank(node.id, nodes_[node.next].id) : MergeTable::kNoRank;
        if (node.rank == MergeTable::kNoRank) return false;
        heap_.push_back(static_cast<uint64_t>(node.rank) << 32 | i);
        return true;
    };
    for (uint32_t i = 0; i + 1 < n; ++i) update_rank(i);
    const std::greater<uint64_t> later;
    std::make_heap(heap_.begin(), heap_.end(), later);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const uint64_t entry = heap_.back();
        heap_.pop_back();
        const uint32_t i = static_cast<uint32_t>(entry);
        const uint32_t rank = static_cast<uint32_t>(entry >> 32);
        Node& node = nodes_[i];
        if (node.rank != rank) continue;
        Node& gone = nodes_[node.next];
        node.id = merges_.result(rank);
        node.next = gone.next;
        gone.rank = MergeTable::kNoRank;
        if (node.next < n) nodes_[node.next].prev = i;
        if (update_rank(i)) std::push_heap(heap_.begin(), heap_.end(), later);
        if (i > 0 && update_rank(node.prev)) std::push_heap(heap_.begin(), heap_.end(), later);
    }
    for (uint32_t i = 0; i < n; i = nodes_[i].next)
        ids.push_back(static_cast<int32_t>(nodes_[i].id));
}

}  // namespace deepinfer
