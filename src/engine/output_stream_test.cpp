// Stop strings over token and character borders: the field cases' texts, cut in every way.
#include "engine/output_stream.h"

#include <gtest/gtest.h>

#include <tuple>

#include "support/case_file.h"
#include "support/golden_file.h"

namespace deepinfer {
namespace {

const Tokenizer& demo_tokenizer() {
    static const Tokenizer t = std::move(Tokenizer::load(testing::checkpoint_path("demo"))).value();
    return t;
}

/// One token per byte, so that characters and stop strings are cut at every byte.
std::vector<int32_t> byte_tokens(const std::string& text) {
    std::vector<int32_t> ids;
    for (const char c : text) {
        const int32_t id = demo_tokenizer().id_of(std::string_view(&c, 1));
        if (id < 0) ADD_FAILURE() << "no token for byte " << static_cast<int>(c);
        ids.push_back(id);
    }
    return ids;
}

struct Streamed {
    std::string text;
    FinishReason reason = FinishReason::kNone;
    size_t tokens = 0;
};

Streamed stream(const std::vector<int32_t>& ids,
                const SamplingParams& params,
                FinishReason at_end) {
    OutputStream s(demo_tokenizer(), params);
    Streamed out;
    for (const int32_t id : ids) {
        FinishReason reason = FinishReason::kNone;
        out.text += s.push(id, &reason);
        ++out.tokens;
        if (reason != FinishReason::kNone) {
            out.reason = reason;
            return out;
        }
    }
    out.text += s.finish();
    out.reason = s.stop_text().empty() ? at_end : FinishReason::kStop;
    return out;
}

TEST(OutputStream, FieldCasesOfSplitStopStrings) {
    for (const auto& row : testing::case_rows("sampling.json", "C-049")) {
        const auto& in = row["in"];
        if (!in.contains("stop")) continue;
        SamplingParams params;
        params.stop = in["stop"].get<std::vector<std::string>>();
        const std::string text = in["text"];
        const auto& want = row["want"];
        const std::string content = want.contains("content") ? want["content"] : want["text"];
        for (const auto& ids : {byte_tokens(text), demo_tokenizer().encode(text)}) {
            const Streamed got = stream(ids, params, FinishReason::kStop);
            EXPECT_EQ(got.text, content) << text;
            EXPECT_EQ(finish_reason_name(got.reason), want.value("finish", "stop")) << text;
        }
    }
}

TEST(OutputStream, DeltasAreNeverTakenBack) {
    SamplingParams params;
    params.stop = {"own fox", "ox r"};
    OutputStream s(demo_tokenizer(), params);
    std::string text;
    for (const int32_t id : byte_tokens("The quick brown fan, own fo, own fox ran")) {
        FinishReason reason = FinishReason::kNone;
        text += s.push(id, &reason);
        EXPECT_EQ(text.find("own fox"), std::string::npos);
        if (reason != FinishReason::kNone) break;
    }
    EXPECT_EQ(text, "The quick brown fan, own fo, ");
    EXPECT_EQ(s.stop_text(), "own fox");
}

TEST(OutputStream, HeldTextIsReleasedByAnotherEnd) {
    SamplingParams params;
    params.stop = {"three"};
    const Streamed got = stream(byte_tokens("one two th"), params, FinishReason::kLength);
    EXPECT_EQ(got.text, "one two th");
    EXPECT_EQ(got.reason, FinishReason::kLength);
    OutputStream s(demo_tokenizer(), params);
    FinishReason reason = FinishReason::kLength;  // the token is the last one allowed
    EXPECT_EQ(s.push(byte_tokens("t")[0], &reason), "t");
}

TEST(OutputStream, AStopStringWinsOverTheLength) {
    SamplingParams params;
    params.stop = {"b"};
    OutputStream s(demo_tokenizer(), params);
    FinishReason reason = FinishReason::kLength;
    EXPECT_EQ(s.push(byte_tokens("b")[0], &reason), "");
    EXPECT_EQ(reason, FinishReason::kStop);
}

TEST(OutputStream, TheEndTokenAddsNoText) {
    OutputStream s(demo_tokenizer(), SamplingParams());
    FinishReason reason = FinishReason::kStop;
    EXPECT_EQ(s.push(demo_tokenizer().eos_id(), &reason), "");
}

TEST(OutputStream, AnUnfinishedCharacterIsShownAtTheEnd) {
    const Streamed got = stream(byte_tokens("a\xc3"), SamplingParams(), FinishReason::kLength);
    EXPECT_EQ(got.text, "a\xEF\xBF\xBD");
}

TEST(OutputStream, IncludedStopStringStays) {
    SamplingParams params;
    params.stop = {"cd"};
    params.include_stop_str = true;
    EXPECT_EQ(stream(byte_tokens("abcdef"), params, FinishReason::kLength).text, "abcd");
}

TEST(OutputStream, NoStopStringEndsBeforeMinTokens) {
    SamplingParams params;
    params.stop = {"ab"};
    const std::vector<int32_t> ids = byte_tokens("xabyabz");
    for (const auto& [least, text, tokens] :
         {std::tuple{0, "x", 3}, {3, "x", 3}, {4, "xaby", 6}, {6, "xaby", 6}, {7, "xabyabz", 7}}) {
        params.min_tokens = least;
        const Streamed s = stream(ids, params, FinishReason::kLength);
        EXPECT_EQ(s.text, text) << least;
        EXPECT_EQ(s.tokens, static_cast<size_t>(tokens)) << least;
    }
}

}  // namespace
}  // namespace deepinfer
