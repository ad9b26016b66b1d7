// The field cases of speculation on the tiny checkpoint `nano` (window 16, ratios 1 and 2), rows
// read from tests/data/cases/speculation.json. C-071 stands in sampler/, C-074 in engine/; C-065
// and C-073 need a grammar.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "properties/spec_drafters.h"
#include "support/case_file.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kVocab = 2048;
using nlohmann::json;

Request make_request(uint64_t seed, int64_t prompt, int64_t new_tokens, double temperature = 0) {
    Request r;
    r.prompt_token_ids = random_ids(seed, prompt, kVocab);
    r.sampling.max_tokens = new_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.temperature = temperature;
    r.sampling.seq_seed = 7;
    r.sampling.logprobs = 1;
    return r;
}

EngineConfig config_of(int nextn) {
    EngineConfig c = lab_config("nano");
    c.nextn = nextn;
    return c;
}

std::vector<Completion> run(const EngineConfig& config,
                            const std::vector<Request>& requests,
                            const EngineHooks& hooks = {}) {
    EngineLab lab(config, hooks);
    return lab.run(requests);
}

/// A drafter for these requests that is right for j drafts, then wrong.
DraftOverride right_for(const std::vector<Request>& requests,
                        const std::vector<Completion>& plain,
                        int j) {
    return right_then_wrong(
        std::make_shared<const Oracle>(requests, plain),
        [j](const SlotState&) { return j; },
        kVocab);
}

void expect_equal(const std::vector<Completion>& done,
                  const std::vector<Completion>& plain,
                  const std::string& what) {
    ASSERT_EQ(done.size(), plain.size());
    for (size_t i = 0; i < done.size(); ++i) {
        EXPECT_EQ(digest(done[i]), digest(plain[i])) << what << ", request " << i;
    }
}

/// What the caches hold of the committed positions of a lone sequence in slot 0: window rows,
/// entries of complete groups, raw rows of the open one. Blocks of a fresh plain pool are handed
/// out in order.
std::string committed_bytes(EngineLab& lab, int64_t computed) {
    const CacheGeometry& g = lab.parts().model->cache_geometry();
    const CacheView& view = lab.parts().cache->view();
    const int64_t window = lab.parts().model->config().sliding_window;
    std::string bytes;
    const auto add = [&](const Tensor& t, int64_t row) {
        const Tensor r = t.rows(row, row + 1);
        bytes.append(static_cast<const char*>(r.data), static_cast<size_t>(r.bytes()));
    };
    for (int64_t l = 0; l < lab.parts().model->config().num_hidden_layers; ++l) {
        const CacheView::Layer& v = view.layers[static_cast<size_t>(l)];
        const CacheGeometry::Layer& layer = g.layers[static_cast<size_t>(l)];
        const Tensor ring = v.window_ring.rows(0, 1).reshaped({g.ring_len, layer.window_row_bytes});
        for (int64_t p = std::max<int64_t>(0, computed - window + 1); p < computed; ++p) {
            add(ring, p % g.ring_len);
        }
        if (!layer.kv_source) continue;
        for (int64_t e = 0; e < computed / layer.ratio; ++e) {
            add(v.kv_pool, e);
            add(v.key_pool, e);
        }
        if (!v.tail) continue;
        const Tensor tail = v.tail.rows(0, 1).reshaped({g.tail_len, v.tail.dim(2) * v.tail.dim(3)});
        for (int64_t p = computed / layer.ratio * layer.ratio; p < computed; ++p) {
            add(tail, p % g.tail_len);
        }
    }
    return bytes;
}

TEST(SpecCases, C064_RejectedRowsLeaveNothingBehind) {
    int rows = 0;
    for (const json& row : case_rows("speculation.json", "C-064")) {
        if (!row["in"].contains("j")) continue;
        const std::vector<Request> r{
            make_request(1, row["in"]["prompt_len"], row["in"]["new"].get<int64_t>() / 2)};
        const std::vector<Completion> plain = run(config_of(0), r);
        EngineHooks hooks;
        hooks.drafts = right_for(r, plain, row["in"]["j"]);
        expect_equal(run(config_of(5), r, hooks), plain, row["in"].dump());
        ++rows;
    }
    EXPECT_EQ(rows, 6);
    // Random numbers of right drafts over every prompt length, together in one batch.
    std::vector<Request> all;
    for (int64_t length = 1; length <= 40; length += 3) all.push_back(make_request(3, length, 30));
    const std::vector<Completion> plain = run(config_of(0), all);
    EngineHooks hooks;
    hooks.drafts = right_then_wrong(
        std::make_shared<const Oracle>(all, plain),
        [](const SlotState& s) {
            return static_cast<int>((s.tokens.size() * 2654435761u >> 7) % 6);
        },
        kVocab);
    expect_equal(run(config_of(5), all, hooks), plain, "random j");
}

