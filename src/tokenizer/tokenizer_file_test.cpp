// tokenizer.json as an enemy would write it: every refusal taken once, each with its reason.
#include "tokenizer/tokenizer_file.h"

#include <functional>

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::small_tokenizer_json;

constexpr StatusCode kInvalid = StatusCode::kInvalidFile;
constexpr StatusCode kUnsupported = StatusCode::kUnimplemented;

void expect_refused(const std::string& text, StatusCode code, const std::string& message) {
    const Status status = Tokenizer::from_json(text).status();
    EXPECT_EQ(status.code(), code) << message << ": " << status.to_string();
    EXPECT_NE(status.message().find(message), std::string::npos)
        << status.message() << "\nlacks: " << message;
    EXPECT_TRUE(is_valid_utf8(status.message()));
}

TEST(TokenizerFile, SmallFileIsAccepted) {
    const Result<Tokenizer> t = Tokenizer::from_json(small_tokenizer_json().dump());
    ASSERT_TRUE(t.ok()) << t.status().to_string();
    EXPECT_EQ(t.value().vocab_size(), 263);
    EXPECT_EQ(t.value().encode("hello hello<ab><a>"), (std::vector<int32_t>{259, 260, 262, 261}));
    EXPECT_EQ(t.value().encode("<ab"), (std::vector<int32_t>{'<', 'a', 'b'}));
}

