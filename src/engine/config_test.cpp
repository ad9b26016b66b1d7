#include "deepinfer/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

namespace deepinfer {
namespace {

class ScopedEnv {
  public:
    /// A null value leaves the variable unset.
    ScopedEnv(const char* name, const char* value) : name_(name) {
        if (value != nullptr) ::setenv(name, value, 1);
    }
    ~ScopedEnv() { ::unsetenv(name_); }

  private:
    const char* name_;
};

TEST(EngineConfig, DefaultsAreValid) {
    EXPECT_TRUE(EngineConfig().validate().ok());
    ASSERT_TRUE(EngineConfig::from_environment().ok());
    EXPECT_EQ(EngineConfig::from_environment()->backend, "cpu");
    EXPECT_TRUE(EngineConfig::from_environment()->batch_invariant);
}

TEST(EngineConfig, EnvironmentIsRead) {
    const ScopedEnv a("DEEPINFER_ACCELERATOR", "nvidia");
    const ScopedEnv b("DEEPINFER_HF_MODEL_DIR", "some/where");
    const ScopedEnv c("DEEPINFER_THREADS", "3");
    const ScopedEnv d("DEEPINFER_BATCH_INVARIANT", "0");
    const ScopedEnv e("DEEPINFER_ISA", "avx2");
    const Result<EngineConfig> config = EngineConfig::from_environment();
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->backend, "cuda");
    EXPECT_EQ(config->model_dir, "some/where");
    EXPECT_EQ(config->threads, 3);
    EXPECT_FALSE(config->batch_invariant);
    EXPECT_EQ(config->isa, "avx2");
}

TEST(EngineConfig, WrongVariablesAreNamed) {
    const ScopedEnv a("DEEPINFER_ACCELERATOR", "gpu");
    const Result<EngineConfig> config = EngineConfig::from_environment();
    ASSERT_FALSE(config.ok());
    EXPECT_NE(config.status().message().find("DEEPINFER_ACCELERATOR"), std::string::npos);
}

TEST(EngineConfig, LaterSwitchesAreRefusedByName) {
    struct Row {
        const char* name;
        const char* value;
        const char* said;
    };
    for (const Row& row : {Row{"DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "32", "extra experts"}}) {
        const ScopedEnv env(row.name, row.value);
        const Result<EngineConfig> config = EngineConfig::from_environment();
        ASSERT_TRUE(config.ok()) << row.name;
        const Status status = config->validate();
        EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << row.name;
        EXPECT_NE(status.message().find(row.said), std::string::npos) << status.message();
        EXPECT_NE(status.message().find(row.value), std::string::npos) << status.message();
    }
    const ScopedEnv blocking("DEEPINFER_LAUNCH_BLOCKING", "1");
    EXPECT_EQ(EngineConfig::from_environment().status().code(), StatusCode::kUnimplemented);
}

TEST(EngineConfig, SpeculationSwitches) {
    const auto said = [](auto change) {
        EngineConfig c;
        change(c);
        const Status s = c.validate();
        return s.ok() ? std::string("ok") : s.message();
    };
    for (const char* rule : {"rejection", "argmax", "block"}) {
        EXPECT_EQ(said([&](EngineConfig& c) {
                      c.spec_sampling = rule;
                      c.batch_invariant = false;
                  }),
                  "ok");
        const std::string refused = said([&](EngineConfig& c) { c.spec_sampling = rule; });
        EXPECT_NE(refused.find(rule), std::string::npos) << refused;
        EXPECT_NE(refused.find("DEEPINFER_BATCH_INVARIANT"), std::string::npos) << refused;
    }
    EXPECT_EQ(said([](EngineConfig& c) { c.varlen = true; }), "ok");
    for (const char* budget : {"model", "full", "threshold:0.25", "threshold:1"}) {
        EXPECT_EQ(said([&](EngineConfig& c) { c.spec_budget = budget; }), "ok");
    }
    for (const char* budget : {"",
                               "some",
                               "threshold",
                               "threshold:",
                               "threshold:0",
                               "threshold:2",
                               "threshold:nan",
                               "threshold:0.5x"}) {
        EXPECT_NE(said([&](EngineConfig& c) { c.spec_budget = budget; }).find("spec_budget"),
                  std::string::npos)
            << budget;
    }
    for (const double forced : {-2.0, -0.5, 65.0, std::nan("")}) {
        EXPECT_NE(said([&](EngineConfig& c) {
                      c.spec_forced_acceptance = forced;
                  }).find("spec_forced_acceptance"),
                  std::string::npos);
    }
    const ScopedEnv nextn("DEEPINFER_USE_NEXTN_DECODE", "5");
    const ScopedEnv varlen("DEEPINFER_ENABLE_MTP_VARLEN", "1");
    const ScopedEnv rule("DEEPINFER_SPEC_SAMPLING", "block");
    const Result<EngineConfig> c = EngineConfig::from_environment();
    ASSERT_TRUE(c.ok());
    EXPECT_EQ(c->nextn, 5);
    EXPECT_TRUE(c->varlen);
    EXPECT_EQ(c->spec_sampling, "block");
}

/// Every switch of speculation and truncation: its variable sets the field of the same meaning, and
/// a wrong value is refused with the variable's name, at once or when the configuration is checked.
TEST(EngineConfig, SpeculationAndTruncationComeFromTheEnvironment) {
    struct Row {
        const char *name, *value;
        bool (*set)(const EngineConfig&);
        const char* wrong;
    };
    const Row rows[] = {
        {"DEEPINFER_USE_NEXTN_DECODE",
         "3",
         [](const EngineConfig& c) { return c.nextn == 3; },
         "three"},
        {"DEEPINFER_USE_NEXTN_DECODE",
         "0",
         [](const EngineConfig& c) { return c.nextn == 0; },
         "3.5"},
        {"DEEPINFER_ENABLE_MTP_VARLEN", "1", [](const EngineConfig& c) { return c.varlen; }, "2"},
        {"DEEPINFER_ENABLE_MTP_VARLEN",
         "0",
         [](const EngineConfig& c) { return !c.varlen; },
         "some"},
        {"DEEPINFER_SPEC_SAMPLING",
         "coupled",
         [](const EngineConfig& c) { return c.spec_sampling == "coupled"; },
         "copled"},
        {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
         "compact",
         [](const EngineConfig& c) { return c.truncation == "compact"; },
         "on"},
        {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
         "exact",
         [](const EngineConfig& c) { return c.truncation == "exact"; },
         "Exact"},
        {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
         "off",
         [](const EngineConfig& c) { return c.truncation == "off"; },
         "0"},
        {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS",
         "152",
         [](const EngineConfig& c) { return c.keep_tokens == 152; },
         "0"},
        {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS",
         "140",
         [](const EngineConfig& c) { return c.keep_tokens == 140; },
         "140 rows"},
    };
    for (const Row& row : rows) {
        SCOPED_TRACE(std::string(row.name) + " " + row.value + ", " + row.wrong);
        EXPECT_FALSE(row.set(EngineConfig()) && std::string(row.value) != "0");
        {
            const ScopedEnv env(row.name, row.value);
            const Result<EngineConfig> c = EngineConfig::from_environment();
            ASSERT_TRUE(c.ok()) << c.status().message();
            EXPECT_TRUE(row.set(c.value()));
        }
        const ScopedEnv env(row.name, row.wrong);
        const Result<EngineConfig> c = EngineConfig::from_environment();
        const Status status = c.ok() ? c->validate() : c.status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_NE(status.message().find(row.name), std::string::npos) << status.message();
    }
}

TEST(EngineConfig, NeutralValuesAreAccepted) {
    const ScopedEnv a("DEEPINFER_USE_NEXTN_DECODE", "0");
    const ScopedEnv b("DEEPINFER_ENABLE_MTP_VARLEN", "0");
    const ScopedEnv c("DEEPINFER_SPEC_SAMPLING", "coupled");
    const ScopedEnv d("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "off");
    const ScopedEnv e("DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "0");
    const ScopedEnv f("DEEPINFER_LAUNCH_BLOCKING", "0");
    EXPECT_TRUE(EngineConfig::from_environment()->validate().ok());
}

TEST(EngineConfig, TruncationAndReplaySwitches) {
    const auto status = [](const char* mode, const char* keep, const char* replay, const char* bi) {
        const ScopedEnv a("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", mode);
        const ScopedEnv b("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", keep);
        const ScopedEnv c("DEEPINFER_REPLAY", replay);
        const ScopedEnv d("DEEPINFER_BATCH_INVARIANT", bi);
        const Result<EngineConfig> config = EngineConfig::from_environment();
        return config.ok() ? config->validate() : config.status();
    };
    EXPECT_TRUE(status("compact", "140", nullptr, "1").ok());
    EXPECT_TRUE(status("exact", nullptr, "exact", "1").ok());
    EXPECT_TRUE(status(nullptr, "140", nullptr, "0").ok());  // for the bounded replay
    for (const auto& [bad, said] :
         {std::pair{status("some", nullptr, nullptr, "1"), "off, compact or exact"},
          {status("compact", "-3", nullptr, "1"), "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS"},
          {status("off", "140", nullptr, "1"), "truncation is 'off'"},
          {status(nullptr, "140", nullptr, "1"), "truncation is 'exact'"},
          {status("off", nullptr, "some", "1"), "stored, exact or bounded"},
          {status("off", nullptr, "bounded", "1"), "batch_invariant"}}) {
        EXPECT_EQ(bad.code(), StatusCode::kInvalidArgument) << said;
        EXPECT_NE(bad.message().find(said), std::string::npos) << bad.message();
    }
}

TEST(EngineConfig, RangesAndLayouts) {
    const auto with = [](auto change) {
        EngineConfig c;
        change(c);
        return c.validate().code();
    };
    EXPECT_EQ(with([](EngineConfig& c) { c.max_num_seqs = 0; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.max_num_batched_tokens = 0; }),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.kv_cache_bytes = -1; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.age_s = 0; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.truncation = "some"; }), StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.spec_sampling = "some"; }),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(with([](EngineConfig& c) { c.ep = 2; }), StatusCode::kUnimplemented);
    EXPECT_EQ(with([](EngineConfig& c) { c.dp = 2; }), StatusCode::kUnimplemented);
    EXPECT_EQ(with([](EngineConfig& c) { c.cp = 2; }), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace deepinfer
