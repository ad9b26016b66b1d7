// The public engine on small checkpoints: submission, streaming, stopping, aborting, many threads.
#include "deepinfer/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/case_file.h"
#include "support/demo_engine.h"
#include "support/golden_file.h"
#include "support/scratch_dir.h"

namespace deepinfer {
namespace {

const auto demo_config = testing::demo_engine_config;

/// One engine for all tests that only ask it things.
Engine& shared_engine() {
    static const std::unique_ptr<Engine> engine = [] {
        auto e = Engine::create(demo_config());
        if (!e.ok()) {
            std::fprintf(stderr, "%s\n", e.status().to_string().c_str());
            std::abort();
        }
        return std::move(e).value();
    }();
    return *engine;
}

Request ask(const std::string& question, int64_t max_tokens = 24) {
    Request r;
    r.prompt_token_ids = shared_engine().tokenizer().encode("<｜begin▁of▁sentence｜><｜User｜>" +
                                                            question + "<｜Assistant｜></think>");
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    return r;
}

const char* const kFrance = "What is the capital of France?";

TEST(Engine, AnswersAndStreams) {
    std::string streamed;
    int64_t last_done = 0;
    int lasts = 0;
    RequestCallbacks callbacks;
    callbacks.on_output = [&](const Output& o) {
        streamed += o.text;
        lasts += o.last ? 1 : 0;
        return true;
    };
    callbacks.on_prefill = [&](const PrefillProgress& p) {
        EXPECT_GE(p.rows_done, last_done);
        last_done = p.rows_done;
        EXPECT_EQ(p.rows_total, 13);
    };
    const Result<Completion> done = shared_engine().generate(ask(kFrance), callbacks);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->choices[0].text, "The capital of France is Paris.");
    EXPECT_EQ(streamed, done->choices[0].text);
    EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(done->choices[0].token_ids.back(), shared_engine().model_info().eos_token_id);
    EXPECT_EQ(done->usage.prompt_tokens, 13);
    EXPECT_EQ(done->usage.completion_tokens,
              static_cast<int64_t>(done->choices[0].token_ids.size()));
    EXPECT_EQ(last_done, 13);
    EXPECT_EQ(lasts, 1);
    EXPECT_LE(done->timing.queue_ms, done->timing.first_token_ms);
    EXPECT_LE(done->timing.first_token_ms, done->timing.total_ms);
}

TEST(Engine, LengthStopIsExact) {
    for (const int64_t n : {1, 2, 5}) {
        const Result<Completion> done = shared_engine().generate(ask(kFrance, n));
        ASSERT_TRUE(done.ok());
        EXPECT_EQ(done->choices[0].token_ids.size(), static_cast<size_t>(n));
        EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kLength);
    }
}

TEST(Engine, StopStringEndsTextAndUsage) {
    Request r = ask(kFrance);
    r.sampling.stop = {"of Fr"};
    const Result<Completion> done = shared_engine().generate(r);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->choices[0].text, "The capital ");
    EXPECT_EQ(done->choices[0].stop_text, "of Fr");
    EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(done->usage.completion_tokens,
              static_cast<int64_t>(done->choices[0].token_ids.size()));
}

TEST(Engine, AStopIdEndsWithoutItsText) {
    Request r = ask(kFrance);
    const Result<Completion> whole = shared_engine().generate(r);
    r.sampling.stop_token_ids = {whole->choices[0].token_ids[3]};
    const Result<Completion> done = shared_engine().generate(r);
    EXPECT_EQ(done->choices[0].token_ids.size(), 4u);
    EXPECT_EQ(whole->choices[0].text.rfind(done->choices[0].text, 0), 0u);
    EXPECT_LT(done->choices[0].text.size(), whole->choices[0].text.size());
}

TEST(Engine, IgnoreEosGoesOn) {
    Request r = ask(kFrance, 20);
    r.sampling.ignore_eos = true;
    EXPECT_EQ(shared_engine().generate(r)->choices[0].token_ids.size(), 20u);
}

TEST(Engine, ConsumerStopsAtExactlyItsToken) {
    std::vector<int32_t> seen;
    int after = 0;
    RequestCallbacks callbacks;
    callbacks.on_output = [&](const Output& o) {
        if (o.finished()) {
            ++after;
            EXPECT_TRUE(o.token_ids.empty());
            EXPECT_EQ(o.finish_reason, FinishReason::kStop);
        }
        seen.insert(seen.end(), o.token_ids.begin(), o.token_ids.end());
        return seen.size() < 3;
    };
    const Result<Completion> done = shared_engine().generate(ask(kFrance), callbacks);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(seen.size(), 3u);
    EXPECT_EQ(after, 1);
    EXPECT_EQ(done->usage.completion_tokens, 3);
}

