#include "deepinfer/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace deepinfer {
namespace {

constexpr int64_t kVocab = 2048;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
    const char* field;  ///< named in the message; null: accepted
    std::function<void(SamplingParams&)> set;
};

TEST(SamplingParams, EveryFieldIsCheckedByName) {
    const Row rows[] = {
        {nullptr, [](SamplingParams&) {}},
        {nullptr, [](SamplingParams& p) { p.temperature = 0; }},
        {nullptr, [](SamplingParams& p) { p.temperature = 2; }},
        {"temperature", [](SamplingParams& p) { p.temperature = 2.0001; }},
        {"temperature", [](SamplingParams& p) { p.temperature = -1e-9; }},
        {"temperature", [](SamplingParams& p) { p.temperature = NAN; }},
        {"temperature", [](SamplingParams& p) { p.temperature = kInfinity; }},
        {nullptr, [](SamplingParams& p) { p.top_k = -1; }},
        {nullptr, [](SamplingParams& p) { p.top_k = 1000000000000; }},
        {"top_k", [](SamplingParams& p) { p.top_k = -2; }},
        {"top_p", [](SamplingParams& p) { p.top_p = 0; }},
        {"top_p", [](SamplingParams& p) { p.top_p = 1.0001; }},
        {"top_p", [](SamplingParams& p) { p.top_p = NAN; }},
        {nullptr, [](SamplingParams& p) { p.min_p = 1; }},
        {"min_p", [](SamplingParams& p) { p.min_p = -0.1; }},
        {"min_p", [](SamplingParams& p) { p.min_p = 1.1; }},
        {"repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0; }},
        {"repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = kInfinity; }},
        {"frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = 2.1; }},
        {"presence_penalty", [](SamplingParams& p) { p.presence_penalty = -2.1; }},
        {nullptr,
         [](SamplingParams& p) {
             p.logit_bias = {{2047, -100}, {0, 100}};
         }},
        {"logit_bias[2048]",
         [](SamplingParams& p) {
             p.logit_bias = {{2048, 1}};
         }},
        {"logit_bias[-1]",
         [](SamplingParams& p) {
             p.logit_bias = {{-1, 1}};
         }},
        {"logit_bias[5]",
         [](SamplingParams& p) {
             p.logit_bias = {{5, 100.5}};
         }},
        {"logit_bias[5]",
         [](SamplingParams& p) {
             p.logit_bias = {{5, NAN}};
         }},
        {"logit_bias",
         [](SamplingParams& p) {
             p.logit_bias = {{5, 1}, {6, 1}, {5, 2}};
         }},
        {"allowed_token_ids", [](SamplingParams& p) { p.allowed_token_ids.emplace(); }},
        {"allowed_token_ids[1]",
         [](SamplingParams& p) {
             p.allowed_token_ids = {1, 2048};
         }},
        {"bad_words[0]", [](SamplingParams& p) { p.bad_words = {{}}; }},
        {"bad_words[1][0]",
         [](SamplingParams& p) {
             p.bad_words = {{1}, {-1}};
         }},
        {"min_tokens", [](SamplingParams& p) { p.min_tokens = -1; }},
        {"max_tokens", [](SamplingParams& p) { p.max_tokens = 0; }},
        {"min_tokens", [](SamplingParams& p) { p.min_tokens = 3, p.max_tokens = 2; }},
        {nullptr, [](SamplingParams& p) { p.stop.assign(16, std::string(256, 'x')); }},
        {"stop", [](SamplingParams& p) { p.stop.assign(17, "x"); }},
        {"stop[0]", [](SamplingParams& p) { p.stop = {std::string(257, 'x')}; }},
        {"stop[1]",
         [](SamplingParams& p) {
             p.stop = {"x", ""};
         }},
        {"stop_token_ids[0]", [](SamplingParams& p) { p.stop_token_ids = {2048}; }},
        {nullptr, [](SamplingParams& p) { p.n = 16; }},
        {"n", [](SamplingParams& p) { p.n = 17; }},
        {"n", [](SamplingParams& p) { p.n = 0; }},
        {nullptr, [](SamplingParams& p) { p.seq_seed = ~uint64_t{0}; }},
        {nullptr, [](SamplingParams& p) { p.logprobs = 0, p.prompt_logprobs = 20; }},
        {"logprobs", [](SamplingParams& p) { p.logprobs = 21; }},
        {"prompt_logprobs", [](SamplingParams& p) { p.prompt_logprobs = -1; }},
    };
    for (size_t i = 0; i < std::size(rows); ++i) {
        SamplingParams p;
        rows[i].set(p);
        const Status s = p.validate(kVocab);
        if (rows[i].field == nullptr) {
            EXPECT_TRUE(s.ok()) << i << ": " << s.to_string();
        } else {
            EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << i;
            EXPECT_NE(s.message().find(rows[i].field), std::string::npos)
                << i << ": " << s.message();
            EXPECT_NE(s.message().find("expected"), std::string::npos) << i << ": " << s.message();
        }
    }
}

TEST(SamplingParams, MessagesSayValueAndRange) {
    SamplingParams p;
    p.temperature = 2.5;
    EXPECT_EQ(p.validate(kVocab).message(), "temperature is 2.5, expected a number from 0 to 2");
    p = {};
    p.stop_token_ids = {7, 4096};
    EXPECT_EQ(p.validate(kVocab).message(),
              "stop_token_ids[1] is 4096, expected a token id from 0 to 2047");
}

TEST(SamplingParams, AConstraintNeedsItsEndToken) {
    SamplingParams p;
    p.so_args = StructuredOutputArgs::of(StructuredOutputArgs::Type::kRegex, "[a-z]+");
    EXPECT_TRUE(p.validate(kVocab).ok());
    p.ignore_eos = true;
    EXPECT_EQ(p.validate(kVocab).code(), StatusCode::kInvalidArgument);
    EXPECT_NE(p.validate(kVocab).message().find("so_args"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