TEST(SpecCases, C064_CachesOfCommittedPositionsAreTheSameBytes) {
    const std::vector<Request> r{make_request(4, 19, 40, 0.8)};
    EngineConfig c = config_of(0);
    c.async_scheduling = c.prefix_caching = false;
    std::map<size_t, std::string> want;
    std::vector<Completion> plain;
    const auto watch = [&](EngineLab& lab, const auto& see) {
        const uint64_t number = lab.submit(r[0]).value();
        while (!lab.finished(number)) {
            lab.step();
            const size_t n = lab.completion(number).choices[0].token_ids.size();
            if (n > 0) see(n, committed_bytes(lab, 19 + static_cast<int64_t>(n) - 1));
        }
        return lab.completion(number);
    };
    {
        EngineLab lab(c);
        plain = {watch(lab, [&](size_t n, std::string bytes) { want[n] = std::move(bytes); })};
    }
    int compared = 0;
    for (const int j : {0, 1, 2, 4}) {
        EngineConfig drafting = c;
        drafting.nextn = 5;
        EngineHooks hooks;
        hooks.drafts = right_for(r, plain, j);
        EngineLab lab(drafting, hooks);
        watch(lab, [&](size_t n, const std::string& bytes) {
            EXPECT_EQ(bytes == want.at(n), true) << j << " right drafts, after token " << n;
            ++compared;
        });
    }
    EXPECT_GT(compared, 60);
}

TEST(SpecCases, C066_NumbersOfDraftsAreCheckedAtStart) {
    int refused = 0, started = 0;
    for (const json& row : case_rows("speculation.json", "C-066")) {
        const std::string want = row["want"];
        const json& in = row["in"];
        if (!in.contains("DEEPINFER_USE_NEXTN_DECODE")) {
            ASSERT_EQ(setenv("DEEPINFER_USE_NEXTN_DECOD", "5", 1), 0);
            EXPECT_EQ(unknown_env_flags(), std::vector<std::string>{"DEEPINFER_USE_NEXTN_DECOD"});
            unsetenv("DEEPINFER_USE_NEXTN_DECOD");
            continue;
        }
        const json& value = in["DEEPINFER_USE_NEXTN_DECODE"];
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        ASSERT_EQ(setenv("DEEPINFER_USE_NEXTN_DECODE", text.c_str(), 1), 0);
        Result<EngineConfig> env = EngineConfig::from_environment();
        unsetenv("DEEPINFER_USE_NEXTN_DECODE");
        if (want == "refused") {
            EXPECT_FALSE(env.ok()) << text;
            ++refused;
            continue;
        }
        ASSERT_TRUE(env.ok()) << env.status().message();
        EngineConfig c = lab_config("nano");
        c.nextn = env->nextn;
        register_lab_backends();
        const auto parts = EngineParts::load(c);
        EXPECT_EQ(parts.ok(), want == "starts") << text;
        if (parts.ok()) {
            ++started;
            continue;
        }
        ++refused;
        EXPECT_NE(parts.status().message().find(text), std::string::npos)
            << parts.status().message();
        EXPECT_NE(parts.status().message().find(in["dspark_block_size"].dump()), std::string::npos)
            << parts.status().message();
    }
    EXPECT_EQ(refused, 5);
    EXPECT_EQ(started, 3);
}

TEST(SpecCases, C067_PromptLogprobsDoNotSeeDraftsOrChunks) {
    std::vector<Request> four;
    for (uint64_t i = 0; i < 4; ++i) {
        four.push_back(make_request(5 + i, 40, 6));
        four.back().sampling.prompt_logprobs = 1;
    }
    const std::vector<Completion> plain = run(config_of(0), four);
    for (const json& row : case_rows("speculation.json", "C-067")) {
        const json& in = row["in"];
        if (!in["chunk"].is_number()) continue;
        EngineConfig c = config_of(in["draft"]);
        c.long_prefill_token_threshold = in["chunk"];
        expect_equal(run(c, four), plain, in.dump());
        ASSERT_EQ(plain[0].choices[0].prompt_logprobs.size(), 40u);
    }
}

