// KvBlockSpace: the BlockSpace over kvcache/, with prefix sharing.
#pragma once

#include <map>
#include <string>

#include "engine/block_space.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/window_snapshots.h"

namespace deepinfer {

struct KvBlockSpaceOptions {
    int64_t num_blocks = 0;
    int block_tokens = 128;
    int64_t max_num_seqs = 64;
    CacheKey model_fingerprint{};   ///< engine/model_fingerprint.h
    CacheKey layout_fingerprint{};  ///< row formats and whatever else changes stored bytes
    bool exact = true;              ///< adopt only blocks with the bits of a cold run
    EvictionPolicy eviction = EvictionPolicy::kAdaptive;
    int64_t stored_windows = 0;  ///< slots behind the max_num_seqs of the sequences
};

class KvBlockSpace final : public BlockSpace {
  public:
    explicit KvBlockSpace(const KvBlockSpaceOptions& options);

    int block_tokens() const override { return options_.block_tokens; }
    int64_t total_blocks() const override { return options_.num_blocks; }
    int64_t free_blocks() const override { return manager_.num_available_blocks(); }

    void open(SequenceBlocks& seq, const std::string& tenant, const std::string& salt) override;
    PrefixFound find_prefix(SequenceBlocks& seq, std::span<const int32_t> tokens) override;
    void adopt(SequenceBlocks& seq, std::span<const int32_t> tokens, int64_t num_tokens) override;
    bool grow(SequenceBlocks& seq, int64_t num_tokens) override;
    int64_t fork(const SequenceBlocks& from,
                 SequenceBlocks& to,
                 std::span<const int32_t> tokens,
                 int64_t num_tokens) override;
    void commit(SequenceBlocks& seq,
                std::span<const int32_t> tokens,
                int64_t num_computed) override;
    void release(SequenceBlocks& seq) override;
    std::vector<StoredWindow> stored_windows(const SequenceBlocks& seq,
                                             int64_t up_to) const override;
    void use_window(const SequenceBlocks& seq, int64_t position) override;
    int32_t store_window(SequenceBlocks& seq,
                         std::span<const int32_t> tokens,
                         bool complete) override;
    void check() const override {
        manager_.check();
        snapshots_.check();
    }

    int64_t forget_prefixes() override;

    const KvCacheManager& manager() const { return manager_; }

  private:
    void begin(SequenceBlocks& seq, const PrefixMatch& match, int64_t num_tokens);
    void refresh(SequenceBlocks& seq) const;

    KvBlockSpaceOptions options_;
    KvCacheManager manager_;
    WindowSnapshots snapshots_;
    std::map<uint64_t, CacheKey> roots_;  ///< of open sequences
    PrefixMatch found_;                   ///< of the last find_prefix
    uint64_t last_handle_ = 0;
};

}  // namespace deepinfer
