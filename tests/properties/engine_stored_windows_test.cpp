// Stored windows on `nano` (window 16, blocks of 128): after a prefix hit the answer has the bits
// of a cold run, next to nothing runs again, and the number of copies is bounded.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

#ifdef DEEPINFER_FULL_LAWS
#define SUITE EngineStoredWindowsFull
const std::vector<const char*> kModes = {"off", "exact", "compact"};
const std::vector<int> kDrafts = {0, 3};
#else
#define SUITE EngineStoredWindows
const std::vector<const char*> kModes = {"exact"};
const std::vector<int> kDrafts = {3};
#endif

constexpr int64_t kVocab = 2048;

EngineConfig config_of(const std::string& truncation, const std::string& replay = "stored") {
    EngineConfig c = lab_config("nano");
    c.truncation = truncation;
    c.replay = replay;
    c.max_num_seqs = 8;
    return c;
}

Request request_of(std::vector<int32_t> prompt, int64_t new_tokens) {
    Request r;
    r.prompt_token_ids = std::move(prompt);
    r.sampling.max_tokens = new_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.temperature = 0.7;
    r.sampling.seq_seed = 11;
    r.sampling.logprobs = 1;
    r.sampling.bad_words = {{2032}};  // outputs become prompts, which may hold no picture
    return r;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// Cold, alone, one chunk.
std::string alone(const std::string& truncation, const Request& r) {
    static std::map<std::string, std::unique_ptr<EngineLab>> labs;
    std::unique_ptr<EngineLab>& lab = labs[truncation];
    if (lab == nullptr) {
        EngineConfig c = config_of(truncation, "");
        c.prefix_caching = c.async_scheduling = false;
        c.max_num_batched_tokens = 2048;
        lab = std::make_unique<EngineLab>(c);
    }
    return digest(lab->run({r})[0]);
}

/// Rings and tails of the slots that sequences use: what an idle engine leaves there is NaN from
/// now on, so only stored windows can be read again.
void poison_idle_slots(EngineLab& lab) {
    const int64_t slots = lab.parts().config.max_num_seqs;
    for (const CacheView::Layer& l : lab.parts().cache->view().layers) {
        for (const Tensor& t : {l.window_ring, l.tail}) {
            if (!t) continue;
            const Tensor rows = t.rows(0, slots);
            std::memset(rows.data, 0xFF, static_cast<size_t>(rows.bytes()));
        }
    }
}

TEST(SUITE, TurnsOfAConversationRunTheirNewRowsAlone) {
    for (const char* mode : kModes) {
        for (const int nextn : kDrafts) {
            for (const int64_t budget : {nextn == 0 ? 512 : 50}) {
                SCOPED_TRACE(std::string(mode) + ", nextn " + std::to_string(nextn) + ", budget " +
                             std::to_string(budget));
                EngineConfig c = config_of(mode);
                c.nextn = nextn;
                c.max_num_batched_tokens = budget;
                EngineLab lab(c);
                std::vector<int32_t> history = random_ids(1, 300, kVocab);
                for (int turn = 0; turn < 3; ++turn) {
                    const Request r = request_of(history, 150);
                    const int64_t before = lab.scheduler().stats().prefill_tokens;
                    const Completion done = lab.run({r})[0];
                    EXPECT_EQ(digest(done), alone(mode, r)) << "turn " << turn;
                    const int64_t rows = lab.scheduler().stats().prefill_tokens - before;
                    if (turn > 0) {
                        // The last block's rest and the new tokens; compact has to go back keep
                        // rows, exact at most to the end of the last block.
                        EXPECT_LE(rows, 128 + 30 + (std::string(mode) == "compact" ? 128 + 28 : 0))
                            << "turn " << turn;
                        EXPECT_GE(done.usage.cached_tokens, 384) << "turn " << turn;
                    }
                    history = history + done.choices[0].token_ids +
                              random_ids(20 + static_cast<uint64_t>(turn), 30, kVocab);
                    poison_idle_slots(lab);
                }
                EXPECT_EQ(lab.scheduler().stats().restored_windows, 2);
            }
        }
    }
}

TEST(SUITE, OneBeginningServesMany) {
    const std::vector<int32_t> shared = random_ids(5, 400, kVocab);
    for (const char* mode : kModes) {
        SCOPED_TRACE(mode);
        EngineLab lab(config_of(mode));
        // The first leaves windows at its own end (block 4), the second finds where they part
        // (block 3) and leaves some there, the third takes those.
        for (uint64_t i = 0; i < 4; ++i) {
            const Request r = request_of(shared + random_ids(100 + i, 180, kVocab), 6);
            const int64_t before = lab.scheduler().stats().prefill_tokens;
            EXPECT_EQ(digest(lab.run({r})[0]), alone(mode, r)) << "request " << i;
            const int64_t rows = lab.scheduler().stats().prefill_tokens - before;
            if (i >= 2) {
                // With `off` what follows a replay has whole windows in all layers only later.
                EXPECT_EQ(rows, std::string(mode) == "off" ? 580 - 279 : 580 - 384)
                    << "request " << i;
            }
            poison_idle_slots(lab);
        }
    }
}

#ifdef DEEPINFER_FULL_LAWS
TEST(SUITE, FewSlotsAndASmallPoolChangeNoBit) {
    std::vector<Request> requests = matrix_requests(kVocab, 8, 300, 6);
    for (uint64_t i = 0; i < 6; ++i) {
        requests.push_back(
            request_of(random_ids(i % 3, 150 + 100 * static_cast<int64_t>(i % 2), kVocab), 140));
    }
    std::vector<std::string> want;
    for (const Request& r : requests) want.push_back(alone("exact", r));
    for (const int64_t stored : {1, 5}) {
        for (const int nextn : {stored == 1 ? 0 : 5}) {
            SCOPED_TRACE("stored " + std::to_string(stored) + ", nextn " + std::to_string(nextn));
            EngineConfig c = config_of("exact");
            c.stored_windows = stored;
            c.nextn = nextn;
            c.max_num_batched_tokens = 96;
            c.kv_cache_bytes = 12 * 128 * 400;
            c.max_model_len = 0;
            EngineHooks hooks;
            hooks.force_preempt = [](uint64_t step, const Sequence& seq) {
                return (step * 31 + seq.spec.request * 17) % 61 == 0;
            };
            EngineLab lab(c, hooks);
            for (int repeat = 0; repeat < 2; ++repeat) {
                const std::vector<Completion> done = lab.run(requests);
                for (size_t i = 0; i < done.size(); ++i) {
                    EXPECT_EQ(digest(done[i]), want[i]) << "request " << i << ", run " << repeat;
                }
                poison_idle_slots(lab);
            }
            EXPECT_GT(lab.scheduler().stats().saved_windows, 0);
            EXPECT_GT(lab.scheduler().stats().preemptions, 0);
        }
    }
}
#endif

TEST(SUITE, SwitchesAreResolvedOrRefused) {
    EXPECT_EQ(EngineLab(lab_config("nano")).parts().config.replay, "stored");
    EXPECT_GE(EngineLab(lab_config("nano")).parts().config.stored_windows, 4);
    EngineConfig c = config_of("off", "exact");
    EXPECT_EQ(EngineLab(c).parts().config.stored_windows, 0);
    c.stored_windows = 3;
    const auto parts = EngineParts::load(c);
    ASSERT_FALSE(parts.ok());
    EXPECT_NE(parts.status().message().find("stored_windows"), std::string::npos);
    c = config_of("off");
    c.prefix_caching = false;
    EXPECT_EQ(EngineLab(c).parts().config.stored_windows, 0);
}

}  // namespace
}  // namespace deepinfer::testing