TEST(SpecCases, C068_EveryTokenHasItsOwnRowsLogprobs) {
    std::vector<Request> r{make_request(2, 12, 40), make_request(3, 17, 40, 0.8)};
    for (Request& one : r) one.sampling.logprobs = 3;
    const std::vector<Completion> plain = run(config_of(0), r);
    expect_equal(run(config_of(5), r), plain, "own drafts");
    EngineHooks hooks;
    hooks.drafts = right_for(r, plain, 5);
    const std::vector<Completion> done = run(config_of(5), r, hooks);
    expect_equal(done, plain, "always right");
    for (const Completion& c : done) {
        ASSERT_EQ(c.choices[0].logprobs.size(), 40u);
        std::set<std::vector<std::pair<int32_t, double>>> lists;
        for (const TokenLogprobs& l : c.choices[0].logprobs) {
            double sum = 0;
            for (const auto& [id, logprob] : l.top) sum += std::exp(logprob);
            EXPECT_LE(sum, 1 + 1e-9);
            lists.insert(l.top);
        }
        EXPECT_EQ(lists.size(), 40u);
    }
}

/// A row's request body as parameters.
SamplingParams params_of(const json& body, Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    SamplingParams p;
    p.ignore_eos = true;
    p.logprobs = 0;
    p.seq_seed = 7;
    for (const auto& [key, value] : body.items()) {
        if (key == "frequency_penalty") {
            p.frequency_penalty = value;
        } else if (key == "presence_penalty") {
            p.presence_penalty = value;
        } else if (key == "repetition_penalty") {
            p.repetition_penalty = value;
        } else if (key == "min_tokens") {
            p.min_tokens = value;
            p.ignore_eos = false;
        } else if (key == "max_tokens") {
            p.max_tokens = value;
        } else if (key == "logit_bias") {
            for (const auto& [id, bias] : value.items())
                p.logit_bias.emplace_back(std::stoi(id), bias);
        } else if (key == "bad_words") {
            p.bad_words = value.get<std::vector<std::vector<int32_t>>>();
            // Words that would really come, beside the row's.
            p.bad_words.push_back({ids[3], ids[4]});
        } else if (key == "stop") {
            p.stop = {tokenizer.decode(std::vector<int32_t>{ids[20]}).value()};
        } else {
            ADD_FAILURE() << "unknown key " << key;
        }
    }
    return p;
}

TEST(SpecCases, C069_EveryRowSeesTheHistoryBeforeIt) {
    EngineLab plain_lab(config_of(0));
    const std::vector<int32_t> free =
        plain_lab.run({make_request(9, 20, 60)})[0].choices[0].token_ids;
    std::vector<Request> all;
    for (const json& row : case_rows("speculation.json", "C-069")) {
        for (const double temperature : {0.0, 0.8}) {
            Request r = make_request(9, 20, 60);
            r.sampling = params_of(row["in"]["body"], *plain_lab.parts().tokenizer, free);
            r.sampling.temperature = temperature;
            all.push_back(std::move(r));
        }
    }
    ASSERT_EQ(all.size(), 16u);
    const std::vector<Completion> plain = run(config_of(0), all);
    EngineHooks hooks;
    hooks.drafts = right_for(all, plain, 4);
    const std::vector<Completion> done = run(config_of(5), all, hooks);
    expect_equal(done, plain, "four accepted");
    for (size_t i = 0; i < all.size(); ++i) {
        const auto n = static_cast<int64_t>(done[i].choices[0].token_ids.size());
        EXPECT_LE(n, all[i].sampling.max_tokens.value());
        EXPECT_GE(n, std::min(all[i].sampling.min_tokens, all[i].sampling.max_tokens.value()));
    }
}

TEST(SpecCases, C070_CountsChangeOnCommitOnly) {
    std::vector<Request> r{make_request(6, 15, 50, 0.8)};
    r[0].sampling.presence_penalty = 1;
    r[0].sampling.frequency_penalty = 0.7;
    const std::vector<Completion> plain = run(config_of(0), r);
    const DraftOverride wrong = right_for(r, plain, 2);
    for (const bool preempt : {false, true}) {
        EngineHooks hooks;
        int tables = 0;
        bool done = false;
        hooks.drafts = [&](const SlotState& s, Proposal* p) {
            std::map<int32_t, int32_t> want;
            for (size_t i = 15; i < s.tokens.size(); ++i) ++want[s.tokens[i]];
            EXPECT_EQ(s.history.output().size() + 15, s.tokens.size());
            int32_t in_prompt = 0;
            for (const TokenHistory::Entry& e : s.history.entries()) {
                EXPECT_EQ(e.output_count, want.count(e.token) ? want[e.token] : 0);
                in_prompt += e.in_prompt ? 1 : 0;
            }
            EXPECT_GT(in_prompt, 0);
            ++tables;
            wrong(s, p);
        };
        if (preempt) {
            hooks.force_preempt = [&done](uint64_t, const Sequence& seq) {
                const bool now = seq.num_output() >= 20 && !done;
                done = done || now;
                return now;
            };
        }
        EngineConfig c = config_of(4);
        EngineLab lab(c, hooks);
        const uint64_t number = lab.submit(r[0]).value();
        int steps = 0;
        while (!lab.finished(number) && ++steps < 1000) lab.step();
        ASSERT_TRUE(lab.finished(number));
        EXPECT_EQ(digest(lab.completion(number)), digest(plain[0]));
        EXPECT_GT(tables, 10);
        EXPECT_EQ(done, preempt);
    }
}

