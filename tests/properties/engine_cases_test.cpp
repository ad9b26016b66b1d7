// Field cases of scheduler and prefix cache on the tiny checkpoint `nano` (window 16, blocks of
// 128).
#include <gtest/gtest.h>

#include <set>

#include "kvcache/replay.h"
#include "properties/engine_lab.h"
#include "support/case_file.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 2048;

Request make_request(std::vector<int32_t> prompt, int64_t new_tokens, double temperature = 0) {
    Request r;
    r.prompt_token_ids = std::move(prompt);
    r.sampling.max_tokens = new_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.temperature = temperature;
    r.sampling.seq_seed = 7;
    r.sampling.logprobs = 0;
    return r;
}

/// Bytes that one block of 128 tokens takes on this checkpoint.
int64_t block_bytes() {
    static const int64_t bytes = [] {
        EngineLab lab(lab_config("nano"));
        return lab.parts().model->cache_geometry().block_bytes();
    }();
    return bytes;
}

EngineConfig pool_of(int64_t blocks) {
    EngineConfig c = lab_config("nano");
    c.kv_cache_bytes = blocks * block_bytes();
    c.max_model_len = 0;
    return c;
}

std::string alone(const Request& r) {
    EngineConfig c = lab_config("nano");
    c.prefix_caching = c.async_scheduling = false;
    EngineLab lab(c);
    return digest(lab.run({r})[0]);
}

TEST(EngineCases, C047_ARequestDoesNotSeeItsNeighbours) {
    for (const double temperature : {0.0, 0.8}) {
        Request r = make_request(random_ids(1, 20, kVocab), 32, temperature);
        r.sampling.logprobs = 1;
        const std::string want = alone(r);
        for (const auto& row : case_rows("sampling.json", "C-047")) {
            const auto& in = row["in"];
            if (!in.contains("request") || in["request"]["temperature"] != temperature) continue;
            EngineConfig c = lab_config("nano");
            c.threads = in["threads"];
            if (in["chunk"] > 0) c.long_prefill_token_threshold = in["chunk"];
            EngineLab lab(c);
            std::vector<Request> all = {r};
            for (int i = 0; i < in["beside"]; ++i) {
                all.push_back(
                    make_request(random_ids(100 + static_cast<uint64_t>(i), 1 + i * 5 % 60, kVocab),
                                 8 + i % 9,
                                 1.0));
            }
            EXPECT_EQ(digest(lab.run(all)[0]), want) << row.dump();
        }
    }
}

TEST(EngineCases, C047_TwentyRandomArrivalsGiveOneHash) {
    std::set<std::string> hashes;
    EngineLab lab(lab_config("nano"));
    for (int repeat = 0; repeat < 20; ++repeat) {
        const std::vector<int32_t> order = random_ids(static_cast<uint64_t>(repeat), 15, 1000);
        uint64_t ours = 0;
        for (size_t i = 0; i < order.size(); ++i) {
            if (i == static_cast<size_t>(repeat) % 15) {
                ours = lab.submit(make_request(random_ids(1, 20, kVocab), 12, 0.8)).value();
            }
            ASSERT_TRUE(
                lab.submit(make_request(random_ids(static_cast<uint64_t>(order[i]), 9, kVocab),
                                        1 + order[i] % 7,
                                        1.0))
                    .ok());
            for (int s = 0; s < order[i] % 4; ++s) lab.step();
        }
        lab.run_until_idle();
        hashes.insert(digest(lab.completion(ours)));
    }
    EXPECT_EQ(hashes.size(), 1u);
}

