#include "tokenizer/added_tokens.h"

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

TEST(AddedTokenTrie, LongestOfThoseThatStartThereWins) {
    AddedTokenTrie trie;
    ASSERT_TRUE(trie.add("<a", 1));
    ASSERT_TRUE(trie.add("<ab", 2));
    ASSERT_TRUE(trie.add("<abcd>", 3));
    EXPECT_FALSE(trie.add("<ab", 4));
    const struct {
        const char* text;
        size_t begin, size;
        int32_t id;
    } table[] = {{"x<abcd>", 1, 6, 3},
                 {"<abcd", 0, 3, 2},
                 {"<a", 0, 2, 1},
                 {"<<ac", 1, 2, 1},
                 {"<", 0, 0, -1},
                 {"", 0, 0, -1}};
    for (const auto& row : table) {
        const AddedTokenTrie::Match match = trie.find(row.text, 0);
        EXPECT_EQ(match.size, row.size) << row.text;
        EXPECT_EQ(match.id, row.id) << row.text;
        if (row.size > 0) {
            EXPECT_EQ(match.begin, row.begin) << row.text;
        }
    }
    EXPECT_EQ(trie.id_of("<ab"), 2);
    EXPECT_EQ(trie.id_of("<abc"), -1);
    EXPECT_EQ(trie.id_of("<abcd>x"), -1);
    EXPECT_EQ(trie.find("<a<a", 1).begin, 2u);
}

TEST(AddedTokenTrie, EqualsAPlainSearch) {
    std::mt19937 rng = testing::test_rng();
    const auto letters = [&](uint32_t n) {
        std::string out;
        while (out.size() < n) out += static_cast<char>('a' + testing::below(rng, 2));
        return out;
    };
    for (int round = 0; round < 200; ++round) {
        AddedTokenTrie trie;
        std::vector<std::string> tokens;
        for (uint32_t n = testing::below(rng, 8); n > 0; --n) {
            const std::string token = letters(1 + testing::below(rng, 6));
            if (trie.add(token, static_cast<int32_t>(tokens.size()))) tokens.push_back(token);
        }
        const std::string text = letters(testing::below(rng, 30));
        AddedTokenTrie::Match want;
        for (size_t begin = 0; begin < text.size() && want.size == 0; ++begin) {
            for (size_t id = 0; id < tokens.size(); ++id) {
                const bool here = text.compare(begin, tokens[id].size(), tokens[id]) == 0;
                if (here && tokens[id].size() > want.size)
                    want = {begin, tokens[id].size(), static_cast<int32_t>(id)};
            }
        }
        const AddedTokenTrie::Match got = trie.find(text, 0);
        EXPECT_EQ(got.size, want.size);
        EXPECT_EQ(got.begin, want.begin);
        EXPECT_EQ(got.id, want.id);
    }
}

}  // namespace
}  // namespace deepinfer