/// There is one rank: what needs two is said to be missing, and that two are refused is checked.
/// The rule itself holds already: one place decides a step's lengths, before its rows are laid out.
TEST(SpecCases, C072_OneSetOfLengthsForAllRanks) {
    int rows = 0;
    for (const json& row : case_rows("speculation.json", "C-072")) {
        EXPECT_EQ(row["in"]["ranks"], 2);
        ++rows;
        for (int EngineConfig::*layout :
             {&EngineConfig::ep, &EngineConfig::dp, &EngineConfig::cp}) {
            EngineConfig c = config_of(5);
            c.varlen = true;
            c.*layout = row["in"]["ranks"];
            register_lab_backends();
            const auto parts = EngineParts::load(c);
            ASSERT_FALSE(parts.ok()) << "several ranks run now: their lengths are to be compared";
            EXPECT_EQ(parts.status().code(), StatusCode::kUnimplemented);
        }
    }
    EXPECT_EQ(rows, 2);
    GTEST_SKIP() << "C-072: two ranks that share a step; ep, dp and cp other than 1 are refused";
}

TEST(SpecCases, C075_TheNextTokenComesFromTheRightRow) {
    int rows = 0;
    std::map<int, std::vector<int>> by_length;
    for (const json& row : case_rows("speculation.json", "C-075")) {
        int right = 0, of = 0;
        const std::string drafter = row["in"]["drafter"];
        ASSERT_EQ(std::sscanf(drafter.c_str(), "right for %d of %d", &right, &of), 2);
        by_length[row["in"]["draft"]].push_back(right);
        ++rows;
    }
    EXPECT_EQ(rows, 12);
    const std::vector<Request> r{make_request(11, 18, 80), make_request(12, 21, 80, 0.8)};
    const std::vector<Completion> plain = run(config_of(0), r);
    for (const auto& [nextn, rights] : by_length) {
        for (const int right : rights) {
            EngineHooks hooks;
            hooks.drafts = right_for(r, plain, right);
            const std::vector<Completion> done = run(config_of(nextn), r, hooks);
            expect_equal(done, plain, std::to_string(right) + " of " + std::to_string(nextn));
        }
    }
}

TEST(SpecCases, C076_TheAnchorIsTheLastCommittedToken) {
    std::vector<Request> all;
    for (uint64_t i = 0; i < 7; ++i) {
        all.push_back(make_request(20 + i, 10 + static_cast<int64_t>(i) * 3, 40, i % 2 ? 0.8 : 0));
    }
    const std::vector<Completion> plain = run(config_of(0), all);
    const auto oracle = std::make_shared<const Oracle>(all, plain);
    // Drafts on for three rounds, off for two; requests leave and join at other rows meanwhile.
    std::map<uint64_t, int> round;
    EngineHooks hooks;
    hooks.drafts = [&](const SlotState& s, Proposal* p) {
        const int n = round[s.request]++;
        if (n % 5 >= 3) {
            p->tokens.clear();
        } else {
            right_then_wrong(
                oracle, [n](const SlotState&) { return n % 6; }, kVocab)(s, p);
        }
    };
    hooks.force_preempt = [](uint64_t step, const Sequence& seq) {
        return (step * 31 + seq.spec.request * 17) % 11 == 0;
    };
    EngineConfig c = config_of(5);
    c.max_num_seqs = 4;
    EngineLab lab(c, hooks);
    expect_equal(lab.run(all), plain, "schedules");
    EXPECT_GT(lab.scheduler().stats().preemptions, 3);
    // The first drafts behind a prefix hit, with the model's own drafter.
    const std::vector<Request> hit{make_request(30, 300, 20), make_request(31, 290, 20, 0.8)};
    const std::vector<Completion> cold = run(config_of(0), hit);
    EngineLab again(config_of(5));
    expect_equal(again.run(hit), cold, "cold");
    expect_equal(again.run(hit), cold, "hit");
    EXPECT_GT(again.scheduler().stats().prefix_hit_tokens, 0);
}

}  // namespace
}  // namespace deepinfer::testing