TEST(EngineCases, C053_AHitNeverReadsAnotherRequestsWindow) {
    const std::vector<int32_t> p = random_ids(1, 389, kVocab), q = random_ids(2, 700, kVocab);
    std::vector<int32_t> pq = p;
    pq.insert(pq.end(), q.begin(), q.end());
    for (const auto& between : {q, pq}) {
        EngineConfig c = lab_config("nano");
        c.max_num_seqs = 1;  // one slot: the window ring is really reused
        EngineLab lab(c);
        const Completion first = lab.run({make_request(p, 24)})[0];
        lab.run({make_request(between, 24)});
        const Completion third = lab.run({make_request(p, 24)})[0];
        EXPECT_EQ(third.usage.cached_tokens, 384);
        EXPECT_EQ(digest(third), digest(first));
    }
}

TEST(EngineCases, C054_ReplayStarts) {
    ReplayGeometry g;
    {
        EngineLab lab(lab_config("nano"));
        g = lab.scheduler().config().replay_geometry;
        EXPECT_EQ(lab.scheduler().config().replay, ReplayKind::kExact);
    }
    g.backtrack = 12;  // the rows count five drafts
    int rows = 0;
    for (const auto& row : case_rows("scheduler_cache.json", "C-054")) {
        if (!row["in"].contains("N")) continue;
        ++rows;
        for (const ReplayKind kind : {ReplayKind::kBounded, ReplayKind::kExact}) {
            const auto& want = row["want"][kind == ReplayKind::kBounded ? "bounded_replay_start"
                                                                        : "exact_replay_start"];
            const auto plan = plan_replay(kind, g, row["in"]["N"], row["in"]["hit"]);
            EXPECT_EQ(plan.has_value(), want.is_number()) << row.dump();
            if (plan && want.is_number()) {
                EXPECT_EQ(plan->start, want) << row.dump();
            }
        }
    }
    EXPECT_GT(rows, 5);
}

TEST(EngineCases, C055_PreemptedRequestsLoseAndDoubleNothing) {
    for (const double temperature : {0.0, 0.9}) {
        const Request a = make_request(random_ids(1, 500, kVocab), 300, temperature);
        const Request b = make_request(random_ids(2, 500, kVocab), 300, temperature);
        const std::string want_a = alone(a), want_b = alone(b);
        for (const int64_t blocks : {8, 9}) {
            EngineConfig c = pool_of(blocks);
            c.max_num_batched_tokens = 64;
            EngineLab lab(c);
            const std::vector<Completion> done = lab.run({a, b});
            for (const Completion& d : done) EXPECT_EQ(d.choices[0].token_ids.size(), 300u);
            EXPECT_EQ(digest(done[0]), want_a);
            EXPECT_EQ(digest(done[1]), want_b);
        }
    }
    EngineLab lab(pool_of(4));
    const Result<uint64_t> never = lab.submit(make_request(random_ids(1, 700, kVocab), 10));
    ASSERT_FALSE(never.ok());
    EXPECT_NE(never.status().message().find("can never fit"), std::string::npos);
}

TEST(EngineCases, C055_MemoryPressurePreemptsAndEveryoneFinishes) {
    // Three blocks each at the end, two by the first estimate, five in the pool.
    std::vector<Request> all;
    std::vector<std::string> want;
    for (uint64_t i = 0; i < 4; ++i) {
        all.push_back(make_request(random_ids(i, 100, kVocab), 160, 0.7));
        want.push_back(alone(all.back()));
    }
    EngineConfig c = pool_of(5);
    c.max_num_batched_tokens = 64;
    EngineLab lab(c);
    const std::vector<Completion> done = lab.run(all);
    for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(digest(done[i]), want[i]);
    EXPECT_GT(lab.scheduler().stats().preemptions, 0);
}

TEST(EngineCases, C055_ForcedPreemptionEverySeventhStep) {
    const Request r = make_request(random_ids(1, 300, kVocab), 200, 0.8);
    EngineHooks hooks;
    hooks.force_preempt = [](uint64_t step, const Sequence&) { return step % 7 == 0; };
    EngineConfig c = pool_of(9);
    c.max_num_batched_tokens = 256;
    EngineLab lab(c, hooks);
    EXPECT_EQ(digest(lab.run({r})[0]), alone(r));
    EXPECT_GT(lab.scheduler().stats().preemptions, 10);
}

