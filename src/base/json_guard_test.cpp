#include "deepinfer/json_guard.h"

#include <gtest/gtest.h>

#include <string>

namespace deepinfer {
namespace {

TEST(JsonGuard, CountsNestingOutsideStrings) {
    EXPECT_FALSE(json_nests_deeper("", 0));
    EXPECT_FALSE(json_nests_deeper("[[]]", 2));
    EXPECT_TRUE(json_nests_deeper("[[]]", 1));
    EXPECT_TRUE(json_nests_deeper("{\"a\":[{}]}", 2));
    EXPECT_FALSE(json_nests_deeper("[[],[],[]]", 2));
    EXPECT_FALSE(json_nests_deeper("\"[[[[\"", 0));
    EXPECT_FALSE(json_nests_deeper("\"\\\"[[[[\"", 0));
    EXPECT_TRUE(json_nests_deeper("\"\\\\\"[", 0));
}

TEST(JsonGuard, HoldsAtTheLimitAndOneBeyond) {
    const std::string at = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
    EXPECT_FALSE(json_nests_deeper(at));
    EXPECT_TRUE(json_nests_deeper("[" + at + "]"));
    EXPECT_TRUE(json_nests_deeper(std::string(200'000, '[')));
}

TEST(JsonGuard, FindsANameThatAnObjectHasTwice) {
    for (const char* fine : {R"({"a":1,"b":{"a":2},"c":[{"a":1},{"a":1}]})",
                             R"({"a":"a","b":"\"a\":"})",
                             R"([["a","a"]])",
                             "",
                             "}]{",
                             R"({"a)",
                             R"({"\u00e)"}) {
        EXPECT_EQ(repeated_json_key(fine), std::nullopt) << fine;
    }
    EXPECT_EQ(repeated_json_key(R"({"a":1,"b":2,"a":3})"), "a");
    EXPECT_EQ(repeated_json_key(R"({"x":{"b":[],"b":1}})"), "b");
    EXPECT_EQ(repeated_json_key(R"([{"a":1},{"k":{"q":1},"k":2}])"), "k");
    EXPECT_EQ(repeated_json_key(R"({"A":1,"\u0041":2})"), "A");
    EXPECT_EQ(repeated_json_key(R"({"\ud83d\ude00":1,"😀":2})"), "😀");
}

}  // namespace
}  // namespace deepinfer