TEST(Engine, LogprobsOfOutputAndPrompt) {
    Request r = ask(kFrance, 4);
    r.sampling.logprobs = 2;
    r.sampling.prompt_logprobs = 1;
    const Result<Completion> done = shared_engine().generate(r);
    ASSERT_TRUE(done.ok());
    const CompletionChoice& c = done->choices[0];
    ASSERT_EQ(c.logprobs.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(c.logprobs[i].token_id, c.token_ids[i]);
        ASSERT_EQ(c.logprobs[i].top.size(), 2u);
        EXPECT_EQ(c.logprobs[i].top[0].first, c.token_ids[i]);  // greedy
        EXPECT_LE(c.logprobs[i].logprob, 0);
        EXPECT_GE(c.logprobs[i].top[0].second, c.logprobs[i].top[1].second);
    }
    ASSERT_EQ(c.prompt_logprobs.size(), r.prompt_token_ids.size());
    EXPECT_EQ(c.prompt_logprobs[0].token_id, -1);
    for (size_t i = 1; i < c.prompt_logprobs.size(); ++i) {
        EXPECT_EQ(c.prompt_logprobs[i].token_id, r.prompt_token_ids[i]);
        EXPECT_LE(c.prompt_logprobs[i].logprob, 0);
    }
    // The log-probabilities of a prompt are those of the same tokens as output.
    Request longer = r;
    longer.prompt_token_ids.insert(
        longer.prompt_token_ids.end(), c.token_ids.begin(), c.token_ids.end());
    const Result<Completion> again = shared_engine().generate(longer);
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(again->choices[0].prompt_logprobs[r.prompt_token_ids.size() + i].logprob,
                  c.logprobs[i].logprob);
    }
}

TEST(Engine, EmptyMaskEndsWithThatReason) {
    Request r = ask(kFrance, 8);
    r.sampling.allowed_token_ids = {shared_engine().model_info().eos_token_id};
    r.sampling.min_tokens = 4;  // bans the only id allowed
    const Result<Completion> done = shared_engine().generate(r);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kEmptyMask);
    EXPECT_EQ(done->usage.completion_tokens, 0);
    EXPECT_EQ(shared_engine().generate(ask(kFrance))->choices[0].text,
              "The capital of France is Paris.");
}

TEST(Engine, UnsetSeedIsDrawnReportedAndRepeats) {
    Request r = ask("Tell me something.", 16);
    r.sampling.temperature = 1.0;
    const Result<Completion> first = shared_engine().generate(r);
    const Result<Completion> other = shared_engine().generate(r);
    EXPECT_NE(first->choices[0].seq_seed, other->choices[0].seq_seed);
    r.sampling.seq_seed = first->choices[0].seq_seed;
    EXPECT_EQ(shared_engine().generate(r)->choices[0].token_ids, first->choices[0].token_ids);
}

TEST(Engine, SubSequencesShareThePromptAndDiffer) {
    Request r = ask("Tell me something.", 12);
    r.sampling.temperature = 1.5;
    r.sampling.n = 4;
    r.sampling.seq_seed = 9;
    r.sampling.ignore_eos = true;
    const Result<Completion> done = shared_engine().generate(r);
    ASSERT_EQ(done->choices.size(), 4u);
    EXPECT_NE(done->choices[0].token_ids, done->choices[1].token_ids);
    EXPECT_EQ(done->usage.completion_tokens, 48);
    EXPECT_EQ(done->usage.prompt_tokens, static_cast<int64_t>(r.prompt_token_ids.size()));
    // Sub-sequence 0 is what a request with n = 1 gets.
    r.sampling.n = 1;
    EXPECT_EQ(shared_engine().generate(r)->choices[0].token_ids, done->choices[0].token_ids);
}