TEST(EngineCases, C056_SharedBlocksAreNeverRewritten) {
    const std::vector<int32_t> shared = random_ids(1, 512, kVocab);
    std::vector<int32_t> a = shared, b = shared;
    for (const int32_t id : random_ids(2, 8, kVocab)) a.push_back(id);
    for (const int32_t id : random_ids(3, 40, kVocab)) b.push_back(id);
    for (const bool exact : {true, false}) {
        EngineConfig c = lab_config("nano");
        c.batch_invariant = exact;
        EngineLab lab(c);
        const uint64_t first = lab.submit(make_request(a, 60)).value();
        while (lab.completion(first).choices[0].token_ids.size() < 5) lab.step();
        const auto bytes = [&lab] {
            std::string all;
            for (const CacheView::Layer& layer : lab.parts().cache->view().layers) {
                for (const Tensor* t : {&layer.kv_pool, &layer.key_pool}) {
                    if (!*t) continue;
                    // The first four blocks handed out, whichever they are: those of the live
                    // sequence.
                    all.append(static_cast<const char*>(t->data), static_cast<size_t>(t->bytes()));
                }
            }
            return all;
        };
        // Which bytes belong to the shared blocks is read from the plan: everything B does not own.
        const std::string before = bytes();
        const uint64_t second = lab.submit(make_request(b, 1)).value();
        while (!lab.finished(second)) lab.step();
        const std::string after = bytes();
        EXPECT_EQ(lab.completion(second).usage.cached_tokens, 512);
        // B and A may write only blocks that were empty (zero) before: no written byte changes its
        // value inside the shared blocks.
        size_t changed = 0;
        for (size_t i = 0; i < before.size(); ++i) {
            if (before[i] != 0 && before[i] != after[i]) ++changed;
        }
        EXPECT_EQ(changed, 0u);
        lab.run_until_idle();
        if (exact) {
            EXPECT_EQ(digest(lab.completion(first)), alone(make_request(a, 60)));
            EXPECT_EQ(digest(lab.completion(second)), alone(make_request(b, 1)));
        }
    }
}

TEST(EngineCases, C056_AHitOfOneWindowIsNotUsed) {
    EngineConfig c = lab_config("nano");
    c.block_tokens = 16;
    const std::vector<int32_t> p = random_ids(1, 18, kVocab);
    for (const char* replay : {"exact", "bounded"}) {
        c.replay = replay;
        c.batch_invariant = c.replay == "exact";
        EngineLab lab(c);
        lab.run({make_request(p, 2)});
        EXPECT_EQ(lab.run({make_request(p, 2)})[0].usage.cached_tokens, 0) << replay;
    }
}

TEST(EngineCases, C059_AResentConversationHits) {
    for (const bool crowded : {false, true}) {
        // Crowded: room for this conversation and the two others that run between the turns.
        EngineLab lab(pool_of(crowded ? 36 : 400));
        std::vector<int32_t> talk = random_ids(1, 1536, kVocab);
        for (int turn = 1; turn <= 6; ++turn) {
            for (const int32_t id : random_ids(static_cast<uint64_t>(turn) + 50, 60, kVocab)) {
                talk.push_back(id);
            }
            const Completion done = lab.run({make_request(talk, 20)})[0];
            if (turn >= 2) {
                EXPECT_GE(done.usage.cached_tokens, 1536 - 128 - 16) << "turn " << turn;
            }
            for (const int32_t id : done.choices[0].token_ids) talk.push_back(id);
            if (!crowded) continue;
            lab.run({make_request(random_ids(2000, 900, kVocab), 4)});
            lab.run({make_request(random_ids(3000, 900, kVocab), 4)});
        }
    }
}

