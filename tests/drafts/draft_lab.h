// DraftLab: a model that drafts, with caches for a few sequences.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "judge/sequence.h"
#include "kvcache/cache_memory.h"

namespace deepinfer::testing {

struct Drafts {
    std::vector<int32_t> tokens;                ///< [block]
    std::vector<double> confidence;             ///< [block] raw logits
    std::vector<std::vector<double>> logits{};  ///< [block][V]

    bool operator==(const Drafts& o) const {
        return tokens == o.tokens && confidence == o.confidence && logits == o.logits;
    }
};

class DraftLab {
  public:
    static constexpr int kSlots = 4, kBlocksEach = 4;
    static constexpr int64_t kMaxRows = 64;

    /// `checkpoint` of the build's checkpoints folder. `max_draft_seqs` 0: a model without
    /// drafting.
    DraftLab(const std::string& checkpoint, const std::string& backend, int64_t max_draft_seqs);

    DeepseekV41& model() { return *loaded_.model; }
    Backend& backend() { return *loaded_.backend; }
    const CacheView& cache() const { return cache_->view(); }

    /// Runs ids of the sequence in `slot` from `position` on, in chunks; logits of the last row.
    std::vector<double> append(int slot,
                               int position,
                               const std::vector<int32_t>& history,
                               const std::vector<int32_t>& ids,
                               int chunk = kMaxRows,
                               bool draft_windows = true);
    /// Drafts for several sequences at once; one Drafts each.
    std::vector<Drafts> draft(const std::vector<DraftSequence>& seqs, int block_size = 0);
    /// Every byte of the caches.
    std::vector<uint8_t> cache_bytes();

  private:
    LoadedModel loaded_;
    std::unique_ptr<CacheMemory> cache_;
};

/// n ids below `vocab`, from the seed's name.
std::vector<int32_t> random_ids(const std::string& seed, int n, int64_t vocab);

}  // namespace deepinfer::testing