TEST(TokenizerFile, EquivalentSpellingsAreAccepted) {
    const std::vector<std::function<void(json&)>> table = {
        [](json& j) { j.erase("version"); },
        [](json& j) { j.erase("normalizer"); },
        [](json& j) { j.erase("post_processor"); },
        [](json& j) {
            j["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
        },
        [](json& j) {
            j["model"]["merges"][0] = {"h", "e"};
        },
        [](json& j) { j["model"]["continuing_subword_prefix"] = ""; },
        [](json& j) { j["model"].erase("ignore_merges"); },
        [](json& j) { j["added_tokens"][0].erase("normalized"); },
    };
    for (size_t i = 0; i < table.size(); ++i) {
        json file = small_tokenizer_json();
        table[i](file);
        const Result<Tokenizer> t = Tokenizer::from_json(file.dump());
        ASSERT_TRUE(t.ok()) << i << ": " << t.status().to_string();
        EXPECT_EQ(t.value().encode(" hello"), std::vector<int32_t>{260});
    }
    // The released file has the characters CR and LF in its expression, others the escapes.
    EXPECT_EQ(testing::released_tokenizer().vocab_size(), 129280);
    // A file without added tokens has none.
    json file = small_tokenizer_json();
    file.erase("added_tokens");
    EXPECT_EQ(Tokenizer::from_json(file.dump())->vocab_size(), 261);
}

TEST(TokenizerFile, OtherSettingsAreRefusedByName) {
    const struct {
        const char* pointer;
        json value;
        StatusCode code;
        const char* message;
    } table[] = {
        {"/version", "2.0", kUnsupported, "version is \"2.0\""},
        {"/truncation", {{"max_length", 5}}, kUnsupported, "truncation"},
        {"/padding", {{"strategy", "x"}}, kUnsupported, "padding"},
        {"/extra", 1, kUnsupported, "unknown setting \"extra\""},
        {"/normalizer", {{"type", "NFKC"}}, kUnsupported, "normalizer"},
        {"/normalizer", 3, kInvalid, "normalizer is 3"},
        {"/normalizer",
         {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
         kUnsupported,
         "Lowercase"},
        {"/normalizer", {{"type", "Sequence"}, {"x", 1}}, kUnsupported, "unknown setting \"x\""},
        {"/pre_tokenizer", nullptr, kInvalid, "pre_tokenizer is null"},
        {"/pre_tokenizer/type", "ByteLevel", kUnsupported, "pre_tokenizer"},
        {"/pre_tokenizer/more", 1, kUnsupported, "unknown setting \"more\""},
        {"/pre_tokenizer/pretokenizers", json::array(), kUnsupported, "pretokenizers is []"},
        {"/pre_tokenizer/pretokenizers/0/type", "Digits", kUnsupported, "pretokenizers[0]"},
        {"/pre_tokenizer/pretokenizers/0/pattern/Regex",
         "\\p{N}{1,2}",
         kUnsupported,
         "pretokenizers[0].pattern"},
        {"/pre_tokenizer/pretokenizers/1/pattern",
         {{"String", " "}},
         kUnsupported,
         "pretokenizers[1].pattern"},
        {"/pre_tokenizer/pretokenizers/1/behavior",
         "Removed",
         kUnsupported,
         "pretokenizers[1].behavior is \"Removed\""},
        {"/pre_tokenizer/pretokenizers/2/pattern/Regex",
         "\\s+",
         kUnsupported,
         "pretokenizers[2].pattern"},
        {"/pre_tokenizer/pretokenizers/2/invert",
         true,
         kUnsupported,
         "pretokenizers[2].invert is true"},
        {"/pre_tokenizer/pretokenizers/2/flags", "i", kUnsupported, "unknown setting \"flags\""},
        {"/pre_tokenizer/pretokenizers/3/type", "Metaspace", kUnsupported, "pretokenizers[3]"},
        {"/pre_tokenizer/pretokenizers/3/add_prefix_space", true, kUnsupported, "add_prefix_space"},
        {"/pre_tokenizer/pretokenizers/3/use_regex", true, kUnsupported, "use_regex"},
        {"/post_processor", {{"type", "TemplateProcessing"}}, kUnsupported, "post_processor"},
        {"/decoder", {{"type", "Metaspace"}}, kUnsupported, "decoder"},
        {"/decoder", nullptr, kInvalid, "decoder is null"},
        {"/decoder/strip", 1, kUnsupported, "unknown setting \"strip\""},
        {"/model/type", "Unigram", kUnsupported, "model"},
        {"/model/dropout", 0.1, kUnsupported, "model.dropout is 0.1"},
        {"/model/unk_token", "<unk>", kUnsupported, "model.unk_token"},
        {"/model/continuing_subword_prefix", "##", kUnsupported, "continuing_subword_prefix"},
        {"/model/end_of_word_suffix", "</w>", kUnsupported, "end_of_word_suffix"},
        {"/model/fuse_unk", true, kUnsupported, "fuse_unk"},
        {"/model/byte_fallback", true, kUnsupported, "byte_fallback"},
        {"/model/ignore_merges", true, kUnsupported, "ignore_merges"},
        {"/model/max_input_chars_per_word", 100, kUnsupported, "unknown setting"},
        {"/model", json::array(), kInvalid, "model is []"},
        {"/added_tokens", 5, kInvalid, "added_tokens is no array"},
        {"/added_tokens/0", "x", kInvalid, "added_tokens[0]"},
        {"/added_tokens/0/lstrip", true, kUnsupported, "added_tokens[0].lstrip"},
        {"/added_tokens/0/rstrip", true, kUnsupported, "added_tokens[0].rstrip"},
        {"/added_tokens/1/single_word", true, kUnsupported, "added_tokens[1].single_word"},
        {"/added_tokens/1/special", "yes", kInvalid, "added_tokens[1].special"},
        {"/added_tokens/1/normalized", 0, kInvalid, "added_tokens[1].normalized"},
        {"/added_tokens/1/score", 0, kUnsupported, "unknown setting \"score\""},
        {"/added_tokens/1/id", -1, kInvalid, "added_tokens[1].id is -1"},
        {"/added_tokens/1/id", 1 << 20, kInvalid, "added_tokens[1].id"},
        {"/added_tokens/1/id", 1.0, kInvalid, "added_tokens[1].id"},
        {"/added_tokens/1/content", "", kInvalid, "added_tokens[1].content"},
        {"/added_tokens/1/content", std::string(1025, 'x'), kInvalid, "added_tokens[1].content"},
        {"/added_tokens/1/content", 7, kInvalid, "added_tokens[1].content is 7"},
    };
    for (const auto& row : table) {
        json file = small_tokenizer_json();
        file[json::json_pointer(row.pointer)] = row.value;
        expect_refused(file.dump(), row.code, row.message);
    }
    for (const char* name : {"pre_tokenizer", "decoder", "model"}) {
        json file = small_tokenizer_json();
        file.erase(name);
        expect_refused(file.dump(), kInvalid, std::string("there is no \"") + name);
    }
    json file =
        small_tokenizer_json();  // a missing switch has the reference library's default, true
    file["pre_tokenizer"]["pretokenizers"][3].erase("use_regex");
    expect_refused(file.dump(), kUnsupported, "use_regex is true");
}

TEST(TokenizerFile, VocabularyAndMergesMustFitTogether) {
    const struct {
        const char* what;
        std::function<void(json&)> change;
        const char* message;
    } table[] = {
        {"no vocabulary", [](json& j) { j["model"].erase("vocab"); }, "no object model.vocab"},
        {"no merges", [](json& j) { j["model"].erase("merges"); }, "no array model.merges"},
        {"negative id",
         [](json& j) { j["model"]["vocab"]["hell"] = -3; },
         "\"hell\" has the id -3"},
        {"huge id",
         [](json& j) { j["model"]["vocab"]["hell"] = 1 << 20; },
         "\"hell\" has the id 1048576"},
        {"text as id",
         [](json& j) { j["model"]["vocab"]["hell"] = "258"; },
         "\"hell\" has no integer id"},
        {"float as id",
         [](json& j) { j["model"]["vocab"]["hell"] = 258.0; },
         "\"hell\" has no integer id"},
        {"list as id",
         [](json& j) { j["model"]["vocab"]["hell"] = json::array(); },
         "\"hell\" has no integer id"},
        {"object as id",
         [](json& j) { j["model"]["vocab"]["hell"] = json::object(); },
         "\"hell\" has no integer id"},
        {"id twice",
         [](json& j) { j["model"]["vocab"]["hell"] = 257; },
         "two tokens with the id 257"},
        {"hole",
         [](json& j) { j["added_tokens"][1]["id"] = 270; },
         "no token with the id 262, the last is 270"},
        {"far hole",
         [](json& j) { j["added_tokens"][1]["id"] = 1048575; },
         "no token with the id 262"},
        {"byte missing",
         [](json& j) {
             j["model"]["vocab"].erase("A");
             j["model"]["vocab"]["AA"] = 65;
         },
         "lacks \"A\", the token of the byte 65"},
        {"empty token", [](json& j) { j["model"]["vocab"][""] = 263; }, "empty token, id 263"},
        {"outside the alphabet",
         [](json& j) { j["model"]["vocab"]["a b"] = 263; },
         "\"a b\" is neither"},
        {"same added id", [](json& j) { j["added_tokens"][1]["id"] = 261; }, "the id 261 twice"},
        {"same added text",
         [](json& j) { j["added_tokens"][1]["content"] = "<a>"; },
         "\"<a>\" twice"},
        {"added id taken",
         [](json& j) { j["added_tokens"][1]["id"] = 258; },
         "\"hell\" in model.vocab and \"<ab>\""},
        {"merge of one",
         [](json& j) { j["model"]["merges"][2] = "hell"; },
         "model.merges[2] is not two tokens"},
        {"merge of three",
         [](json& j) { j["model"]["merges"][2] = "he l l"; },
         "model.merges[2] is not two tokens"},
        {"merge of nothing",
         [](json& j) { j["model"]["merges"][2] = " "; },
         "model.merges[2] is not two tokens"},
        {"merge list of one",
         [](json& j) { j["model"]["merges"][2] = {"he"}; },
         "model.merges[2] has 1 tokens"},
        {"merge list of three",
         [](json& j) {
             j["model"]["merges"][2] = {"h", "e", "l"};
         },
         "model.merges[2] has 3"},
        {"merge of numbers",
         [](json& j) {
             j["model"]["merges"][2] = {1, 2};
         },
         "model.merges[2] is neither"},
        {"number as merge",
         [](json& j) { j["model"]["merges"][2] = 7; },
         "model.merges[2] is neither"},
        {"object as merge",
         [](json& j) { j["model"]["merges"][2] = json::object(); },
         "model.merges[2] is neither"},
        {"left unknown",
         [](json& j) { j["model"]["merges"][2] = "hx ll"; },
         "\"hx\" and \"ll\": one is not in"},
        {"right unknown",
         [](json& j) { j["model"]["merges"][2] = "he lx"; },
         "\"he\" and \"lx\": one is not in"},
        {"result unknown",
         [](json& j) { j["model"]["merges"][2] = "he o"; },
         "the joined token is not in model.vocab"},
        {"merge twice",
         [](json& j) { j["model"]["merges"][4] = "h e"; },
         "model.merges[4], \"h\" and \"e\": stands"},
        {"vocabulary as list",
         [](json& j) { j["model"]["vocab"] = json::array(); },
         "unknown setting \"vocab\""},
        {"merges as object",
         [](json& j) { j["model"]["merges"] = json::object(); },
         "unknown setting \"merges\""},
    };
    for (const auto& row : table) {
        json file = small_tokenizer_json();
        row.change(file);
        const Status status = Tokenizer::from_json(file.dump()).status();
        EXPECT_FALSE(status.ok()) << row.what;
        EXPECT_NE(status.message().find(row.message), std::string::npos)
            << row.what << ": " << status.message() << "\nlacks: " << row.message;
    }
}

TEST(TokenizerFile, BrokenDocumentsAreRefused) {
    const std::string good = small_tokenizer_json().dump();
    ASSERT_TRUE(Tokenizer::from_json(good).ok());
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        const size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return text.replace(at, from.size(), to);
    };
    expect_refused("", kInvalid, "no JSON");
    expect_refused("[]", kInvalid, "expected an object");
    expect_refused("7", kInvalid, "expected an object");
    expect_refused("{}", kInvalid, "there is no \"pre_tokenizer\"");
    expect_refused(good + "x", kInvalid, "no JSON");
    expect_refused(replaced("\"hell\"", "\"he\xFFll\""), kInvalid, "no JSON");
    expect_refused(replaced("\"hell\"", "\"\\ud800\""), kInvalid, "no JSON");
    expect_refused(
        replaced("\"hell\":258", "\"hell\":258,\"hell\":263"), kInvalid, "\"hell\" twice");
    expect_refused(replaced("\"fuse_unk\":false", "\"fuse_unk\":false,\"fuse_unk\":false"),
                   kInvalid,
                   "stands twice");
    expect_refused(
        replaced("\"vocab\":{", "\"vocab\":{},\"vocab\":{"), kInvalid, "\"vocab\" stands twice");
    expect_refused(replaced("\"merges\":[", "\"merges\":[],\"merges\":["),
                   kInvalid,
                   "\"merges\" stands twice");
    expect_refused(
        replaced("\"vocab\":{", "\"vocab\":null,\"vocab\":{"), kInvalid, "\"vocab\" stands twice");
    expect_refused("{\"version\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
                   kInvalid,
                   "nested deeper");
    expect_refused(
        std::string(kMaxTokenizerFileBytes + 1, ' '), kInvalid, "expected at most 67108864");
    std::string many = "{\"version\":[0";
    for (int i = 0; i < 1000000; ++i) many += ",0";
    expect_refused(many + "]}", kInvalid, "more than 1,000,000 values");
    expect_refused(
        "{\"model\":[{\"vocab\":1},{\"a\":1}]}", kInvalid, "there is no \"pre_tokenizer\"");
    for (size_t size = 0; size < good.size(); size += 1 + size / 50) {
        EXPECT_FALSE(Tokenizer::from_json(good.substr(0, size)).ok());
    }
}

TEST(TokenizerFile, DamageIsRefusedOrHarmless) {
    std::mt19937 rng = testing::test_rng();
    const std::string good = small_tokenizer_json().dump();
    int accepted = 0;
    for (int i = 0; i < 3000; ++i) {
        std::string text = good;
        for (uint32_t hits = 1 + testing::below(rng, 3); hits > 0; --hits) {
            text[testing::below(rng, static_cast<uint32_t>(text.size()))] =
                static_cast<char>(rng());
        }
        const Result<Tokenizer> t = Tokenizer::from_json(text);
        if (!t.ok()) continue;
        ++accepted;
        EXPECT_EQ(t.value().decode(t.value().encode("hello <ab>")).value(), "hello <ab>");
    }
    EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace deepinfer
