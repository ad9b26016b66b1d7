#include "tokenizer/engram_token_map.h"

#include <fstream>

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

TEST(EngramTokenMap, ReleasedVocabularyHasTheSizeOfTheReleasedConfig) {
    const EngramTokenMap map = engram_token_map(testing::released_tokenizer());
    EXPECT_EQ(map.count, 99092);
    EXPECT_EQ(map.map.size(), 129280u);
}

TEST(EngramTokenMap, EqualsTheGoldenMap) {
    const auto golden =
        testing::read_golden(testing::data_path("unit/engram_token_map.safetensors"));
    const EngramTokenMap map =
        engram_token_map(testing::load_packed("tokenizer/nano_tokenizer.json.gz"));
    const std::vector<int64_t> want = golden.at("map").ints();
    EXPECT_EQ(std::vector<int64_t>(map.map.begin(), map.map.end()), want);
    EXPECT_EQ(map.count, golden.at("size").ints().at(0));
}

TEST(EngramTokenMap, DemonstrationVocabularyHasTheSizeOfItsConfig) {
    const std::string directory = testing::checkpoint_path("demo");
    std::ifstream file(directory + "/config.json");
    if (!file) GTEST_SKIP() << "no demonstration checkpoint at " << directory;
    const auto config = nlohmann::json::parse(file);
    const auto& text = config.contains("text_config") ? config["text_config"] : config;
    const Result<Tokenizer> tokenizer = Tokenizer::load(directory);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    EXPECT_EQ(engram_token_map(tokenizer.value()).count,
              text["engram_compressed_vocab_size"].get<int32_t>());
}

TEST(EngramTokenMap, NewKeysGetAscendingIds) {
    const EngramTokenMap map = engram_token_map(testing::released_tokenizer());
    int32_t next = 0;
    for (const int32_t id : map.map) {
        ASSERT_LE(id, next);
        if (id == next) ++next;
    }
    EXPECT_EQ(next, map.count);
}

TEST(EngramNormalize, FoldsCaseAccentsFormsAndSpace) {
    const struct {
        const char* text;
        const char* want;
    } table[] = {
        {"Hello", "hello"},
        {" The", "the"},
        {"é", "e"},
        {"E\u0301", "e"},
        {"İ", "i"},
        {"ＡＢＣ", "abc"},
        {"ﬁ", "fi"},
        {"½", "1\u20442"},
        {"Ⅷ", "viii"},
        {"ΣΣ", "σσ"},  // per character: no final sigma
        {"각", "\u1100\u1161\u11A8"},
        {"\u212B", "a"},
        {" ", " "},
        {"  ", " "},
        {"\t\r\n", " "},
        {" a \t\n b ", "a b"},
        {"\u3000", " "},  // NFKC makes it a space
        {"\u2028", ""},   // white space, but none that is folded: stripped
        {"\x0B\x0C", ""},
        {"\u00A0\u00A0", " "},
        {"\u0301", ""},    // a mark alone
        {"\x1C", "\x1C"},  // a control, no white space
        {"", ""},
    };
    for (const auto& row : table) EXPECT_EQ(engram_normalize(row.text), row.want) << row.text;
    EXPECT_EQ(engram_normalize(std::string_view("A\0É", 4)), std::string("a\0e", 3));
}

}  // namespace
}  // namespace deepinfer