TEST(Engine, RefusalsAtSubmissionNameWhatIsWrong) {
    struct Row {
        std::function<void(Request&)> change;
        StatusCode code;
        const char* said;
    };
    const std::vector<Row> rows = {
        {[](Request& r) { r.prompt_token_ids.clear(); },
         StatusCode::kInvalidArgument,
         "prompt_token_ids"},
        {[](Request& r) { r.prompt_token_ids[2] = -1; },
         StatusCode::kInvalidArgument,
         "prompt_token_ids[2]"},
        {[](Request& r) { r.prompt_token_ids[1] = 4096; }, StatusCode::kInvalidArgument, "4095"},
        {[](Request& r) { r.cache_salt.assign(257, 'x'); },
         StatusCode::kInvalidArgument,
         "cache_salt"},
        {[](Request& r) { r.sampling.temperature = 3; },
         StatusCode::kInvalidArgument,
         "temperature"},
        {[](Request& r) { r.sampling.n = 0; }, StatusCode::kInvalidArgument, "n"},
        {[](Request& r) {
             r.sampling.so_args = StructuredOutputArgs::of(StructuredOutputArgs::Type::kRegex, "(");
         },
         StatusCode::kInvalidArgument,
         "so_args"},
        {[](Request& r) { r.sampling.max_tokens = 500; }, StatusCode::kOutOfRange, "512"},
        {[](Request& r) { r.sampling.max_tokens = 500; }, StatusCode::kOutOfRange, "13 tokens"},
        {[](Request& r) { r.prompt_token_ids.assign(600, 5); }, StatusCode::kOutOfRange, "600"},
        {[](Request& r) {
             r.sampling.prompt_logprobs = 1;
             r.sampling.logprob_mode = LogprobMode::kProcessed;
         },
         StatusCode::kUnimplemented,
         "prompt_logprobs"},
    };
    for (const Row& row : rows) {
        Request r = ask(kFrance);
        row.change(r);
        const Result<uint64_t> number = shared_engine().submit(r, {});
        ASSERT_FALSE(number.ok()) << row.said;
        EXPECT_EQ(number.status().code(), row.code) << number.status().message();
        EXPECT_NE(number.status().message().find(row.said), std::string::npos)
            << number.status().message();
    }
    EXPECT_EQ(shared_engine().generate(ask(kFrance))->choices[0].text,
              "The capital of France is Paris.");
}

TEST(Engine, FieldCaseIdsOutsideTheVocabulary) {
    // The rows' limits are those of another checkpoint's vocabulary: 2048 there, 4096 here.
    for (const auto& row : testing::case_rows("sampling.json", "C-051")) {
        const auto& body = row["in"].contains("body") ? row["in"]["body"] : nlohmann::json();
        if (!body.contains("logit_bias") || !body["logit_bias"].is_object()) continue;
        Request r = ask(kFrance, 1);
        bool readable = true;
        for (const auto& [key, value] : body["logit_bias"].items()) {
            if (!value.is_number() || key.find_first_not_of("0123456789") != std::string::npos) {
                readable = false;
                continue;
            }
            int64_t id = std::stoll(key);
            if (id >= 2047) id += 2048;
            r.sampling.logit_bias.emplace_back(static_cast<int32_t>(id), value.get<double>());
        }
        if (!readable || body["logit_bias"].contains("recipe")) continue;
        EXPECT_EQ(shared_engine().submit(r, {}).ok(), row["want"] == 200) << row.dump();
    }
    shared_engine().wait_idle();
}

TEST(Engine, AbortReportsWhatWasMadeAndFreesEverything) {
    Request r = ask("Count.", 400);
    r.sampling.ignore_eos = true;
    std::atomic<bool> cancel{false};
    std::atomic<int> tokens{0};
    RequestCallbacks callbacks;
    callbacks.on_output = [&](const Output& o) {
        tokens += static_cast<int>(o.token_ids.size());
        if (tokens >= 5) cancel = true;
        return true;
    };
    const Result<Completion> done = shared_engine().generate(r, callbacks, &cancel);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kAbort);
    EXPECT_GE(done->choices[0].token_ids.size(), 5u);
    EXPECT_LT(done->choices[0].token_ids.size(), 400u);
    shared_engine().abort(987654321);  // unknown: ignored
    shared_engine().wait_idle();
    const EngineStats s = shared_engine().stats();
    EXPECT_EQ(s.free_blocks, s.total_blocks);
    EXPECT_EQ(s.running, 0);
    EXPECT_EQ(s.waiting, 0);
}

TEST(Engine, ManyThreadsSubmitAndAbort) {
    const std::string want = shared_engine().generate(ask(kFrance))->choices[0].text;
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 4; ++i) {
                if (i % 2 == 0) {
                    const Result<Completion> done = shared_engine().generate(ask(kFrance));
                    if (done.ok() && done->choices[0].text == want) ++right;
                } else {
                    Request r = ask("Noise " + std::to_string(t), 200);
                    r.sampling.ignore_eos = true;
                    r.sampling.n = 1 + t % 3;
                    const Result<uint64_t> number = shared_engine().submit(r, {});
                    if (number.ok()) shared_engine().abort(number.value());
                }
            }
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(right, 8);
    shared_engine().wait_idle();
    EXPECT_EQ(shared_engine().stats().free_blocks, shared_engine().stats().total_blocks);
}

