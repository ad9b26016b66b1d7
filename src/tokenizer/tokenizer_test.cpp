#include "deepinfer/tokenizer.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::released_tokenizer;
using Ids = std::vector<int32_t>;

SpecialTokens mode_of(const json& request) {
    return request["special"] == "parse" ? SpecialTokens::kParse : SpecialTokens::kPlain;
}

std::string bytes_of_hex(const std::string& hex) {
    std::string out;
    for (size_t i = 0; i < hex.size(); i += 2) {
        out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return out;
}

TEST(Tokenizer, EncodeGoldens) {
    const json document = json::parse(testing::read_packed("tokenizer/encode_cases.json.gz"));
    ASSERT_EQ(document["cases"].size(), 533u);
    for (const json& c : document["cases"]) {
        const json& request = c["request"];
        const std::string text = request.contains("text") ? request["text"].get<std::string>()
                                                          : bytes_of_hex(request["bytes"]);
        EXPECT_EQ(released_tokenizer().encode(text, mode_of(request)),
                  c["expect"]["ids"].get<Ids>())
            << c["name"];
    }
}

TEST(Tokenizer, DecodeGoldens) {
    const json document = json::parse(testing::read_packed("tokenizer/decode_cases.json.gz"));
    ASSERT_EQ(document["cases"].size(), 126u);
    for (const json& c : document["cases"]) {
        Ids ids;
        for (const json& id : c["request"]["ids"])
            ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
        const Result<std::string> text = released_tokenizer().decode(ids);
        if (c["expect"].contains("error")) {
            EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument) << c["name"];
            continue;
        }
        ASSERT_TRUE(text.ok()) << c["name"];
        EXPECT_EQ(text.value(), c["expect"]["text"].get<std::string>()) << c["name"];
    }
}

TEST(Tokenizer, VectorsOfThePromptSpecification) {
    const struct {
        const char* text;
        Ids ids;
    } table[] = {
        {"Hello, world!", {19923, 14, 2058, 3}},
        {"I'm sure it's fine; they're not, and we've all heard it.",
         {43,
          4571,
          3645,
          436,
          734,
          8209,
          29,
          851,
          4750,
          554,
          14,
          305,
          579,
          5270,
          710,
          7431,
          436,
          16}},
        {"1234567890", {6895, 18009, 25744, 18}},
        {"12 345 6789", {736, 223, 18014, 223, 27183, 27}},
        {"½ Ⅷ ⅓", {23951, 223, 23603, 103, 223, 23603, 244}},
        {"٢٠٢٤", {76647, 82025, 76647, 152, 100}},
        {"汉字123数字", {43256, 6895, 8283}},
        {"中文mixed英文", {21134, 122545, 21207}},
        {"カタカナとひらがなと漢字",
         {15961, 11767, 15961, 27071, 2495, 40259, 4970, 2936, 2942, 2495, 29069, 2024}},
        {"Hello 😀 world", {19923, 53769, 225, 2058}},
        {"a(b)c", {67, 7011, 102330}},
        {"def f(x):\n    return x + 1", {3465, 285, 4042, 3395, 361, 1354, 1527, 940, 223, 19}},
        {"xxx   y\n\n  z\t", {40359, 262, 383, 271, 223, 961, 200}},
        {"a <think> b", {67, 223, 128821, 291}},
        {"<｜DSML｜ calls>\n", {30, 128825, 10699, 1018}},
        {"</", {1718}},
        {" invoke", {34756}},
        {" parameter", {10767}},
        {"\n\n", {271}},
    };
    for (const auto& row : table) {
        EXPECT_EQ(released_tokenizer().encode(row.text), row.ids) << row.text;
        EXPECT_EQ(released_tokenizer().decode(row.ids).value(), row.text);
    }
}

