// Forgetting the prefix cache: idle, and beside requests that run.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "deepinfer/engine.h"
#include "support/demo_engine.h"

namespace deepinfer {
namespace {

std::unique_ptr<Engine> make_engine(bool async) {
    EngineConfig c = testing::demo_engine_config();
    c.max_num_seqs = 4;
    c.max_model_len = 1024;
    c.async_scheduling = async;
    return Engine::create(c).value();
}

Request ask(const Engine& engine, const std::string& text, int64_t max_tokens) {
    Request r;
    r.prompt_token_ids = engine.tokenizer().encode(text);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    return r;
}

std::string long_text() {
    std::string out = "<｜begin▁of▁sentence｜>";
    for (int i = 0; i < 90; ++i) out += "word" + std::to_string(i % 10) + " ";
    return out;
}

TEST(EngineFlush, ForgottenPrefixesAreComputedAgain) {
    const auto engine = make_engine(true);
    const Request r = ask(*engine, long_text(), 4);
    const Completion cold = engine->generate(r).value();
    EXPECT_EQ(cold.usage.cached_tokens, 0);
    const Completion warm = engine->generate(r).value();
    EXPECT_GT(warm.usage.cached_tokens, 0);
    EXPECT_GT(engine->flush_prefix_cache().value(), 0);
    EXPECT_EQ(engine->flush_prefix_cache().value(), 0);
    const Completion again = engine->generate(r).value();
    EXPECT_EQ(again.usage.cached_tokens, 0);
    EXPECT_EQ(again.choices[0].token_ids, cold.choices[0].token_ids);
    engine->wait_idle();
    EXPECT_EQ(engine->stats().free_blocks, engine->stats().total_blocks);
}

TEST(EngineFlush, RequestsThatRunKeepTheirAnswers) {
    for (const bool async : {false, true}) {
        const auto engine = make_engine(async);
        const Request r = ask(*engine, long_text(), 8);
        const std::vector<int32_t> expected = engine->generate(r).value().choices[0].token_ids;
        std::atomic<bool> stop{false};
        std::thread flushing([&] {
            while (!stop) ASSERT_TRUE(engine->flush_prefix_cache().ok());
        });
        std::vector<std::thread> asking;
        for (int i = 0; i < 3; ++i)
            asking.emplace_back(
                [&] { EXPECT_EQ(engine->generate(r).value().choices[0].token_ids, expected); });
        for (std::thread& t : asking) t.join();
        stop = true;
        flushing.join();
        engine->wait_idle();
        EXPECT_EQ(engine->stats().free_blocks, engine->stats().total_blocks);
    }
}

}  // namespace
}  // namespace deepinfer