TEST(Engine, StoppingAnswersEveryRequest) {
    int lasts = 0;
    {
        auto engine = Engine::create(demo_config());
        ASSERT_TRUE(engine.ok());
        for (int i = 0; i < 12; ++i) {
            Request r = ask(kFrance, 300);
            r.sampling.ignore_eos = true;
            RequestCallbacks callbacks;
            callbacks.on_output = [&lasts](const Output& o) {
                lasts += o.last ? 1 : 0;
                return true;
            };
            ASSERT_TRUE(engine.value()->submit(r, callbacks).ok());
        }
    }
    EXPECT_EQ(lasts, 12);
}

TEST(Engine, AFullQueueSaysSo) {
    EngineConfig c = demo_config();
    c.max_queue = 3;
    c.max_num_seqs = 1;
    auto engine = Engine::create(c);
    ASSERT_TRUE(engine.ok());
    int full = 0;
    for (int i = 0; i < 40; ++i) {
        Request r = ask(kFrance, 100);
        r.sampling.ignore_eos = true;
        const Result<uint64_t> number = engine.value()->submit(r, {});
        if (number.ok()) continue;
        EXPECT_EQ(number.status().code(), StatusCode::kQueueFull);
        ++full;
    }
    EXPECT_GT(full, 0);
}

TEST(Engine, StepLogHasOneLineAStepAndNoPrompt) {
    EngineConfig c = demo_config();
    c.nextn = 0;  // with drafts the answer takes three steps
    const testing::ScratchDir dir;
    c.step_log = dir.file("step_log.jsonl");
    int64_t steps = 0;
    {
        auto engine = Engine::create(c);
        ASSERT_TRUE(engine.ok());
        ASSERT_TRUE(engine.value()->generate(ask(kFrance)).ok());
        engine.value()->wait_idle();
        steps = engine.value()->stats().steps;
    }
    std::ifstream in(c.step_log);
    std::string line;
    int64_t lines = 0;
    while (std::getline(in, line)) {
        const auto j = nlohmann::json::parse(line);
        ++lines;
        EXPECT_EQ(j["step"], lines);
        for (const char* name :
             {"prefill_rows", "decode_rows", "free_blocks", "plan_us", "step_us"}) {
            EXPECT_TRUE(j.contains(name)) << name;
        }
        EXPECT_FALSE(j.contains("prompt"));
    }
    EXPECT_GE(lines, steps - 1);
    EXPECT_GT(lines, 5);
}

/// Generated weights need no file but the geometry; the same seed gives the same model.
TEST(Engine, RunsGeneratedWeights) {
    const auto tokens = [](const std::string& seed) {
        EngineConfig c = demo_config();
        c.synthetic = c.model_dir + "/config.json" + seed;
        c.model_dir = "";
        auto engine = Engine::create(c);
        EXPECT_TRUE(engine.ok()) << engine.status().to_string();
        if (!engine.ok()) return std::vector<int32_t>();
        EXPECT_NE(engine.value()->description().find("generated"), std::string::npos);
        Request r;
        r.prompt_token_ids = engine.value()->tokenizer().encode("0 17 300 4095");
        r.sampling.temperature = 0;
        r.sampling.max_tokens = 12;
        r.sampling.ignore_eos = true;
        const auto done = engine.value()->generate(std::move(r));
        EXPECT_TRUE(done.ok());
        EXPECT_EQ(engine.value()->tokenizer().encode(done->choices[0].text),
                  done->choices[0].token_ids);
        return done->choices[0].token_ids;
    };
    const std::vector<int32_t> one = tokens(":1");
    EXPECT_EQ(one.size(), 12u);
    EXPECT_EQ(one, tokens(""));
    EXPECT_NE(one, tokens(":2"));
}

TEST(Engine, WrongConfigurationsAreRefused) {
    const auto code = [](auto change) {
        EngineConfig c = demo_config();
        change(c);
        return Engine::create(c).status();
    };
    EXPECT_EQ(code([](EngineConfig& c) { c.backend = "tpu"; }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_NE(code([](EngineConfig& c) { c.backend = "tpu"; }).message().find("cpu"),
              std::string::npos);
    EXPECT_EQ(code([](EngineConfig& c) { c.model_dir = "no/such/dir"; }).code(),
              StatusCode::kNotFound);
    EXPECT_EQ(code([](EngineConfig& c) { c.model_dir = ""; }).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.synthetic = "cpu-slice"; }).code(),
              StatusCode::kInvalidArgument);  // beside model_dir
    EXPECT_EQ(code([](EngineConfig& c) {
                  c.model_dir = "";
                  c.synthetic = "no-such-geometry";
              }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.max_model_len = 9000; }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.block_tokens = 63; }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.kv_cache_bytes = 1000; }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.max_logit_rows = 2; }).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.nextn = 6; }).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(code([](EngineConfig& c) { c.step_log = "/no/such/dir/x"; }).code(),
              StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer
