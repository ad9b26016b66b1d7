#include "deepinfer/status.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/check.h"

namespace deepinfer {
namespace {

TEST(Status, OkByDefault) {
    const Status s;
    EXPECT_TRUE(s.ok());
    EXPECT_EQ(s.to_string(), "ok");
}

TEST(Status, NamesItsCode) {
    const Status s(StatusCode::kInvalidFile, "too short");
    EXPECT_FALSE(s.ok());
    EXPECT_EQ(s.to_string(), "invalid_file: too short");
    for (StatusCode c : {StatusCode::kInvalidArgument,
                         StatusCode::kNotFound,
                         StatusCode::kUnimplemented,
                         StatusCode::kOutOfRange,
                         StatusCode::kResourceExhausted,
                         StatusCode::kQueueFull,
                         StatusCode::kCancelled,
                         StatusCode::kUnavailable,
                         StatusCode::kInternal}) {
        EXPECT_STRNE(status_code_name(c), "unknown");
        EXPECT_STRNE(status_code_name(c), "ok");
    }
}

Status pass_on(const Status& s, bool& went_on) {
    DI_RETURN_IF_ERROR(s);
    went_on = true;
    return {};
}

TEST(Status, ReturnIfErrorStopsAtTheFirstError) {
    bool went_on = false;
    EXPECT_EQ(pass_on(Status(StatusCode::kCancelled, "x"), went_on).code(), StatusCode::kCancelled);
    EXPECT_FALSE(went_on);
    EXPECT_TRUE(pass_on({}, went_on).ok());
    EXPECT_TRUE(went_on);
}

TEST(Result, HoldsAValueOrAStatus) {
    Result<std::unique_ptr<int>> r(std::make_unique<int>(7));
    ASSERT_TRUE(r.ok());
    const std::unique_ptr<int> p = std::move(r).value();
    EXPECT_EQ(*p, 7);
    const Result<int> failed(Status(StatusCode::kOutOfRange, "9 of 8"));
    EXPECT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().message(), "9 of 8");
}

TEST(CheckDeathTest, PrintsConditionAndBothValues) {
    const int a = 3, b = 4;
    EXPECT_DEATH(DI_CHECK_EQ(a, b), "a == b.*3 against 4");
    EXPECT_DEATH(DI_CHECK(a > b), "a > b");
    EXPECT_DEATH(DI_CHECK_MSG(false, "slot 9"), "slot 9");
    DI_CHECK_LE(a, b);
    DI_CHECK_LT(a, b);
    DI_CHECK_GE(b, a);
}

}  // namespace
}  // namespace deepinfer
