// Prefill truncation in the whole engine on `nano` (window 16, layers 7–11 above the last source):
// `exact` gives the answers of `off`, `compact` those of the request alone, whatever the chunks,
// preemptions and prefix hits; what it does is counted, whom it passes over too.
#include <gtest/gtest.h>

#include <cstring>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 2048;

std::vector<Request> requests() {
    std::vector<Request> all = matrix_requests(kVocab, 8, 300, 6);
    // Sampled continuations of a prompt around the borders: keep 28, exact 76.
    for (const int64_t n : {27, 28, 29, 75, 76, 77, 92}) {
        Request r;
        r.prompt_token_ids = random_ids(static_cast<uint64_t>(n), n, kVocab);
        r.sampling.max_tokens = 20;
        r.sampling.ignore_eos = true;
        r.sampling.logprobs = 1;
        r.sampling.n = n == 77 ? 2 : 1;
        r.sampling.seq_seed = 3;
        all.push_back(std::move(r));
    }
    return all;
}

EngineConfig config_of(const std::string& truncation) {
    EngineConfig c = lab_config("nano");
    c.truncation = truncation;
    return c;
}

std::vector<std::string> digests(EngineLab& lab, const std::vector<Request>& all) {
    std::vector<std::string> out;
    for (const Completion& c : lab.run(all)) out.push_back(digest(c));
    return out;
}

/// Every request in an engine that holds nothing else, in one chunk.
std::vector<std::string> alone(const std::string& truncation) {
    EngineConfig c = config_of(truncation);
    c.prefix_caching = c.async_scheduling = false;
    c.max_num_batched_tokens = 2048;
    EngineLab lab(c);
    std::vector<std::string> out;
    for (const Request& r : requests()) out.push_back(digest(lab.run({r})[0]));
    return out;
}

void expect_everywhere(const std::string& truncation, const std::vector<std::string>& want) {
    for (const int64_t budget : {23, 512}) {
        for (const bool preempt : {false, true}) {
            if (preempt && budget == 23) continue;  // a long time of starting again
            SCOPED_TRACE(truncation + ", budget " + std::to_string(budget) +
                         (preempt ? ", preemption" : ""));
            EngineConfig c = config_of(truncation);
            c.max_num_batched_tokens = budget;
            EngineHooks hooks;
            if (preempt) {
                hooks.force_preempt = [](uint64_t step, const Sequence& seq) {
                    return (step * 31 + seq.spec.request * 17) % 23 == 0;
                };
            }
            EngineLab lab(c, hooks);
            EXPECT_EQ(digests(lab, requests()), want) << "cold";
            EXPECT_EQ(digests(lab, requests()), want) << "second run";
            EXPECT_GT(lab.scheduler().stats().prefix_hit_tokens, 0);
            EXPECT_GT(lab.scheduler().stats().skipped_rows, 0);
            if (preempt) {
                EXPECT_GT(lab.scheduler().stats().preemptions, 0);
            }
        }
    }
}

TEST(EngineTruncation, ExactGivesTheAnswersOfOff) {
    expect_everywhere("exact", alone("off"));
}

TEST(EngineTruncation, CompactIsAFunctionOfTheRequest) {
    const std::vector<std::string> want = alone("compact");
    EXPECT_NE(want, alone("off"));
    expect_everywhere("compact", want);
}

TEST(EngineTruncation, DefaultsAndTheLeastKeep) {
    EXPECT_EQ(EngineLab(lab_config("nano")).parts().config.truncation, "exact");
    EngineConfig c = lab_config("nano");
    c.batch_invariant = false;
    EXPECT_EQ(EngineLab(c).parts().config.truncation, "off");
    EXPECT_EQ(EngineLab(config_of("compact")).parts().config.keep_tokens, 28);
    c = lab_config("demo");
    c.truncation = "compact";
    EXPECT_EQ(EngineLab(c).parts().config.keep_tokens, 140);
    c.keep_tokens = 139;
    const auto parts = EngineParts::load(c);
    ASSERT_FALSE(parts.ok());
    EXPECT_EQ(parts.status().code(), StatusCode::kInvalidArgument);
    for (const char* said : {"139", "140", "128", "keep_tokens"}) {
        EXPECT_NE(parts.status().message().find(said), std::string::npos)
            << parts.status().message();
    }
}

