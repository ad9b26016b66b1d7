#include "engine/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

namespace deepinfer {
namespace {

TEST(JsonText, StringsReadBack) {
    std::string all;
    for (int i = 0; i < 128; ++i) all += static_cast<char>(i);
    for (const std::string& text : {all, std::string("é 北京 😀"), std::string()}) {
        EXPECT_EQ(nlohmann::json::parse(json_string(text)).get<std::string>(), text);
    }
}

TEST(JsonText, BrokenUtf8BecomesReplacementCharacters) {
    for (const char* text :
         {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xb8"}) {
        const auto parsed = nlohmann::json::parse(json_string(text), nullptr, false);
        ASSERT_TRUE(parsed.is_string()) << text;
        EXPECT_NE(parsed.get<std::string>().find("\xEF\xBF\xBD"), std::string::npos);
    }
}

TEST(JsonText, NumbersKeepTheirBits) {
    for (const double v : {0.1, -1.0 / 3, 1e-300, 5e-324, 123456789.125, -0.0}) {
        EXPECT_EQ(std::strtod(json_number(v).c_str(), nullptr), v);
        EXPECT_EQ(std::strtod(hex_float(v).c_str(), nullptr), v);
    }
    EXPECT_EQ(json_number(std::nan("")), "null");
    EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonText, ObjectsAreOneValidLine) {
    JsonLine j;
    j.text("a\"b", "c\nd")
        .integer("n", -5)
        .number("x", 0.5)
        .boolean("t", true)
        .raw("l", json_ids({1, 2}));
    EXPECT_EQ(j.str().find('\n'), std::string::npos);
    const auto parsed = nlohmann::json::parse(j.str());
    EXPECT_EQ(parsed["a\"b"], "c\nd");
    EXPECT_EQ(parsed["l"], (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace deepinfer
