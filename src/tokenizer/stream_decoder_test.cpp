#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::released_tokenizer;
using Ids = std::vector<int32_t>;

// The text of a stream that is pushed `cuts`-wise: up to each of the given positions, then the
// rest.
std::string streamed(const Ids& ids, std::vector<size_t> cuts) {
    StreamDecoder stream(released_tokenizer());
    std::string out;
    size_t begin = 0;
    cuts.push_back(ids.size());
    for (const size_t end : cuts) {
        const std::string piece = stream.push(std::span(ids).subspan(begin, end - begin)).value();
        EXPECT_TRUE(is_valid_utf8(piece));
        out += piece;
        begin = end;
    }
    return out + stream.finish();
}

TEST(StreamDecoder, PiecesOfTheDecodeGoldens) {
    const json document = json::parse(testing::read_packed("tokenizer/decode_cases.json.gz"));
    for (const json& c : document["cases"]) {
        if (c["expect"].contains("error")) continue;
        StreamDecoder stream(released_tokenizer());
        std::vector<std::string> pieces;
        for (const int32_t id : c["request"]["ids"].get<Ids>())
            pieces.push_back(stream.push(id).value());
        pieces.push_back(stream.finish());
        EXPECT_EQ(pieces, c["expect"]["pieces"].get<std::vector<std::string>>()) << c["name"];
    }
}

TEST(StreamDecoder, EveryGroupingGivesTheWholeText) {
    std::mt19937 rng = testing::test_rng();
    const Tokenizer& t = released_tokenizer();
    Ids partial;  // tokens whose bytes are no whole characters
    for (int32_t id = 0; id < t.vocab_size(); ++id) {
        if (!is_valid_utf8(t.token_bytes(id))) partial.push_back(id);
    }
    ASSERT_GT(partial.size(), 500u);
    for (int round = 0; round < 300; ++round) {
        Ids ids;
        for (uint32_t n = testing::below(rng, 12); n > 0; --n) {
            ids.push_back(testing::below(rng, 3) > 0
                              ? partial[testing::below(rng, static_cast<uint32_t>(partial.size()))]
                              : static_cast<int32_t>(testing::below(rng, 129280)));
        }
        const std::string whole = t.decode(ids).value();
        std::vector<size_t> singly;
        for (size_t cut = 0; cut < ids.size(); ++cut) {
            singly.push_back(cut);
            EXPECT_EQ(streamed(ids, {cut}), whole);
            for (size_t second = cut; second <= ids.size(); ++second)
                EXPECT_EQ(streamed(ids, {cut, second}), whole);
        }
        EXPECT_EQ(streamed(ids, singly), whole);
    }
}

TEST(StreamDecoder, ARefusedIdLeavesTheStreamAsItWas) {
    const Ids emoji = released_tokenizer().encode("😀");
    ASSERT_EQ(emoji.size(), 2u);
    StreamDecoder stream(released_tokenizer());
    EXPECT_EQ(stream.push(emoji[0]).value(), "");
    EXPECT_EQ(stream.push(129280).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(stream.push(Ids{emoji[1], -1}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(stream.push(emoji[1]).value(), "😀");
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(stream.push(emoji[0]).value(), "");
    EXPECT_EQ(stream.finish(), "�");
    EXPECT_EQ(stream.push(emoji[1]).value(), "�");  // as new: nothing of the first text is left
}

}  // namespace
}  // namespace deepinfer