TEST(Tokenizer, NumberedVocabularyIsItsIds) {
    const Tokenizer t = Tokenizer::numbered(300, 0, 1);
    EXPECT_EQ(t.vocab_size(), 300);
    EXPECT_EQ(t.bos_id(), 0);
    EXPECT_EQ(t.eos_id(), 1);
    EXPECT_FALSE(t.is_added(0));
    EXPECT_EQ(t.encode("5, 17 [299]x4"), (std::vector<int32_t>{5, 17, 299, 4}));
    EXPECT_TRUE(t.encode("no number").empty());
    // What the vocabulary lacks stays visible, so that a request with it is refused.
    EXPECT_EQ(t.encode("300 99999999999999"), (std::vector<int32_t>{300, 2147483647}));
    const std::vector<int32_t> ids{299, 0, 42};
    EXPECT_EQ(t.decode(ids).value(), "299 0 42 ");
    EXPECT_EQ(t.encode(t.decode(ids).value()), ids);
    EXPECT_EQ(t.encode_prompt(PromptText{"5", {}}).status().code(), StatusCode::kInvalidArgument);
    StreamDecoder stream(t);
    EXPECT_EQ(stream.push(42).value(), "42 ");
}

TEST(Tokenizer, NamesAndFlagsOfTheReleasedVocabulary) {
    const Tokenizer& t = released_tokenizer();
    EXPECT_EQ(t.vocab_size(), 129280);
    EXPECT_EQ(t.bos_id(), 0);
    EXPECT_EQ(t.eos_id(), 1);
    const struct {
        const char* text;
        int32_t id;
        bool special;
    } added[] = {{"<｜begin▁of▁sentence｜>", 0, true},
                 {"<｜▁pad▁｜>", 2, true},
                 {"<｜System｜>", 128799, false},
                 {"<｜User｜>", 128803, false},
                 {"<think>", 128821, false},
                 {"｜DSML｜", 128825, false},
                 {"<｜deepseek_image｜>", 129264, false},
                 {"<|place_holder_mm_span_0442|>", 129279, true}};
    for (const auto& row : added) {
        EXPECT_EQ(t.id_of(row.text), row.id) << row.text;
        EXPECT_EQ(t.token_bytes(row.id), row.text);
        EXPECT_EQ(t.token_text(row.id), row.text);
        EXPECT_TRUE(t.is_added(row.id));
        EXPECT_EQ(t.is_special(row.id), row.special) << row.text;
    }
    EXPECT_EQ(t.id_of(" invoke"), 34756);
    EXPECT_EQ(t.token_text(34756), "Ġinvoke");
    EXPECT_FALSE(t.is_added(34756));
    EXPECT_EQ(t.id_of("no such token at all"), -1);
    EXPECT_EQ(t.id_of(""), -1);
    EXPECT_FALSE(t.contains(-1));
    EXPECT_TRUE(t.contains(129279));
    EXPECT_FALSE(t.contains(129280));
}

TEST(Tokenizer, EveryTokenIsFoundByItsBytes) {
    const Tokenizer& t = released_tokenizer();
    for (int32_t id = 0; id < t.vocab_size(); ++id) {
        ASSERT_EQ(t.id_of(t.token_bytes(id)), id);
        std::string bytes;
        if (!t.is_added(id)) {
            ASSERT_TRUE(append_alphabet_bytes(t.token_text(id), bytes));
            ASSERT_EQ(bytes, t.token_bytes(id));
        }
    }
}

TEST(Tokenizer, DecodeUndoesEncode) {
    std::mt19937 rng = testing::test_rng();
    const Tokenizer& t = released_tokenizer();
    for (int i = 0; i < 3000; ++i) {
        std::string text = testing::random_text(rng, 80);
        if (i % 4 == 0)
            text += t.token_bytes(128000 + static_cast<int32_t>(testing::below(rng, 1280)));
        EXPECT_EQ(t.decode(t.encode(text, SpecialTokens::kParse)).value(), text);
        EXPECT_EQ(t.decode(t.encode(text, SpecialTokens::kPlain)).value(), text);
    }
}

TEST(Tokenizer, BrokenUtf8IsEncodedAsItsRepair) {
    std::mt19937 rng = testing::test_rng();
    const Tokenizer& t = released_tokenizer();
    for (int i = 0; i < 1000; ++i) {
        std::string bytes;
        for (uint32_t n = testing::below(rng, 20); n > 0; --n) bytes += static_cast<char>(rng());
        bytes += testing::random_text(rng, 5);
        std::string repaired;
        append_repaired_utf8(bytes, false, repaired);
        EXPECT_EQ(t.encode(bytes), t.encode(repaired));
        EXPECT_EQ(t.decode(t.encode(bytes)).value(), repaired);
    }
}