TEST(EngineCases, C060_RegeneratingHits) {
    EngineLab lab(lab_config("nano"));
    const std::vector<int32_t> p = random_ids(1, 600, kVocab), q = random_ids(2, 640, kVocab);
    lab.run({make_request(p, 100)});
    EXPECT_GE(lab.run({make_request(p, 100)})[0].usage.cached_tokens, 496);
    const uint64_t live = lab.submit(make_request(p, 100)).value();
    while (lab.completion(live).choices[0].token_ids.size() < 3) lab.step();
    const uint64_t again = lab.submit(make_request(p, 2)).value();
    while (!lab.finished(again)) lab.step();
    EXPECT_FALSE(lab.finished(live));
    EXPECT_GE(lab.completion(again).usage.cached_tokens, 496);
    lab.run_until_idle();
    const std::string first = digest(lab.run({make_request(q, 10)})[0]);
    const Completion second = lab.run({make_request(q, 10)})[0];  // the hit equals the prompt
    EXPECT_GE(second.usage.cached_tokens, 596);
    EXPECT_EQ(digest(second), first);
}

TEST(EngineCases, TenantsAndSaltsShareNothing) {
    EngineLab lab(lab_config("nano"));
    Request r = make_request(random_ids(1, 600, kVocab), 4);
    r.tenant = "alice";
    const std::string first = digest(lab.run({r})[0]);
    r.tenant = "bob";
    Completion other = lab.run({r})[0];
    EXPECT_EQ(other.usage.cached_tokens, 0);
    EXPECT_EQ(digest(other), first);
    r.tenant = "alice";
    r.cache_salt = "s1";
    EXPECT_EQ(lab.run({r})[0].usage.cached_tokens, 0);
    r.cache_salt = "";
    EXPECT_GE(lab.run({r})[0].usage.cached_tokens, 512);
}

TEST(EngineCases, C063_AbortsInEveryStateFreeEverything) {
    EngineHooks hooks;
    hooks.force_preempt = [](uint64_t step, const Sequence& seq) {
        return (step + seq.spec.request) % 5 == 0;
    };
    EngineConfig c = lab_config("nano");
    c.max_num_seqs = 4;
    c.max_num_batched_tokens = 32;
    EngineLab lab(c, hooks);
    for (uint64_t round = 0; round < 4; ++round) {
        std::vector<uint64_t> live;
        for (uint64_t i = 0; i < 40; ++i) {
            Request r =
                make_request(random_ids(i, 1 + static_cast<int64_t>(i * 7 % 90), kVocab), 50, 1.0);
            r.sampling.n = i % 6 == 0 ? 3 : 1;
            live.push_back(lab.submit(r).value());
            if (i % 3 == 0) lab.step();
            if (i % 4 == 3) {
                lab.abort(live[(i * 13 + round) % live.size()]);
            }
        }
        for (const uint64_t number : live) {
            lab.abort(number);
            lab.step();
        }
        lab.run_until_idle();
        lab.scheduler().check_invariants();
        EXPECT_EQ(lab.parts().blocks->free_blocks(), lab.parts().blocks->total_blocks());
        for (const uint64_t number : live) EXPECT_TRUE(lab.finished(number));
    }
}

TEST(EngineCases, SiblingsAreWhatTheyWouldBeAlone) {
    // n = 3 through forks equals n = 3 one after the other (a single slot leaves no room for
    // forks).
    Request r = make_request(random_ids(1, 70, kVocab), 20, 1.0);
    r.sampling.n = 3;
    EngineConfig c = lab_config("nano");
    EngineLab forked(c);
    c.max_num_seqs = 1;
    c.prefix_caching = c.async_scheduling = false;
    EngineLab serial(c);
    const Completion a = forked.run({r})[0], b = serial.run({r})[0];
    EXPECT_EQ(digest(a), digest(b));
    // The shared prompt is computed once: 69 rows, then one each.
    EXPECT_EQ(forked.scheduler().stats().prefill_tokens, 72);
}

}  // namespace
}  // namespace deepinfer::testing
