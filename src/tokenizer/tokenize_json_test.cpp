#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::released_tokenizer;

json answer(const std::string& line, TokenizeOp op = TokenizeOp::kRequired) {
    const std::string text = tokenize_json_line(released_tokenizer(), line, op);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return json::parse(text);
}

// Both spellings of a request must be read: plain UTF-8 and \u escapes.
void expect_goldens(const char* file) {
    const json document = json::parse(testing::read_packed(file));
    for (const json& c : document["cases"]) {
        for (const bool escaped : {false, true}) {
            const json got = answer(c["request"].dump(-1, ' ', escaped));
            EXPECT_EQ(got["id"], c["request"]["id"]);
            if (c["expect"].contains("error")) {
                EXPECT_EQ(got["error"]["status"], c["expect"]["error"]["status"]) << c["name"];
                continue;
            }
            for (const auto& item : c["expect"].items())
                EXPECT_EQ(got[item.key()], item.value()) << c["name"];
        }
    }
}

TEST(TokenizeJson, EncodeGoldens) {
    expect_goldens("tokenizer/encode_cases.json.gz");
}
TEST(TokenizeJson, DecodeGoldens) {
    expect_goldens("tokenizer/decode_cases.json.gz");
}

TEST(TokenizeJson, WrongRequestsGetAnErrorWithTheirId) {
    const struct {
        const char* line;
        json id;
    } table[] = {
        {"", nullptr},
        {"{", nullptr},
        {"[]", nullptr},
        {"7", nullptr},
        {"{\"id\":\"a\",\"op\":\"encode\",\"text\":\"\x01\"}", nullptr},
        {"{\"id\":\"a\",\"op\":\"encode\",\"text\":\"\xFF\"}", nullptr},
        {R"({"id":[1],"op":"encode","text":"a"})", nullptr},
        {R"({"op":"encode"})", nullptr},
        {R"({"id":"a"})", "a"},
        {R"({"id":1,"op":"encode"})", 1},
        {R"({"id":"a","op":"translate","text":"x"})", "a"},
        {R"({"id":"a","op":3,"text":"x"})", "a"},
        {R"({"id":"a","op":"encode","text":3})", "a"},
        {R"({"id":"a","op":"encode","bytes":3})", "a"},
        {R"({"id":"a","op":"encode","text":"x","bytes":"41"})", "a"},
        {R"({"id":"a","op":"encode","bytes":"4"})", "a"},
        {R"({"id":"a","op":"encode","bytes":"4g"})", "a"},
        {R"({"id":"a","op":"encode","text":"x","special":"both"})", "a"},
        {R"({"id":"a","op":"encode","text":"x","special":null})", "a"},
        {R"({"id":"a","op":"encode","text":"\ud83d"})", "a"},
        {R"({"id":"a","op":"encode","text":"\ude00"})", "a"},
        {R"({"id":"a","op":"encode","text":"\ude00\ud83d"})", "a"},
        {R"({"id":"a","op":"encode","text":"\ud83d\ud83d\ude00"})", "a"},
        {R"({"id":"a","op":"encode","text":"\\\ud83d"})", "a"},
        {R"({"id":"a","op":"decode"})", "a"},
        {R"({"id":"a","op":"decode","ids":7})", "a"},
        {R"({"id":"a","op":"decode","ids":[-1]})", "a"},
        {R"({"id":"a","op":"decode","ids":[1.0]})", "a"},
        {R"({"id":"a","op":"decode","ids":["1"]})", "a"},
        {R"({"id":"a","op":"decode","ids":[true]})", "a"},
        {R"({"id":"a","op":"decode","ids":[[1]]})", "a"},
        {R"({"id":"a","op":"decode","ids":[129280]})", "a"},
        {R"({"id":"a","op":"decode","ids":[18446744073709551615]})", "a"},
        {R"({"id":"a","op":"decode","ids":[4294967296]})", "a"},
    };
    for (const auto& row : table) {
        const json got = answer(row.line);
        EXPECT_EQ(got["id"], row.id) << row.line;
        EXPECT_EQ(got["error"]["status"], 400) << row.line;
        EXPECT_EQ(got["error"]["type"], "invalid_request_error");
        EXPECT_FALSE(got["error"]["message"].get<std::string>().empty());
    }
}

TEST(TokenizeJson, EscapedPairsAndBackslashesAreNoLoneSurrogates) {
    EXPECT_EQ(answer(R"({"id":"a","op":"encode","text":"\ud83d\ude00"})")["ids"],
              json(released_tokenizer().encode("😀")));
    EXPECT_EQ(answer(R"({"id":"a","op":"encode","text":"\\ud83d"})")["ids"],
              json(released_tokenizer().encode("\\ud83d")));
}

TEST(TokenizeJson, DefaultsOfTheTwoCommands) {
    EXPECT_EQ(answer(R"({"id":"a","ids":[19923]})", TokenizeOp::kDecode)["text"], "Hello");
    EXPECT_EQ(answer(R"({"id":"a","text":"Hello"})", TokenizeOp::kEncode)["ids"], json({19923}));
    EXPECT_EQ(answer(R"({"id":"a","op":"encode","text":"<think>"})", TokenizeOp::kDecode)["ids"],
              json({128821}));
    EXPECT_EQ(answer(R"({"op":"encode","text":"","more":[1]})"),
              json({{"id", nullptr}, {"ids", json::array()}}));
}

}  // namespace
}  // namespace deepinfer
