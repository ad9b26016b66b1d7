#include "tokenizer/bpe.h"

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

struct RandomMerges {
    MergeTable table;
    std::array<int32_t, 256> byte_ids{};
};

// `num_merges` merges over the letters 'a', 'b', 'c'; each joins two tokens that exist before it.
void make_random_merges(std::mt19937& rng, uint32_t num_merges, RandomMerges& out) {
    for (size_t i = 0; i < 256; ++i) out.byte_ids[i] = static_cast<int32_t>(i);
    std::vector<uint32_t> tokens = {'a', 'b', 'c'};
    out.table.reset(num_merges);
    for (uint32_t i = 0; i < num_merges; ++i) {
        const uint32_t left = tokens[testing::below(rng, static_cast<uint32_t>(tokens.size()))];
        const uint32_t right = tokens[testing::below(rng, static_cast<uint32_t>(tokens.size()))];
        if (out.table.add(left, right, 256 + i)) tokens.push_back(256 + i);
    }
}

// The rule as it is told: look at all pairs, join the best, start again.
std::vector<int32_t> merge_slowly(const RandomMerges& merges, std::string_view piece) {
    std::vector<uint32_t> ids;
    for (const char c : piece)
        ids.push_back(static_cast<uint32_t>(merges.byte_ids[static_cast<uint8_t>(c)]));
    while (true) {
        uint32_t best = MergeTable::kNoRank;
        size_t at = 0;
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
            const uint32_t rank = merges.table.rank(ids[i], ids[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == MergeTable::kNoRank) break;
        ids[at] = merges.table.result(best);
        ids.erase(ids.begin() + static_cast<int64_t>(at) + 1);
    }
    return std::vector<int32_t>(ids.begin(), ids.end());
}

TEST(BpeMerger, EqualsTheSlowTwinAtEveryLength) {
    std::mt19937 rng = testing::test_rng();
    for (int round = 0; round < 60; ++round) {
        RandomMerges merges;
        make_random_merges(rng, 1 + testing::below(rng, 40), merges);
        BpeMerger merger(merges.table, merges.byte_ids);
        for (const size_t length : {1, 2, 3, 5, 8, 17, 31, 47, 48, 49, 50, 64, 200}) {
            std::string piece;
            const uint32_t letters = 1 + testing::below(rng, 3);  // one letter: all ties
            while (piece.size() < length)
                piece += static_cast<char>('a' + testing::below(rng, letters));
            std::vector<int32_t> ids = {-7};  // append() keeps what was there
            merger.append(piece, ids);
            ASSERT_EQ(ids.front(), -7);
            ids.erase(ids.begin());
            ASSERT_EQ(ids, merge_slowly(merges, piece)) << piece;
        }
    }
}

TEST(BpeMerger, LeftmostPairWinsAmongEquals) {
    RandomMerges merges;
    make_random_merges(*std::make_unique<std::mt19937>(), 0, merges);
    merges.table.reset(1);
    ASSERT_TRUE(merges.table.add('a', 'a', 256));
    BpeMerger merger(merges.table, merges.byte_ids);
    for (const size_t length : {3, 51}) {  // both algorithms
        std::vector<int32_t> ids;
        merger.append(std::string(length, 'a'), ids);
        std::vector<int32_t> want(length / 2, 256);
        want.push_back('a');
        EXPECT_EQ(ids, want);
    }
}

TEST(MergeTable, FindsWhatWasAddedAndNothingElse) {
    std::mt19937 rng = testing::test_rng();
    MergeTable table;
    EXPECT_EQ(table.rank(1, 2), MergeTable::kNoRank);
    table.reset(5000);
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> want;
    for (uint32_t i = 0; i < 5000; ++i) {
        const std::pair<uint32_t, uint32_t> pair(testing::below(rng, 200),
                                                 testing::below(rng, 200));
        const uint32_t rank = static_cast<uint32_t>(table.size());
        EXPECT_EQ(table.add(pair.first, pair.second, rank + 9), want.emplace(pair, rank).second);
    }
    for (uint32_t left = 0; left < 200; ++left) {
        for (uint32_t right = 0; right < 200; ++right) {
            const auto it = want.find({left, right});
            const uint32_t rank = table.rank(left, right);
            ASSERT_EQ(rank, it == want.end() ? MergeTable::kNoRank : it->second);
            if (it != want.end()) {
                ASSERT_EQ(table.result(rank), rank + 9);
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer
