// The field cases of sampling parameters and stop strings that need no model and no server; the
// other rows are counted as skipped with their reason.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "sampler/sampler.h"
#include "sampler/stop_matcher.h"
#include "support/golden_file.h"

namespace deepinfer {
namespace {

using json = nlohmann::json;

constexpr int64_t kVocab = 2048;  // the tiny checkpoint of the rows

json case_rows(const char* id) {
    std::ifstream file(testing::data_path("cases/sampling.json"));
    for (const json& c : json::parse(file)) {
        if (c["id"] == id) return c["rows"];
    }
    ADD_FAILURE() << id << " is missing";
    return {};
}

/// A request body as sampling parameters. Empty: the row is about JSON or HTTP, not about ranges.
std::optional<SamplingParams> params_of(const json& body, std::string* why_not) {
    SamplingParams p;
    for (const auto& [key, value] : body.items()) {
        const bool number = value.is_number();
        if (value.is_null()) {
            *why_not = "null is the door's word for the default";
            return {};
        } else if (key == "temperature" && number) {
            p.temperature = value;
        } else if (key == "top_p" && number) {
            p.top_p = value;
        } else if (key == "min_p" && number) {
            p.min_p = value;
        } else if (key == "top_k" && number && value != -1) {
            p.top_k = value;
        } else if (key == "presence_penalty" && number) {
            p.presence_penalty = value;
        } else if (key == "frequency_penalty" && number) {
            p.frequency_penalty = value;
        } else if (key == "repetition_penalty" && number) {
            p.repetition_penalty = value;
        } else if (key == "n" && number) {
            p.n = value;
        } else if (key == "max_tokens" && number) {
            p.max_tokens = value;
        } else if (key == "top_logprobs") {
            p.logprobs = value;
        } else if (key == "logprobs" && number) {
            p.logprobs = value;
        } else if (key == "logprobs" || key == "prompt") {
            continue;
        } else if (key == "stop_token_ids") {
            p.stop_token_ids = value.get<std::vector<int32_t>>();
        } else if (key == "allowed_token_ids") {
            p.allowed_token_ids = value.get<std::vector<int32_t>>();
        } else if (key == "logit_bias" && value.contains("recipe")) {
            for (int32_t v = 0; v < 1025; ++v) p.logit_bias.emplace_back(v, 1.0);
        } else if (key == "logit_bias") {
            for (const auto& [id, bias] : value.items()) {
                if (!bias.is_number() || id.find_first_not_of("-0123456789") != std::string::npos) {
                    *why_not = "the type or spelling of a bias entry is checked at the door";
                    return {};
                }
                p.logit_bias.emplace_back(std::stoi(id), bias.get<double>());
            }
        } else {
            *why_not = key + " " + value.dump() +
                       ": type, sign of seed or spelling of off, checked at the door";
            return {};
        }
    }
    return p;
}

int32_t choose(const SamplingParams& params) {
    std::vector<float> logits(kVocab);
    for (size_t v = 0; v < logits.size(); ++v)
        logits[v] = static_cast<float>((v * 7919) % 2048) * 1e-3f;
    const Sampler sampler(kVocab, {});
    const RowPlan plan(params);
    SampleRow row;
    row.logits = logits.data();
    row.plan = &plan;
    SamplerWorkspace ws;
    return sampler.sample(row, ws).token;
}

/// Runs the rows that validate() decides; returns the others with the reason.
std::vector<std::string> run_parameter_rows(const char* id) {
    SamplingParams greedy;
    greedy.temperature = 0;
    std::vector<std::string> left;
    for (const json& row : case_rows(id)) {
        SCOPED_TRACE(row.dump());
        const json& want = row["want"];
        std::string why_not = "numbers that JSON cannot hold are refused by the parser";
        std::optional<SamplingParams> p;
        if (row["in"].contains("body")) p = params_of(row["in"]["body"], &why_not);
        if (!p) {
            left.push_back(row["in"].dump() + ": " + why_not);
            continue;
        }
        const Status status = p->validate(kVocab);
        if (want == 400) {
            EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
            std::string field = row["in"]["body"].items().begin().key();
            if (field == "prompt") field = "logprobs";
            EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
            continue;
        }
        EXPECT_TRUE(status.ok()) << status.to_string();
        if (want == "greedy") {
            EXPECT_EQ(choose(*p), choose(greedy));
        } else if (want == "off") {
            EXPECT_EQ(choose(*p), choose({}));
        }
    }
    return left;
}

void skip_with(const std::vector<std::string>& left) {
    std::string all;
    for (const std::string& line : left) all += "\n  " + line;
    GTEST_SKIP() << left.size() << " rows belong to another part:" << all;
}

TEST(SamplingCases, ParameterRanges) {
    EXPECT_EQ(run_parameter_rows("C-048").size(), 14u);
}
TEST(SamplingCases, ParameterRowsDecidedElsewhere) {
    skip_with(run_parameter_rows("C-048"));
}
TEST(SamplingCases, TokenIdsOutsideTheVocabulary) {
    EXPECT_EQ(run_parameter_rows("C-051").size(), 4u);
}
TEST(SamplingCases, TokenIdRowsDecidedElsewhere) {
    skip_with(run_parameter_rows("C-051"));
}

std::string run_stops(const std::vector<std::string>& pieces,
                      const std::vector<std::string>& stops) {
    StopMatcher matcher(stops, false);
    std::string text;
    for (const std::string& piece : pieces) text += matcher.push(piece);
    return text + matcher.flush();
}

void expect_every_cut(const std::string& text,
                      const std::vector<std::string>& stops,
                      const std::string& want) {
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(run_stops({text}, stops), want);
    EXPECT_EQ(run_stops(bytes, stops), want);
    for (size_t cut = 1; cut < text.size(); ++cut) {
        EXPECT_EQ(run_stops({text.substr(0, cut), text.substr(cut)}, stops), want) << cut;
    }
}

TEST(SamplingCases, StopStringsOverTokens) {
    int ran = 0;
    for (const json& row : case_rows("C-049")) {
        SCOPED_TRACE(row.dump());
        const auto stops = row["in"]["stop"].get<std::vector<std::string>>();
        const std::string text = row["in"]["text"];
        const json& want = row["want"];
        const std::string content = want.contains("text") ? want["text"] : want["content"];
        expect_every_cut(text, stops, content);
        if (row["in"].contains("pieces")) {
            EXPECT_EQ(run_stops(row["in"]["pieces"].get<std::vector<std::string>>(), stops),
                      content);
        }
        ++ran;
    }
    EXPECT_EQ(ran, 11);
}

std::vector<std::string> run_flush_rows() {
    std::vector<std::string> left;
    for (const json& row : case_rows("C-050")) {
        SCOPED_TRACE(row.dump());
        if (!row["want"].contains("content") || row["in"].contains("thinking")) {
            left.push_back(row["in"].dump() + ": needs the output parser");
            continue;
        }
        const auto steps = row["in"]["step_texts"].get<std::vector<std::string>>();
        const auto stops = row["in"]["stop"].get<std::vector<std::string>>();
        EXPECT_EQ(run_stops(steps, stops), row["want"]["content"]);
        expect_every_cut(std::accumulate(steps.begin(), steps.end(), std::string()),
                         stops,
                         row["want"]["content"]);
    }
    return left;
}

TEST(SamplingCases, NothingAfterTheStopIsFlushed) {
    EXPECT_EQ(run_flush_rows().size(), 2u);
}
TEST(SamplingCases, FlushRowsOfTheOutputParser) {
    skip_with(run_flush_rows());
}

// C-046 in free text: the model's logits go further than the tokenizer.
TEST(SamplingCases, IdsWithoutATokenAreNeverChosen) {
    constexpr int64_t kIds = 2040;
    constexpr int32_t kBeyond = 2045;
    const Sampler sampler(kVocab, {1}, row_kernels(), kIds), narrow(kIds, {1});
    EXPECT_EQ(sampler.vocab(), kVocab);
    EXPECT_EQ(sampler.num_ids(), kIds);
    SamplerWorkspace ws;
    std::vector<float> logits(kVocab);
    for (size_t v = 0; v < logits.size(); ++v) logits[v] = static_cast<float>(v * 37 % 101) / 25;
    logits[kBeyond] += 50;
    logits[kVocab - 1] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> all_allowed((kVocab + 31) / 32, -1);
    TokenHistory history;
    history.set_prompt(std::vector<int32_t>{kBeyond, 7});
    for (const double temperature : {0.0, 0.7, 3.0}) {
        for (const int32_t top_k : {0, 5}) {
            SamplingParams params;
            params.temperature = temperature;
            params.top_k = top_k;
            params.logprobs = 3;
            params.presence_penalty = temperature > 1 ? 0.5 : 0;
            const RowPlan plan(params);
            SampleRow row;
            row.logits = logits.data();
            row.plan = &plan;
            row.history = &history;
            for (const bool masked : {false, true}) {
                row.grammar_mask = masked ? all_allowed.data() : nullptr;
                for (uint32_t position = 0; position < 50; ++position) {
                    row.position = position;
                    const SampleResult r = sampler.sample(row, ws);
                    ASSERT_LT(r.token, kIds);
                    ASSERT_FALSE(r.empty_mask);
                    EXPECT_EQ(r.nan_count, 0);
                    for (const TokenLogprob& t : r.top_logprobs) EXPECT_LT(t.token, kIds);
                    // As if those logits were not there at all.
                    EXPECT_EQ(r.token, narrow.sample(row, ws).token);
                }
                for (const int32_t id : sampler.support(row, ws)) EXPECT_LT(id, kIds);
            }
        }
    }
    // A prompt may hold such an id; it has a log-probability.
    EXPECT_GT(sampler.score(logits.data(), kBeyond, 0, ws).logprob, -1.0);
}

}  // namespace
}  // namespace deepinfer
