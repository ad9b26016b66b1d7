#include "tokenizer/utf8.h"

#include "tokenizer/tokenizer_test_util.h"
#include "tokenizer/unicode_classes.h"

namespace deepinfer {
namespace {

std::string repaired(std::string_view bytes) {
    std::string out;
    EXPECT_EQ(append_repaired_utf8(bytes, false, out), bytes.size());
    return out;
}

TEST(Utf8, EveryCodePointIsOneValidPart) {
    std::string bytes;
    for (char32_t c = 0; c < 0x110000; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        bytes.clear();
        append_utf8(c, bytes);
        const Utf8Part part = utf8_first_part(bytes);
        ASSERT_TRUE(part.valid && part.size == bytes.size())
            << std::hex << static_cast<uint32_t>(c);
        size_t size = 0;
        ASSERT_EQ(decode_valid_utf8(bytes.data(), size), c);
        ASSERT_EQ(size, bytes.size());
        for (size_t cut = 1; cut < bytes.size(); ++cut) {
            const Utf8Part prefix = utf8_first_part(std::string_view(bytes).substr(0, cut));
            ASSERT_TRUE(!prefix.valid && prefix.unfinished && prefix.size == cut);
        }
    }
}

// Of all byte sequences of a length, exactly those that some code point encodes to are valid.
TEST(Utf8, NothingElseIsValid) {
    size_t valid = 0;
    for (uint32_t n = 0; n < 0x1000000; ++n) {
        const char bytes[3] = {
            static_cast<char>(n >> 16), static_cast<char>(n >> 8), static_cast<char>(n)};
        const Utf8Part part = utf8_first_part({bytes, 3});
        ASSERT_FALSE(part.valid && part.unfinished);
        valid += part.valid && part.size == 3;
    }
    EXPECT_EQ(valid, 0x10000u - 0x800u - 0x800u);  // U+0800 … U+FFFF without surrogates
    for (const char* wrong :
         {"\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF", "\xF5\x80\x80\x80", "\xED\xA0\x80"}) {
        EXPECT_FALSE(is_valid_utf8(wrong));
    }
    EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));
}

TEST(Utf8, OneReplacementPerMaximalIllFormedPart) {
    const struct {
        const char* bytes;
        const char* want;
    } table[] = {
        {"\xFF", "�"},
        {"\xC0\xAF", "��"},
        {"\xE4\xBD", "�"},
        {"\xF0\x9F\x98", "�"},
        {"A\x80\xFF"
         "B",
         "A��B"},
        {"\xED\xA0\x80", "���"},
        {"\xF4\x90\x80\x80", "����"},
        {"\xC3(", "�("},
        {"\xE2\x82(", "�("},
        {"\xF0\x9F\x98\x80\xF0\x9F\x98", "😀�"},
        {"\xE4\xE4\xBD\xA0", "�你"},
        {"", ""},
    };
    for (const auto& row : table) EXPECT_EQ(repaired(row.bytes), row.want);
}

TEST(Utf8, RepairIsValidAndKeepsValidText) {
    std::mt19937 rng = testing::test_rng();
    for (int i = 0; i < 2000; ++i) {
        std::string bytes = testing::random_text(rng, 40);
        EXPECT_TRUE(is_valid_utf8(bytes));
        EXPECT_EQ(repaired(bytes), bytes);
        for (uint32_t hits = testing::below(rng, 4); hits > 0 && !bytes.empty(); --hits) {
            bytes[testing::below(rng, static_cast<uint32_t>(bytes.size()))] =
                static_cast<char>(rng());
        }
        const std::string whole = repaired(bytes);
        EXPECT_TRUE(is_valid_utf8(whole));
        EXPECT_EQ(repaired(whole), whole);
    }
}

TEST(UnicodeClasses, TableIsTheListedRuns) {
    const auto document =
        nlohmann::json::parse(testing::read_packed("tokenizer/unicode_classes.json"));
    std::vector<CharClass> want(0x110000, CharClass::kNone);
    const std::string names = "-LMNPSW";
    for (const auto& run : document["runs"]) {
        const size_t first = run[0];
        const size_t length = run[1];
        const auto char_class = static_cast<CharClass>(names.find(run[2].get<std::string>()));
        std::fill_n(want.begin() + static_cast<int64_t>(first), length, char_class);
    }
    const CharClass* table = unicode_class_table();
    for (size_t c = 0; c < want.size(); ++c) ASSERT_EQ(table[c], want[c]) << std::hex << c;
}

}  // namespace
}  // namespace deepinfer
