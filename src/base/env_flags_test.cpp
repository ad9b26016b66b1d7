#include "base/env_flags.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace deepinfer {
namespace {

/// Sets a variable for the length of a test.
class ScopedEnv {
  public:
    ScopedEnv(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~ScopedEnv() { ::unsetenv(name_); }

  private:
    const char* name_;
};

TEST(EnvFlags, UnknownNamesAreReported) {
    const ScopedEnv typo("DEEPINFER_BATCH_INVARIENT", "1");
    const ScopedEnv known("DEEPINFER_BATCH_INVARIANT", "1");
    const ScopedEnv other("NOT_DEEPINFER_X", "1");
    EXPECT_EQ(unknown_env_flags(), std::vector<std::string>{"DEEPINFER_BATCH_INVARIENT"});
}

TEST(EnvFlags, EmptyIsUnset) {
    const ScopedEnv threads("DEEPINFER_THREADS", "");
    EXPECT_FALSE(env_text("DEEPINFER_THREADS").has_value());
    const auto value = env_int("DEEPINFER_THREADS", 1, 8);
    ASSERT_TRUE(value.ok());
    EXPECT_FALSE(value.value().has_value());
}

TEST(EnvFlags, NumbersAreWholeAndInRange) {
    for (const char* text :
         {"x", "1x", " 1", "1.5", "0", "9", "99999999999999999999", "-1", "+2"}) {
        const ScopedEnv threads("DEEPINFER_THREADS", text);
        const auto value = env_int("DEEPINFER_THREADS", 1, 8);
        ASSERT_FALSE(value.ok()) << text;
        EXPECT_NE(value.status().message().find("DEEPINFER_THREADS"), std::string::npos);
        EXPECT_NE(value.status().message().find(text), std::string::npos);
    }
    const ScopedEnv threads("DEEPINFER_THREADS", "8");
    EXPECT_EQ(env_int("DEEPINFER_THREADS", 1, 8).value(), 8);
}

TEST(EnvFlags, BooleansAreZeroOrOne) {
    for (const char* text : {"true", "yes", "2", "on"}) {
        const ScopedEnv flag("DEEPINFER_ENABLE_MTP_VARLEN", text);
        EXPECT_FALSE(env_bool("DEEPINFER_ENABLE_MTP_VARLEN").ok()) << text;
    }
    const ScopedEnv flag("DEEPINFER_ENABLE_MTP_VARLEN", "1");
    EXPECT_EQ(env_bool("DEEPINFER_ENABLE_MTP_VARLEN").value(), true);
}

TEST(EnvFlags, EveryRowIsComplete) {
    for (const EnvFlag& f : env_flags()) {
        EXPECT_EQ(std::string(f.name).rfind("DEEPINFER_", 0), 0u);
        EXPECT_FALSE(std::string(f.help).empty()) << f.name;
        EXPECT_EQ(f.help[std::string(f.help).size() - 1], '.') << f.name;
    }
}

}  // namespace
}  // namespace deepinfer
