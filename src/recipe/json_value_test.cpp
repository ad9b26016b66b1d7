#include "recipe/json_value.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer::recipe {
namespace {

std::string round_trip(const std::string& text, JsonNumbers numbers = JsonNumbers::kPython) {
    const Result<Json> parsed = parse_json(text);
    return parsed.ok() ? dump_python(parsed.value(), numbers)
                       : "refused: " + parsed.status().message();
}

TEST(JsonValue, WritesAsPythonDoes) {
    const char* rows[][2] = {
        {"{\"z\":1,\"a\":[ ],\"b\":{}}", "{\"z\": 1, \"a\": [], \"b\": {}}"},
        {"[true,false,null]", "[true, false, null]"},
        {"\"\\u00e9\\/\\u2028\\u007f\"", "\"é/\xE2\x80\xA8\x7F\""},
        {"\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\\\\\"\"", "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\\\\\"\""},
        {"\"\\ud83d\\ude42\"", "\"🙂\""},
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
        {"100000000000000000000", "100000000000000000000"},
        {"-9223372036854775809", "-9223372036854775809"},
        {"-0", "0"},
        {"1E+2", "100.0"},
        {"123456789.123456789", "123456789.12345679"}};
    for (const auto& row : rows) EXPECT_EQ(round_trip(row[0]), row[1]);
}

TEST(JsonValue, CompatTurnsLargeIntegersIntoFloats) {
    EXPECT_EQ(round_trip("18446744073709551615", JsonNumbers::kCompat), "18446744073709551615");
    EXPECT_EQ(round_trip("18446744073709551616", JsonNumbers::kCompat), "1.8446744073709552e+19");
    EXPECT_EQ(round_trip("-9223372036854775808", JsonNumbers::kCompat), "-9223372036854775808");
    EXPECT_EQ(round_trip("-9223372036854775809", JsonNumbers::kCompat), "-9.223372036854776e+18");
    EXPECT_EQ(round_trip("-0", JsonNumbers::kCompat), "-0.0");
}

TEST(JsonValue, FloatsAreShortest) {
    const std::pair<double, const char*> rows[] = {
        {1.0, "1.0"},
        {-0.0, "-0.0"},
        {0.1, "0.1"},
        {1e-4, "0.0001"},
        {1e-5, "1e-05"},
        {1.5e-7, "1.5e-07"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e5, "100000.0"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {1e100, "1e+100"},
        {123.456, "123.456"}};
    for (const auto& row : rows) EXPECT_EQ(python_float(row.first), row.second);
}

TEST(JsonValue, RefusesWhatIsNoJson) {
    for (const char* text : {"",
                             "{",
                             "[1,]",
                             "{\"a\":1,}",
                             "01",
                             "1.",
                             ".5",
                             "+1",
                             "NaN",
                             "Infinity",
                             "-Infinity",
                             "1e400",
                             "'a'",
                             "\"a\nb\"",
                             "\"\\ud800\"",
                             "\"\\ude00\\ud83d\"",
                             "\"\\x\"",
                             "\"\xff\"",
                             "\"\xC0\x80\"",
                             "[1] 2",
                             "// c\n1",
                             "\xEF\xBB\xBF{}",
                             "nul",
                             "{1:2}",
                             "\"\xED\xA0\x80\""})
        EXPECT_FALSE(parse_json(text).ok()) << text;
}

TEST(JsonValue, LimitsHoldAtTheirEdge) {
    JsonLimits limits;
    limits.depth = 10;
    EXPECT_TRUE(parse_json(std::string(10, '[') + std::string(10, ']'), limits).ok());
    EXPECT_FALSE(parse_json(std::string(11, '[') + std::string(11, ']'), limits).ok());
    EXPECT_FALSE(parse_json(std::string(1'000'000, '['), limits).ok());
    limits.num_values = 4;
    EXPECT_TRUE(parse_json("[1,2,3]", limits).ok());
    EXPECT_FALSE(parse_json("[1,2,3,4]", limits).ok());
    limits = {};
    limits.keys = 2;
    EXPECT_TRUE(parse_json(R"({"a":1,"b":{"a":1,"b":2}})", limits).ok());
    EXPECT_FALSE(parse_json(R"({"a":1,"b":{"a":1,"b":2,"c":3}})", limits).ok());
    EXPECT_FALSE(parse_json(R"({"a":1,"a":2,"a":3})", limits).ok());
    limits = {};
    limits.string_bytes = 4;
    EXPECT_TRUE(parse_json(R"({"abcd":"efgh"})", limits).ok());
    EXPECT_FALSE(parse_json(R"({"abcde":"efgh"})", limits).ok());
    EXPECT_FALSE(parse_json(R"({"abcd":"efghi"})", limits).ok());
    // The bound of one object ends the reading: what follows is not looked at.
    limits = {};
    limits.keys = 1;
    EXPECT_NE(parse_json(R"({"a":1,"b":2,,,)", limits).status().message().find("1 keys"),
              std::string::npos);
}

TEST(JsonValue, DuplicateKeysAreSeenInSmallAndLargeObjects) {
    EXPECT_FALSE(parse_json("{\"a\":1,\"b\":{\"a\":2}}").value().has_duplicate_keys());
    EXPECT_TRUE(parse_json("[{\"b\":{\"a\":2,\"a\":3}}]").value().has_duplicate_keys());
    std::string text = "{";
    for (int i = 0; i < 50'000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
    Result<Json> large = parse_json(text + "\"k49999\":1,\"k3\":2}");
    ASSERT_TRUE(large.ok());
    EXPECT_TRUE(large.value().has_duplicate_keys());
    EXPECT_EQ(large.value().members().size(), 50'000u);
    EXPECT_EQ(large.value().find("k3")->as_int64(), 2);
}

}  // namespace
}  // namespace deepinfer::recipe
