#include "engine/plain_block_space.h"

#include <vector>

#include "base/check.h"

namespace deepinfer {
namespace {

class PlainBlockSpace final : public BlockSpace {
  public:
    PlainBlockSpace(int64_t num_blocks, int block_tokens)
        : num_blocks_(num_blocks),
          block_tokens_(block_tokens),
          users_(static_cast<size_t>(num_blocks)) {
        for (int64_t i = num_blocks - 1; i >= 0; --i) free_.push_back(static_cast<int32_t>(i));
    }

    int block_tokens() const override { return block_tokens_; }
    int64_t total_blocks() const override { return num_blocks_; }
    int64_t free_blocks() const override { return static_cast<int64_t>(free_.size()); }

    void open(SequenceBlocks& seq, const std::string&, const std::string&) override {
        DI_CHECK(seq.handle == 0 && seq.ids.empty());
        seq.handle = ++last_handle_;
    }
    PrefixFound find_prefix(SequenceBlocks&, std::span<const int32_t>) override { return {}; }
    void adopt(SequenceBlocks&, std::span<const int32_t>, int64_t num_tokens) override {
        DI_CHECK_EQ(num_tokens, 0);
    }

    bool grow(SequenceBlocks& seq, int64_t num_tokens) override {
        const int64_t wanted = (num_tokens + block_tokens_ - 1) / block_tokens_;
        const int64_t more = wanted - static_cast<int64_t>(seq.ids.size());
        if (more > free_blocks()) return false;
        for (int64_t i = 0; i < more; ++i) seq.ids.push_back(take());
        return true;
    }

    int64_t fork(const SequenceBlocks& from,
                 SequenceBlocks& to,
                 std::span<const int32_t>,
                 int64_t num_tokens) override {
        DI_CHECK(to.ids.empty());
        const bool partial = num_tokens % block_tokens_ != 0;
        if (partial && free_.empty()) return -1;
        const int64_t whole = num_tokens / block_tokens_;
        to.ids.assign(from.ids.begin(), from.ids.begin() + whole);
        for (const int32_t b : to.ids) ++users_[static_cast<size_t>(b)];
        if (partial) to.ids.push_back(take());
        return whole;
    }

    void commit(SequenceBlocks&, std::span<const int32_t>, int64_t) override {}

    void release(SequenceBlocks& seq) override {
        for (const int32_t b : seq.ids) {
            if (--users_[static_cast<size_t>(b)] == 0) free_.push_back(b);
        }
        seq.ids.clear();
        seq.handle = 0;
    }

  private:
    int32_t take() {
        const int32_t b = free_.back();
        free_.pop_back();
        DI_CHECK_EQ(users_[static_cast<size_t>(b)], 0);
        users_[static_cast<size_t>(b)] = 1;
        return b;
    }

    int64_t num_blocks_;
    int block_tokens_;
    std::vector<int32_t> users_;
    std::vector<int32_t> free_;
    uint64_t last_handle_ = 0;
};

}  // namespace

std::unique_ptr<BlockSpace> make_plain_block_space(int64_t num_blocks, int block_tokens) {
    return std::make_unique<PlainBlockSpace>(num_blocks, block_tokens);
}

}  // namespace deepinfer