TEST(EngineTruncation, RowsAreCountedAndPromptLogprobsPassVisibly) {
    Request r;
    r.prompt_token_ids = random_ids(1, 200, kVocab);
    r.sampling.max_tokens = 4;
    r.sampling.seq_seed = 5;
    r.sampling.ignore_eos = true;
    for (const auto& [mode, rows] : {std::pair{"compact", 200 - 28}, {"exact", 200 - 76}}) {
        EngineConfig config = config_of(mode);
        config.replay = "exact";  // stored windows keep up to a block more
        EngineLab lab(config);
        lab.run({r});
        EXPECT_EQ(lab.scheduler().stats().skipped_rows, rows) << mode;
        EXPECT_EQ(lab.scheduler().stats().uncut_prompts, 0) << mode;
        Request scored = r;
        scored.sampling.prompt_logprobs = 0;
        const Completion done = lab.run({scored})[0];
        EXPECT_EQ(done.choices[0].prompt_logprobs.size(), 200u);
        EXPECT_EQ(lab.scheduler().stats().skipped_rows, rows) << mode;
        EXPECT_EQ(lab.scheduler().stats().uncut_prompts, 1) << mode;
        EngineLab off(config_of("off"));
        EXPECT_EQ(digest(off.run({scored})[0]), digest(done)) << mode;
        EXPECT_EQ(off.scheduler().stats().uncut_prompts, 0);
    }
}

/// Bytes of the blocks that hold the first `blocks` blocks of the only known prefix.
std::vector<uint8_t> block_bytes(EngineLab& lab, const std::vector<int32_t>& ids) {
    std::vector<uint8_t> bytes;
    for (const CacheView::Layer& l : lab.parts().cache->view().layers) {
        for (const int32_t id : ids) {
            for (const Tensor& pool : {l.kv_pool, l.key_pool}) {
                if (!pool) continue;
                const Tensor rows =
                    pool.rows(id * l.entries_per_block, (id + 1) * l.entries_per_block);
                const auto* p = static_cast<const uint8_t*>(rows.data);
                bytes.insert(bytes.end(), p, p + rows.bytes());
            }
        }
    }
    return bytes;
}

TEST(EngineTruncation, AHitAndItsReplayLeaveSharedBlocksUntouched) {
    for (const bool invariant : {true, false}) {
        for (const char* mode : {"compact", "exact"}) {
            SCOPED_TRACE(std::string(mode) + (invariant ? ", exact replay" : ", bounded replay"));
            EngineConfig c = config_of(mode);
            c.batch_invariant = invariant;
            c.async_scheduling = false;
            c.replay = invariant ? "exact" : "bounded";
            EngineLab lab(c);
            Request a;
            a.prompt_token_ids = random_ids(9, 520, kVocab);
            a.sampling.max_tokens = 60;
            a.sampling.seq_seed = 5;
            a.sampling.ignore_eos = true;
            Request b = a;
            b.prompt_token_ids.resize(512);
            for (const int32_t id : random_ids(10, 40, kVocab)) b.prompt_token_ids.push_back(id);
            const uint64_t first = lab.submit(a).value();
            while (lab.completion(first).choices[0].token_ids.size() < 5) lab.step();
            const std::vector<int32_t> shared = {0, 1, 2, 3};  // handed out in order
            const std::vector<uint8_t> before = block_bytes(lab, shared);
            const uint64_t second = lab.submit(b).value();
            lab.run_until_idle();
            EXPECT_EQ(lab.completion(second).usage.cached_tokens, 512);
            EXPECT_GT(lab.scheduler().stats().replayed_tokens, 0);
            EXPECT_EQ(block_bytes(lab, shared), before);
            if (invariant) {
                EngineConfig plain = c;
                plain.prefix_caching = false;
                EngineLab own(plain);
                EXPECT_EQ(digest(own.run({a})[0]), digest(lab.completion(first)));
                EXPECT_EQ(digest(own.run({b})[0]), digest(lab.completion(second)));
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