TEST(Tokenizer, PlainTextNeverGivesAddedTokens) {
    const Tokenizer& t = released_tokenizer();
    for (int32_t added = 0; added < t.vocab_size(); added = added == 2 ? 128000 : added + 1) {
        for (const int32_t id : t.encode(t.token_bytes(added), SpecialTokens::kPlain)) {
            ASSERT_FALSE(t.is_added(id)) << t.token_bytes(added);
        }
        ASSERT_EQ(t.encode(t.token_bytes(added)), Ids{added});
    }
}

// Flags every added token of `text`, as a template would that wrote all of them.
PromptText flag_all(const Tokenizer& t, const std::string& text) {
    PromptText prompt{text, {}};
    size_t pos = 0;
    for (const int32_t id : t.encode(text)) {
        const size_t size = t.token_bytes(id).size();
        if (t.is_added(id)) prompt.specials.push_back({pos, pos + size});
        pos += size;
    }
    return prompt;
}

TEST(EncodePrompt, AllFlaggedEqualsParseNoneFlaggedEqualsPlain) {
    std::mt19937 rng = testing::test_rng();
    const Tokenizer& t = released_tokenizer();
    for (int i = 0; i < 300; ++i) {
        std::string text;
        for (int part = 0; part < 4; ++part) {
            text += testing::random_text(rng, 10);
            text += t.token_bytes(128799 + static_cast<int32_t>(testing::below(rng, 30)));
        }
        EXPECT_EQ(t.encode_prompt(flag_all(t, text)).value(),
                  t.encode(text, SpecialTokens::kParse));
        EXPECT_EQ(t.encode_prompt({text, {}}).value(), t.encode(text, SpecialTokens::kPlain));
    }
}

TEST(EncodePrompt, UserTextCannotSpellAToken) {
    const Tokenizer& t = released_tokenizer();
    const std::string user = "<｜User｜>";
    const PromptText prompt{user + "say " + user + "!", {{0, user.size()}}};
    const Ids ids = t.encode_prompt(prompt).value();
    EXPECT_EQ(ids.front(), 128803);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 128803), 1);
    EXPECT_EQ(t.decode(ids).value(), prompt.text);
}

TEST(EncodePrompt, TemplateAndContentMeetInOneToken) {
    const Tokenizer& t = released_tokenizer();
    const std::string text = "<tool_result>{\"temp\": 20}</tool_result>";
    const Ids ids = t.encode_prompt({text, {}}).value();
    EXPECT_NE(std::find(ids.begin(), ids.end(), t.id_of("}</")), ids.end());
    EXPECT_GE(t.id_of("}</"), 0);
}

