// The law of coupled speculation on the demonstration checkpoint and real text: 200 prompts, every
// request's digest is that of decoding without drafts.
//
// Axes: drafts {0 … 5} × lengths {all, as many as pay} × {greedy, temperature 0.7, top-p 0.9} ×
// batch {1, 7, 48} × {as planned, random preemption} × replay {off, exact} × loop {plain,
// asynchronous}. Drafts × lengths × batch are crossed in full and every such run mixes the three
// ways of sampling; preemption, replay and loop rotate over the runs. Every number of drafts with
// either way of choosing lengths meets all 200 prompts, shared out over the batch sizes, and every
// pair of values of two axes occurs (checked below). Label "long".
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

constexpr size_t kPrompts = 200, kSamplings = 3;
constexpr int kBlock = 5;
/// Batch sizes, and how many of the 200 prompts meet each: few sequences at a time are slow.
constexpr std::array<std::pair<int64_t, size_t>, 3> kBatches{{{1, 20}, {7, 70}, {48, 110}}};

struct MatrixRun {
    int nextn, varlen, batch, preempt, replay, async;
    size_t number;

    MatrixCase as_case() const {
        MatrixCase c;
        c.nextn = nextn;
        c.varlen = varlen != 0;
        c.batch = kBatches[static_cast<size_t>(batch)].first;
        c.preempt = preempt != 0 ? 0.12 : 0;
        // What replay needs is what prefix hits bring: preempted prompts find their own blocks.
        c.truncation = replay != 0 ? "exact" : "off";
        c.caching = replay != 0;
        c.async = async != 0;
        return c;
    }
};

std::vector<MatrixRun> runs() {
    std::vector<MatrixRun> all;
    for (int nextn = 0; nextn <= kBlock; ++nextn) {
        for (int varlen = 0; varlen < 2; ++varlen) {
            for (int batch = 0; batch < 3; ++batch) {
                all.push_back({nextn,
                               varlen,
                               batch,
                               (nextn + varlen + batch) % 2,
                               (nextn / 2 + batch) % 2,
                               (nextn / 3 + varlen + batch / 2) % 2,
                               all.size()});
            }
        }
    }
    return all;
}

/// First user messages of the evaluation set, without repetition; those of "memory" are longer
/// than what exact truncation keeps of a prompt (382 rows of this geometry).
std::vector<std::vector<int32_t>> text_prompts() {
    EngineLab lab(lab_config("demo"));
    const Tokenizer& tokenizer = *lab.parts().tokenizer;
    std::vector<std::vector<int32_t>> all;
    std::set<std::string> seen;
    const std::tuple<const char*, size_t, size_t> groups[] = {{"memory", 10, 440},
                                                              {"talk", 70, 40},
                                                              {"knowledge", 45, 40},
                                                              {"reasoning", 40, 40},
                                                              {"editing", 35, 40}};
    for (const auto& [group, count, most] : groups) {
        std::ifstream file(std::string(DEEPINFER_SOURCE_DIR) + "/eval/demo/" + group + ".jsonl");
        size_t of_group = 0;
        for (std::string line; std::getline(file, line) && of_group < count;) {
            const nlohmann::json example = nlohmann::json::parse(line);
            for (const nlohmann::json& m : example["messages"]) {
                if (m["role"] != "user" || !m["content"].is_string()) continue;
                const std::string text = m["content"];
                std::vector<int32_t> ids{lab.parts().info.bos_token_id};
                for (const int32_t id : tokenizer.encode(text)) ids.push_back(id);
                if (most > 40 && ids.size() < most) break;
                ids.resize(std::min(ids.size(), most));
                if (!seen.insert(text).second) break;
                all.push_back(std::move(ids));
                ++of_group;
                break;
            }
        }
    }
    return all;
}

Request make_request(const std::vector<int32_t>& prompt, size_t number, size_t sampling) {
    Request r;
    r.prompt_token_ids = prompt;
    r.sampling.max_tokens = 11 + static_cast<int64_t>(number % 3);
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = 1;
    r.sampling.seq_seed = 100 + number;
    r.sampling.temperature = sampling == 0 ? 0 : sampling == 1 ? 0.7 : 1.0;
    if (sampling == 2) r.sampling.top_p = 0.9;
    return r;
}

