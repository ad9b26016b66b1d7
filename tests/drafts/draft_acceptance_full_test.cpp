// The demonstration checkpoint: greedy decoding with drafts gives the tokens of decoding without,
// and how many drafts are accepted (model card: 3.271 of 5 over a selection that holds every failed
// example too).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "backends/cpu/cpu_backend.h"
#include "deepinfer/recipe.h"
#include "deepinfer/tokenizer.h"
#include "judge/sequence.h"

namespace deepinfer::testing {
namespace {

using nlohmann::json;

constexpr int kPerKind = 4, kMaxTokens = 96;
const std::string kTree = DEEPINFER_SOURCE_DIR;

/// The prompts of the first examples of every kind (tools are rendered from another schema, left
/// out).
std::vector<std::vector<int32_t>> prompts(const Tokenizer& tokenizer) {
    std::vector<std::vector<int32_t>> out;
    std::map<std::string, int> seen;
    for (const char* group : {"talk", "knowledge", "reasoning", "editing", "memory"}) {
        std::ifstream file(kTree + "/eval/demo/" + group + ".jsonl");
        for (std::string line; std::getline(file, line);) {
            const json example = json::parse(line);
            if (example.contains("tools") || ++seen[example["kind"]] > kPerKind) continue;
            recipe::Conversation c;
            c.thinking = example["thinking"];
            if (example.contains("effort"))
                c.effort = recipe::Effort::from_number(example["effort"]);
            for (const json& m : example["messages"]) {
                const std::string text = m["content"];
                if (m["role"] == "system") {
                    c.messages.push_back(recipe::Message::system(text));
                } else if (m["role"] == "user") {
                    c.messages.push_back(recipe::Message::user(text));
                } else {
                    c.messages.push_back(recipe::Message::assistant(text));
                    if (m.contains("reasoning")) c.messages.back().reasoning = m["reasoning"];
                }
            }
            Result<std::vector<int32_t>> ids =
                recipe::prompt_ids(tokenizer, recipe::encode_prompt(c));
            DI_CHECK_MSG(ids.ok(), ids.status().message());
            out.push_back(std::move(ids).value());
        }
    }
    return out;
}

std::vector<int32_t> argmax(Backend& backend, const Tensor& logits) {
    const std::vector<double> all = acc_to_host(backend, logits);
    std::vector<int32_t> out;
    for (int64_t r = 0; r < logits.dim(0); ++r) {
        const auto first = all.begin() + r * logits.dim(1);
        out.push_back(static_cast<int32_t>(std::max_element(first, first + logits.dim(1)) - first));
    }
    return out;
}

/// First token of the answer.
int32_t prefill(LoneSequence& s, const std::vector<int32_t>& prompt) {
    s.reset();
    const int64_t chunk = s.model().limits().max_rows, n = static_cast<int64_t>(prompt.size());
    int32_t next = 0;
    for (int64_t begin = 0; begin < n; begin += chunk) {
        const int64_t end = std::min(n, begin + chunk);
        next = argmax(s.model().backend(),
                      s.append({prompt.begin() + begin, prompt.begin() + end},
                               {static_cast<int32_t>(end - begin - 1)}))[0];
    }
    return next;
}

struct Speculation {
    std::vector<int32_t> tokens;
    std::vector<int> accepted;  // drafts accepted per step; drafts behind EOS count as rejected
};

Speculation speculate(LoneSequence& s, const std::vector<int32_t>& prompt, int32_t eos) {
    Backend& backend = s.model().backend();
    Speculation out;
    out.tokens.push_back(prefill(s, prompt));
    while (out.tokens.back() != eos && static_cast<int>(out.tokens.size()) < kMaxTokens) {
        const int32_t anchor = out.tokens.back();
        const int64_t base = s.length();
        const std::vector<uint8_t> bytes = to_host(backend, s.draft(anchor).tokens);
        std::vector<int32_t> rows{anchor};
        const auto* drafts = reinterpret_cast<const int32_t*>(bytes.data());
        rows.insert(rows.end(), drafts, drafts + bytes.size() / sizeof(int32_t));
        std::vector<int32_t> wanted(rows.size());
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<int32_t>(i);
        const std::vector<int32_t> target = argmax(backend, s.append(rows, wanted));
        size_t n = 0;
        while (n + 1 < rows.size() && rows[n + 1] == target[n] && target[n] != eos) ++n;
        out.accepted.push_back(static_cast<int>(n));
        s.truncate(base + 1 + static_cast<int64_t>(n));
        out.tokens.insert(
            out.tokens.end(), target.begin(), target.begin() + static_cast<int64_t>(n) + 1);
    }
    return out;
}

std::vector<int32_t> plain(LoneSequence& s, const std::vector<int32_t>& prompt, size_t length) {
    std::vector<int32_t> out{prefill(s, prompt)};
    while (out.size() < length) {
        out.push_back(argmax(s.model().backend(), s.append({out.back()}, {0}))[0]);
    }
    return out;
}

TEST(DraftAcceptanceFull, SpeculationEqualsPlainDecoding) {
    register_cpu_backend();
    ModelLimits limits;
    limits.max_rows = limits.max_logit_rows = 128;
    limits.max_seqs = limits.max_draft_seqs = 1;
    limits.max_positions = 2048;
    BackendOptions options;
    options.num_threads = 2;
    Result<LoadedModel> loaded = load_model(kTree + "/models/demo", "cpu", options, limits);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    Result<Tokenizer> tokenizer = Tokenizer::load(kTree + "/models/demo");
    ASSERT_TRUE(tokenizer.ok());
    Result<std::unique_ptr<LoneSequence>> sequence = LoneSequence::create(*loaded->model, 2048);
    ASSERT_TRUE(sequence.ok());
    const auto eos = static_cast<int32_t>(loaded->model->config().eos_token_id);

    const std::vector<std::vector<int32_t>> all = prompts(tokenizer.value());
    ASSERT_GE(all.size(), 40u);
    std::map<int, int> by_count;
    int steps = 0, accepted = 0;
    for (const std::vector<int32_t>& prompt : all) {
        const Speculation s = speculate(*sequence.value(), prompt, eos);
        EXPECT_EQ(s.tokens, plain(*sequence.value(), prompt, s.tokens.size()));
        for (int n : s.accepted) {
            ++steps;
            accepted += n;
            ++by_count[n];
        }
    }
    const double mean = static_cast<double>(accepted) / steps;
    std::cout << all.size() << " prompts, " << steps << " steps, accepted " << mean
              << " of 5 drafts; steps by number accepted:";
    for (const auto& [n, count] : by_count) std::cout << " " << n << ":" << count;
    std::cout << "\n";
    EXPECT_GT(mean, 2.5) << "heads that are wired wrongly are hardly ever accepted";
}

}  // namespace
}  // namespace deepinfer::testing
