#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/tokenizer_test_util.h"
#ifdef DEEPINFER_TEST_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace deepinfer {
namespace {

std::vector<std::string> pieces_of(std::string_view text) {
    std::vector<std::string> out;
    PieceReader reader(text);
    std::string_view piece;
    while (reader.next(piece)) out.emplace_back(piece);
    return out;
}

TEST(PieceReader, SplitsAsTheExpressionsSay) {
    using Pieces = std::vector<std::string>;
    const struct {
        const char* text;
        Pieces want;
    } table[] = {
        {"", {}},
        {"1234567890", {"123", "456", "789", "0"}},
        {"a1b", {"a", "1", "b"}},
        {"a  b", {"a", " ", " b"}},
        {"a   b", {"a", "  ", " b"}},
        {"a \n b", {"a", " \n", " b"}},
        {"x  ", {"x", "  "}},
        {"x 1", {"x", " ", "1"}},
        {"\n\n  \nx", {"\n\n  \n", "x"}},
        {"(a)", {"(a", ")"}},
        {" (a)", {" (", "a", ")"}},
        {"don't", {"don", "'t"}},
        {"!!\r\n\n ", {"!!\r\n\n", " "}},
        {"汉字123数字", {"汉字", "123", "数字"}},
        {"カタカナ・ひらがな", {"カタカナ", "・", "ひらがな"}},
        {"aの字b", {"a", "の字", "b"}},
        {"龦龥", {"龦", "龥"}},  // 9FA6 is beyond the Han range
        {" の", {" ", "の"}},    // the space is in another piece, so it cannot join the word
        {"\x01\x02"
         "a",
         {"\x01",
          "\x02"
          "a"}},
        {"\x01\x02", {"\x01\x02"}},  // a gap is one piece
        {"\u0301", {"\u0301"}},
        {"\u00A0x", {"\u00A0x"}},
        {"“x”", {"“", "x", "”"}},
        {"\rx", {"\r", "x"}},
        {"é1²", {"é", "1²"}},
    };
    for (const auto& row : table) EXPECT_EQ(pieces_of(row.text), row.want) << row.text;
}

TEST(PieceReader, PiecesJoinToTheText) {
    std::mt19937 rng = testing::test_rng();
    for (int i = 0; i < 3000; ++i) {
        const std::string text = testing::random_text(rng, 60);
        std::string joined;
        for (const std::string& piece : pieces_of(text)) {
            EXPECT_FALSE(piece.empty());
            joined += piece;
        }
        ASSERT_EQ(joined, text);
    }
}

#ifdef DEEPINFER_TEST_PCRE2

class Regex {
  public:
    explicit Regex(const std::string& pattern) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                              pattern.size(),
                              PCRE2_UTF | PCRE2_UCP,
                              &error,
                              &offset,
                              nullptr);
        match_ = code_ == nullptr ? nullptr : pcre2_match_data_create_from_pattern(code_, nullptr);
    }
    ~Regex() {
        pcre2_match_data_free(match_);
        pcre2_code_free(code_);
    }
    Regex(const Regex&) = delete;
    Regex& operator=(const Regex&) = delete;

    bool ok() const { return match_ != nullptr; }
    /// First match at or after `from`.
    bool find(const std::string& text, size_t from, size_t& begin, size_t& end) const {
        if (pcre2_match(code_,
                        reinterpret_cast<PCRE2_SPTR>(text.data()),
                        text.size(),
                        from,
                        0,
                        match_,
                        nullptr) <= 0) {
            return false;
        }
        begin = pcre2_get_ovector_pointer(match_)[0];
        end = pcre2_get_ovector_pointer(match_)[1];
        return true;
    }
    /// Matches and gaps of every piece.
    std::vector<std::string> isolate(const std::vector<std::string>& pieces) const {
        std::vector<std::string> out;
        for (const std::string& piece : pieces) {
            size_t pos = 0;
            size_t begin = 0;
            size_t end = 0;
            while (pos < piece.size() && find(piece, pos, begin, end)) {
                if (begin > pos) out.push_back(piece.substr(pos, begin - pos));
                out.push_back(piece.substr(begin, end - begin));
                pos = end;
            }
            if (pos < piece.size()) out.push_back(piece.substr(pos));
        }
        return out;
    }

  private:
    pcre2_code* code_ = nullptr;
    pcre2_match_data* match_ = nullptr;
};

// A second reading of the file's own expressions by another implementation. It knows an older
// Unicode, so only characters that it puts into the same class take part.
TEST(PieceReader, EqualsARegexEngine) {
    const auto document =
        nlohmann::json::parse(testing::read_packed("tokenizer/nano_tokenizer.json.gz"));
    const auto& steps = document["pre_tokenizer"]["pretokenizers"];
    const auto expression = [&](size_t i) {
        return steps[i]["pattern"]["Regex"].get<std::string>();
    };
    const Regex first(expression(0)), second(expression(1)), third(expression(2));
    const Regex classes[] = {Regex("\\p{L}"),
                             Regex("\\p{M}"),
                             Regex("\\p{N}"),
                             Regex("\\p{P}"),
                             Regex("\\p{S}"),
                             Regex("\\s")};
    ASSERT_TRUE(first.ok() && second.ok() && third.ok());
    const auto agrees = [&](char32_t c) {
        std::string text;
        append_utf8(c, text);
        CharClass found = CharClass::kNone;
        size_t begin = 0;
        size_t end = 0;
        for (size_t i = 0; i < 6; ++i) {
            if (classes[i].find(text, 0, begin, end)) found = static_cast<CharClass>(i + 1);
        }
        return found == unicode_class_table()[c];
    };
    std::mt19937 rng = testing::test_rng();
    size_t left_out = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string text;
        for (uint32_t n = testing::below(rng, 30); n > 0; --n) {
            const char32_t c = testing::random_code_point(rng);
            if (agrees(c)) {
                append_utf8(c, text);
            } else {
                ++left_out;
            }
        }
        ASSERT_EQ(pieces_of(text), third.isolate(second.isolate(first.isolate({text})))) << text;
    }
    EXPECT_LT(left_out, 20000u);  // of some 290,000 characters: the comparison is not empty
}

#else

TEST(PieceReader, EqualsARegexEngine) {
    GTEST_SKIP() << "built without PCRE2 (libpcre2-dev)";
}

#endif

}  // namespace
}  // namespace deepinfer