TEST(EngineSpeculationFull, DesignMeetsEveryPairOfValuesAndEveryPrompt) {
    using Pair = std::tuple<size_t, int, size_t, int>;
    const std::array<int, 6> sizes{kBlock + 1, 2, 3, 2, 2, 2};
    std::set<Pair> met, wanted;
    size_t prompts = 0;
    for (const MatrixRun& r : runs()) {
        const std::array<int, 6> value{r.nextn, r.varlen, r.batch, r.preempt, r.replay, r.async};
        for (size_t a = 0; a < value.size(); ++a) {
            for (size_t b = a + 1; b < value.size(); ++b) met.insert({a, value[a], b, value[b]});
        }
        // Consecutive prompts of a run take the ways of sampling in turns.
        EXPECT_GE(kBatches[static_cast<size_t>(r.batch)].second, kSamplings);
        prompts += kBatches[static_cast<size_t>(r.batch)].second;
    }
    for (size_t a = 0; a < sizes.size(); ++a) {
        for (size_t b = a + 1; b < sizes.size(); ++b) {
            for (int x = 0; x < sizes[a]; ++x) {
                for (int y = 0; y < sizes[b]; ++y) wanted.insert({a, x, b, y});
            }
        }
    }
    EXPECT_EQ(met, wanted);
    EXPECT_EQ(prompts, (kBlock + 1) * 2 * kPrompts);
}

TEST(EngineSpeculationFull, DemoMatrixGivesTheDigestsOfDecodingWithoutDrafts) {
    const std::vector<std::vector<int32_t>> prompts = text_prompts();
    ASSERT_EQ(prompts.size(), kPrompts);
    std::vector<Request> plain;  // by prompt, then way of sampling
    for (size_t i = 0; i < kPrompts; ++i) {
        for (size_t s = 0; s < kSamplings; ++s) plain.push_back(make_request(prompts[i], i, s));
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    MatrixCase base;
    base.async = base.caching = false;
    base.truncation = "off";
    const std::vector<std::string> want = run_matrix_case("demo", base, plain).digests;
    std::cout << seconds() << " s: without drafts\n";
    // Prompts and ways of sampling differ, so a digest says something. (Answers that the model is
    // sure of are the same however they are sampled.)
    EXPECT_GT(std::set<std::string>(want.begin(), want.end()).size(), kPrompts * 3 / 2);

    int64_t drafts = 0, preemptions = 0, hits = 0;
    for (const MatrixRun& run : runs()) {
        size_t first = 0;
        for (int b = 0; b < run.batch; ++b) first += kBatches[static_cast<size_t>(b)].second;
        std::vector<Request> requests;
        std::vector<std::string> expected;
        for (size_t k = 0; k < kBatches[static_cast<size_t>(run.batch)].second; ++k) {
            // Prompts come to other batch sizes with every number of drafts.
            const size_t turn = static_cast<size_t>(run.nextn * 2 + run.varlen);
            const size_t i = ((first + k) * 7 + turn * 61) % kPrompts;
            const size_t s = (i + run.number) % kSamplings;
            requests.push_back(make_request(prompts[i], i, s));
            expected.push_back(want[i * kSamplings + s]);
        }
        const MatrixCase c = run.as_case();
        SCOPED_TRACE(c.name());
        const MatrixResult r = run_matrix_case("demo", c, requests);
        EXPECT_EQ(r.digests, expected);
        EXPECT_EQ(r.draft_rows > 0, run.nextn > 0);
        drafts += r.draft_rows;
        preemptions += r.preemptions;
        hits += r.hit_tokens;
        std::cout << seconds() << " s: " << c.name() << ": " << r.draft_rows << " draft rows, "
                  << r.preemptions << " preemptions" << std::endl;
    }
    EXPECT_GT(drafts, 10000);
    EXPECT_GT(preemptions, 400);
    EXPECT_GT(hits, 0);
    std::cout << drafts << " draft rows, " << preemptions << " preemptions, " << hits
              << " tokens of prefix hits\n";
}

}  // namespace
}  // namespace deepinfer::testing
