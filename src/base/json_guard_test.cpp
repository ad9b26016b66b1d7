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

}  // namespace
}  // namespace deepinfer
