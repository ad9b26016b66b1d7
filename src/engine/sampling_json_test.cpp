#include <gtest/gtest.h>

#include "deepinfer/batch.h"

namespace deepinfer {
namespace {

TEST(SamplingJson, EveryMemberIsRead) {
    const auto p = sampling_params_from_json(R"({
        "temperature":0.5,"top_k":7,"top_p":0.25,"min_p":0.125,"repetition_penalty":1.5,
        "frequency_penalty":0.75,"presence_penalty":-0.5,"logit_bias":{"5":1.5,"12":-3},
        "allowed_token_ids":[1,2],"bad_words":[[3],[4,5]],"min_tokens":2,"max_tokens":9,
        "stop":["a","b"],"stop_token_ids":[6],"ignore_eos":true,"include_stop_str":true,"n":3,
        "seq_seed":18446744073709551615,"logprobs":1,"prompt_logprobs":0,"logprob_mode":"processed",
        "so_args":{"regex":"a+"},"priority":-2})");
    ASSERT_TRUE(p.ok()) << p.status().message();
    SamplingParams want;
    want.temperature = 0.5;
    want.top_k = 7;
    want.top_p = 0.25;
    want.min_p = 0.125;
    want.repetition_penalty = 1.5;
    want.frequency_penalty = 0.75;
    want.presence_penalty = -0.5;
    want.logit_bias = {{12, -3.0}, {5, 1.5}};
    want.allowed_token_ids = {1, 2};
    want.bad_words = {{3}, {4, 5}};
    want.min_tokens = 2;
    want.max_tokens = 9;
    want.stop = {"a", "b"};
    want.stop_token_ids = {6};
    want.ignore_eos = want.include_stop_str = true;
    want.n = 3;
    want.seq_seed = 18446744073709551615ull;
    want.logprobs = 1;
    want.prompt_logprobs = 0;
    want.logprob_mode = LogprobMode::kProcessed;
    want.so_args = StructuredOutputArgs::of(StructuredOutputArgs::Type::kRegex, "a+");
    want.priority = -2;
    EXPECT_TRUE(p.value() == want);
}

TEST(SamplingJson, NullAndAbsentAreDefaults) {
    EXPECT_TRUE(sampling_params_from_json("{}").value() == SamplingParams());
    EXPECT_TRUE(sampling_params_from_json(R"({"temperature":null,"n":null})").value() ==
                SamplingParams());
    EXPECT_EQ(sampling_params_from_json(R"({"stop":"x"})")->stop, std::vector<std::string>{"x"});
}

TEST(SamplingJson, WrongMembersAreNamed) {
    for (const auto& [json, name] : std::vector<std::pair<std::string, std::string>>{
             {R"({"temperature":"1"})", "temperature"},
             {R"({"top_k":1.5})", "top_k"},
             {R"({"n":99999999999})", "n is"},
             {R"({"n":true})", "n is"},
             {R"({"seq_seed":-1})", "seq_seed"},
             {R"({"seq_seed":1.5})", "seq_seed"},
             {R"({"logit_bias":{"x":1}})", "logit_bias"},
             {R"({"logit_bias":{" 5":1}})", "logit_bias"},
             {R"({"logit_bias":{"-1":1}})", "logit_bias"},
             {R"({"logit_bias":{"5":"a"}})", "logit_bias"},
             {R"({"stop":[1]})", "stop"},
             {R"({"bad_words":[1]})", "bad_words"},
             {R"({"so_args":{"xml":"a"}})", "so_args"},
             {R"({"logprob_mode":"cooked"})", "logprob_mode"},
             {R"({"temprature":1})", "temprature"},
             {R"({"ignore_eos":1})", "ignore_eos"},
             {R"({"temperature":NaN})", "JSON"},
             {R"([1])", "JSON"}}) {
        const auto p = sampling_params_from_json(json);
        ASSERT_FALSE(p.ok()) << json;
        EXPECT_EQ(p.status().code(), StatusCode::kInvalidArgument);
        EXPECT_NE(p.status().message().find(name), std::string::npos) << p.status().message();
    }
}

}  // namespace
}  // namespace deepinfer