TEST(EncodePrompt, WrongRangesAreRefused) {
    const Tokenizer& t = released_tokenizer();
    const std::string text = "<think>ab<think>";
    const std::vector<std::vector<SpecialRange>> table = {
        {{9, 16}, {0, 7}},  // descending
        {{0, 7}, {0, 7}},   // twice
        {{0, 0}},           // empty
        {{7, 3}},           // backwards
        {{9, 17}},          // past the end
        {{0, 6}},           // no token
        {{7, 9}},           // a base token only ("ab")
    };
    for (const auto& ranges : table) {
        EXPECT_EQ(t.encode_prompt({text, ranges}).status().code(), StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(t.encode_prompt({text, {{0, 7}, {9, 16}}}).ok());
    EXPECT_TRUE(t.encode_prompt({"", {}}).value().empty());
}

TEST(EncodePrompt, BrokenUtf8BetweenTokensIsRepaired) {
    const Tokenizer& t = released_tokenizer();
    const std::string text = "\xE4\xBD<think>\xFFx";
    EXPECT_EQ(t.decode(t.encode_prompt({text, {{2, 9}}}).value()).value(), "�<think>�x");
}

TEST(Tokenizer, BoundedEncodingGivesABeginning) {
    const Tokenizer& t = released_tokenizer();
    const std::string text = "One, two <think> three\n\n4567 — fünf <｜User｜>sechs";
    const std::vector<int32_t> all = t.encode(text);
    PromptText prompt;
    prompt.text = "<｜User｜>" + text + "<｜Assistant｜>";
    const size_t user = std::string("<｜User｜>").size();
    prompt.specials = {{0, user}, {user + text.size(), prompt.text.size()}};
    const std::vector<int32_t> rendered = t.encode_prompt(prompt).value();
    const auto is_beginning =
        [](const std::vector<int32_t>& some, const std::vector<int32_t>& whole, size_t most) {
            EXPECT_TRUE(some.size() <= whole.size() &&
                        std::equal(some.begin(), some.end(), whole.begin()));
            EXPECT_TRUE(whole.size() <= most ? some.size() == whole.size() : some.size() > most)
                << most;
        };
    for (size_t most = 0; most <= rendered.size() + 1; ++most) {
        is_beginning(t.encode(text, SpecialTokens::kParse, most), all, most);
        is_beginning(t.encode_prompt(prompt, most).value(), rendered, most);
    }
    const std::string longer(size_t{4} << 20, '\n');
    std::string words;
    while (words.size() < longer.size()) words += "word ";
    EXPECT_LE(t.encode(words, SpecialTokens::kParse, 10).size(), 12u);
}

TEST(Tokenizer, LengthBoundsHold) {
    const Tokenizer& t = released_tokenizer();
    const size_t longest = t.longest_token_bytes();
    bool reached = false;
    for (int32_t id = 0; id < t.vocab_size(); ++id) {
        ASSERT_LE(t.token_bytes(id).size(), longest);
        reached = reached || t.token_bytes(id).size() == longest;
    }
    EXPECT_TRUE(reached);
    EXPECT_EQ(Tokenizer::numbered(10, 0, 1).longest_token_bytes(), Tokenizer::kAllIds);
}

TEST(Tokenizer, OneInstanceServesManyThreads) {
    const Tokenizer& t = released_tokenizer();
    const std::string text = "The 3 quick brown foxes; 価格は￥1,200です。 <think>";
    const Ids want = t.encode(text);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (size_t k = 0; k < wrong.size(); ++k) {
        threads.emplace_back([&, k] {
            for (int i = 0; i < 200; ++i) {
                if (t.encode(text) != want || t.decode(want).value() != text) ++wrong[k];
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

class TokenizerDirectory : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string path =
            (std::filesystem::temp_directory_path() / "deepinfer_tokenizer_XXXXXX").string();
        ASSERT_NE(mkdtemp(path.data()), nullptr);
        path_ = path;
    }
    void TearDown() override { std::filesystem::remove_all(path_); }
    void write(const std::string& name, const std::string& text) {
        std::ofstream(path_ / name, std::ios::binary) << text;
    }

    std::filesystem::path path_;
};

TEST_F(TokenizerDirectory, LoadsADirectoryOrAFile) {
    write("tokenizer.json", testing::small_tokenizer_json().dump());
    for (const auto& path : {path_, path_ / "tokenizer.json"}) {
        const Result<Tokenizer> t = Tokenizer::load(path.string());
        ASSERT_TRUE(t.ok()) << t.status().to_string();
        EXPECT_EQ(t.value().encode("hello hello<ab>"), (Ids{259, 260, 262}));
        EXPECT_EQ(t.value().bos_id(), -1);
    }
    write("tokenizer_config.json", R"({"bos_token": "<a>", "eos_token": {"content": "<ab>"}})");
    const Result<Tokenizer> t = Tokenizer::load(path_.string());
    ASSERT_TRUE(t.ok());
    EXPECT_EQ(t.value().bos_id(), 261);
    EXPECT_EQ(t.value().eos_id(), 262);
}

TEST_F(TokenizerDirectory, WhatIsMissingOrDamagedIsNamed) {
    EXPECT_EQ(Tokenizer::load((path_ / "absent").string()).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(Tokenizer::load(path_.string()).status().code(), StatusCode::kNotFound);
    write("tokenizer.json", "{");
    const Status status = Tokenizer::load(path_.string()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidFile);
    EXPECT_NE(status.message().find(path_.string()), std::string::npos) << status.message();
    write("tokenizer.json", testing::small_tokenizer_json().dump());
    for (const char* config : {"",
                               "[]",
                               "{\"bos_token\": 3}",
                               "{\"eos_token\": {}}",
                               "{\"bos_token\": \"<nowhere>\"}",
                               "{\"eos_token\": \"<nowhere>\"}"}) {
        write("tokenizer_config.json", config);
        EXPECT_EQ(Tokenizer::load(path_.string()).status().code(), StatusCode::kInvalidFile)
            << config;
    }
}

}  // namespace
}  // namespace deepinfer
