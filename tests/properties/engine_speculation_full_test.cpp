// The law of coupled speculation on the demonstration checkpoint and real text:
// drafts {0 … 5} × {all, as many as pay} × {greedy, temperature 0.7, top-p 0.9} × batch {1, 7, 48}
// × random preemption × {truncation off, exact}. Every request's digest is that of decoding without
// drafts. Label "full".
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "properties/engine_matrix.h"

namespace deepinfer::testing {
namespace {

constexpr size_t kPrompts = 99, kAlone = 15;

/// First user messages of the evaluation set; every third greedy, sampled, cut by top-p.
std::vector<Request> text_requests() {
    EngineConfig config = lab_config("demo");
    EngineLab lab(config);
    const Tokenizer& tokenizer = *lab.parts().tokenizer;
    std::vector<Request> all;
    for (const char* group : {"talk", "knowledge", "reasoning", "editing", "memory"}) {
        std::ifstream file(std::string(DEEPINFER_SOURCE_DIR) + "/eval/demo/" + group + ".jsonl");
        size_t of_group = 0;
        for (std::string line; std::getline(file, line) && of_group < 20;) {
            const nlohmann::json j = nlohmann::json::parse(line);
            for (const auto& m : j["messages"]) {
                if (m["role"] != "user" || !m["content"].is_string()) continue;
                Request r;
                r.prompt_token_ids = {lab.parts().info.bos_token_id};
                for (const int32_t id : tokenizer.encode(m["content"].get<std::string>())) {
                    r.prompt_token_ids.push_back(id);
                }
                if (r.prompt_token_ids.size() > 40) r.prompt_token_ids.resize(40);
                r.sampling.max_tokens = 8;
                r.sampling.ignore_eos = true;
                r.sampling.logprobs = 1;
                r.sampling.seq_seed = 100 + all.size();
                r.sampling.temperature = all.size() % 3 == 0 ? 0 : all.size() % 3 == 1 ? 0.7 : 1.0;
                if (all.size() % 3 == 2) r.sampling.top_p = 0.9;
                all.push_back(std::move(r));
                ++of_group;
                break;
            }
        }
    }
    all.resize(std::min(all.size(), kPrompts));
    return all;
}

TEST(EngineSpeculationFull, DemoMatrixGivesTheDigestsOfDecodingWithoutDrafts) {
    const std::vector<Request> requests = text_requests();
    ASSERT_EQ(requests.size(), kPrompts);
    const std::vector<Request> few(requests.begin(), requests.begin() + kAlone);
    MatrixCase base;
    base.async = base.caching = false;
    base.truncation = "off";
    const std::vector<std::string> want = run_matrix_case("demo", base, requests).digests;
    const std::vector<std::string> want_few(want.begin(), want.begin() + kAlone);
    int64_t drafts = 0, preemptions = 0;
    for (int nextn = 0; nextn <= 5; ++nextn) {
        for (const bool varlen : {false, true}) {
            if (nextn == 0 && varlen) continue;
            for (const int64_t batch : {1, 7, 48}) {
                MatrixCase c;
                c.nextn = nextn;
                c.varlen = varlen;
                c.batch = batch;
                c.async = (nextn + batch) % 3 != 0;
                c.preempt = batch > 1 ? 0.05 : 0;
                c.truncation = nextn % 2 == 0 ? "off" : "exact";
                SCOPED_TRACE(c.name());
                const MatrixResult r = run_matrix_case("demo", c, batch == 1 ? few : requests);
                EXPECT_EQ(r.digests, batch == 1 ? want_few : want);
                drafts += r.draft_rows;
                preemptions += r.preemptions;
            }
        }
    }
    EXPECT_GT(drafts, 1000);
    EXPECT_GT(preemptions, 100);
    std::cout << drafts << " draft rows, " << preemptions << " preemptions\n";
}

}  // namespace
}  // namespace deepinfer::testing
