// The field cases of structured output that need a running model, on the tiny checkpoint `nano`;
// rows read from tests/data/cases. C-037, C-040 to C-042 and C-045 need none and stand in
// grammar/, C-043 and C-044 are questions of the request's form and stand in tests/grammar.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "deepinfer/structured_output.h"
#include "grammar/constraint_compiler.h"
#include "grammar/token_matcher.h"
#include "properties/engine_lab.h"
#include "support/case_file.h"

namespace deepinfer::testing {
namespace {

using nlohmann::json;
using Type = StructuredOutputArgs::Type;

constexpr const char* kEnd = "</think>";

/// One engine, and what is needed to constrain its requests.
struct Bench {
    explicit Bench(int nextn = 0, const DraftOverride& drafts = {})
        : lab(config(nextn), hooks(drafts)),
          tokenizer(*lab.parts().tokenizer),
          compiler(grammar::Vocabulary::of(
              tokenizer, lab.parts().info.vocab_size, lab.parts().info.eos_token_id)) {}

    static EngineConfig config(int nextn) {
        EngineConfig c = lab_config("nano");
        c.nextn = nextn;
        return c;
    }
    static EngineHooks hooks(const DraftOverride& drafts) {
        EngineHooks h;
        h.drafts = drafts;
        return h;
    }

    /// thinking: the prompt leaves reasoning open, and the model likes to end it.
    Request request(const StructuredOutputArgs& args, bool thinking, uint64_t seed) const {
        Request r;
        r.prompt_token_ids = random_ids(300 + seed, 12, lab_vocab());
        r.sampling.so_args = args;
        r.sampling.seq_seed = seed;
        r.sampling.temperature = 1;
        r.sampling.max_tokens = 200;
        r.sampling.logprobs = 1;
        if (thinking) {
            r.prompt_token_ids.push_back(tokenizer.id_of("<think>"));
            r.sampling.logit_bias = {{tokenizer.id_of(kEnd), 9.0}};
        }
        return r;
    }
    int64_t lab_vocab() const { return compiler.vocabulary().width(); }

    Completion run(const Request& r) {
        const auto compiled = compiler.get(r.sampling.so_args);
        EXPECT_TRUE(compiled.ok()) << compiled.status().message();
        const bool open = grammar::reasoning_is_open(r.prompt_token_ids, compiler.vocabulary());
        const auto number =
            lab.submit(r, std::make_shared<grammar::TokenMatcher>(compiled->grammar, open));
        EXPECT_TRUE(number.ok()) << number.status().message();
        lab.run_until_idle();
        return lab.completion(number.value());
    }

    EngineLab lab;
    const Tokenizer& tokenizer;
    grammar::ConstraintCompiler compiler;
};

StructuredOutputArgs schema_args(const json& schema, bool any_whitespace = true) {
    StructuredOutputArgs args = StructuredOutputArgs::of(Type::kJson, schema.dump());
    args.any_whitespace = any_whitespace;
    return args;
}

bool valid(const StructuredOutputArgs& args, const std::string& text) {
    const ConstraintReport r = check_constraint(args, {text});
    return r.ok && r.accepted[0] && json::accept(text);
}

/// (reasoning, content); without the marker everything is reasoning.
std::pair<std::string, std::string> split(const std::string& text) {
    const size_t end = text.find(kEnd);
    if (end == std::string::npos) return {text, ""};
    return {text.substr(0, end), text.substr(end + std::string(kEnd).size())};
}

TEST(StructuredCases, C038TheConstraintBeginsBehindTheReasoning) {
    const json rows = case_rows("structured.json", "C-038");
    Bench bench;
    const grammar::Vocabulary& v = bench.compiler.vocabulary();
    std::vector<uint32_t> free = v.defined_mask();
    for (const int32_t id : {v.eos(), v.marker_id(grammar::kMarkerTool)})
        free[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
    for (const json& row : rows) {
        const json& in = row["in"];
        const StructuredOutputArgs args =
            schema_args(in["response_format"]["json_schema"]["schema"]);
        const bool thinking = in["thinking"]["type"] == "enabled";
        if (in.contains("script")) {
            const auto compiled = bench.compiler.get(args);
            ASSERT_TRUE(compiled.ok());
            grammar::TokenMatcher matcher(compiled->grammar, true);
            const auto [reasoning, content] = split(in["script"]);
            ASSERT_EQ(content, row["want"]["content"]);
            for (const int32_t id : bench.tokenizer.encode(reasoning)) {
                EXPECT_EQ(matcher.mask(), free);  // braces move nothing
                EXPECT_FALSE(matcher.complete());
                matcher.commit(id);
            }
            matcher.commit(bench.tokenizer.id_of(kEnd));
            for (const int32_t id : bench.tokenizer.encode(content)) {
                EXPECT_NE(matcher.mask(), free);
                EXPECT_FALSE(matcher.complete());
                ASSERT_TRUE(matcher.accept(id));
            }
            EXPECT_TRUE(matcher.complete());
            continue;
        }
        int stopped = 0;
        constexpr uint64_t kSeeds = 4;
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
            Request r = bench.request(args, thinking, seed);
            r.sampling.max_tokens = in["max_tokens"];
            const bool cut = in["max_tokens"] == 3;
            if (cut) r.sampling.logit_bias.clear();
            // Random weights would write the one string for ever.
            else
                r.sampling.logit_bias.emplace_back(bench.tokenizer.encode("\"")[0], 4.0);
            const CompletionChoice c = bench.run(r).choices[0];
            const auto [reasoning, content] =
                thinking ? split(c.text) : std::make_pair(std::string(), c.text);
            if (cut) {
                EXPECT_EQ(c.finish_reason, FinishReason::kLength);
                EXPECT_EQ(content, "");
                EXPECT_NE(reasoning, "");
                ++stopped;
                continue;
            }
            if (c.finish_reason != FinishReason::kStop) continue;
            ++stopped;
            EXPECT_TRUE(valid(args, content)) << c.text;
        }
        EXPECT_GE(stopped, static_cast<int>(kSeeds) / 2) << in.dump();
    }
}

/// The longest run of blanks outside strings, and whether each is one behind a comma or colon.
std::pair<int, bool> blanks_outside_strings(const std::string& text) {
    int longest = 0, run = 0;
    bool inside = false, tidy = true;
    for (size_t i = 0; i < text.size(); ++i) {
        if (inside && text[i] == '\\') {
            ++i;
            continue;
        }
        if (text[i] == '"') inside = !inside;
        const bool blank = !inside && std::isspace(static_cast<unsigned char>(text[i])) != 0;
        run = blank ? run + 1 : 0;
        longest = std::max(longest, run);
        if (blank && (i == 0 || (text[i - 1] != ',' && text[i - 1] != ':'))) tidy = false;
    }
    return {longest, tidy};
}

TEST(StructuredCases, C039BlanksEnd) {
    const json rows = case_rows("structured.json", "C-039");
    Bench bench;
    std::vector<std::pair<int32_t, double>> blanks;
    for (int32_t id = 0; id < bench.tokenizer.vocab_size(); ++id) {
        const std::string_view b = bench.tokenizer.token_bytes(id);
        if (!bench.tokenizer.is_added(id) && !b.empty() &&
            b.find_first_not_of(" \t\r\n") == std::string_view::npos)
            blanks.emplace_back(id, 30);
    }
    ASSERT_GE(blanks.size(), 3u);
    int stopped = 0, runs = 0;
    for (const json& row : rows) {
        const json& in = row["in"];
        const bool tidy = in.contains("any_whitespace");
        const StructuredOutputArgs args = in.contains("schema")
                                              ? schema_args(in["schema"], !tidy)
                                              : StructuredOutputArgs::of(Type::kJsonObject, "");
        for (uint64_t seed = 0; seed < 3; ++seed) {
            Request r = bench.request(args, false, seed);
            r.sampling.logit_bias = blanks;
            // Blanks inside a string are the client's matter: there the quote is as welcome.
            r.sampling.logit_bias.emplace_back(bench.tokenizer.encode("\"")[0], 30);
            r.sampling.logit_bias.emplace_back(bench.tokenizer.encode("}")[0], 20);
            const CompletionChoice c = bench.run(r).choices[0];
            const auto [longest, all_tidy] = blanks_outside_strings(c.text);
            EXPECT_LE(longest, tidy ? 1 : 20) << c.text;
            EXPECT_TRUE(all_tidy || !tidy) << c.text;
            ++runs;
            if (c.finish_reason != FinishReason::kStop) continue;
            ++stopped;
            EXPECT_TRUE(valid(args, c.text)) << c.text;
        }
    }
    EXPECT_GE(stopped, runs / 2);
}

TEST(StructuredCases, C046IdsWithoutATokenAreMasked) {
    const json rows = case_rows("structured.json", "C-046");
    Bench bench;
    const int64_t width = bench.tokenizer.vocab_size() + 8;  // logits beyond the known tokens
    const auto vocabulary =
        grammar::Vocabulary::of(bench.tokenizer, width, bench.lab.parts().info.eos_token_id);
    grammar::ConstraintCompiler compiler(vocabulary);
    const auto compiled = compiler.get(schema_args(rows[0]["in"]["schema"]));
    ASSERT_TRUE(compiled.ok());
    for (const bool reasoning : {false, true}) {
        grammar::TokenMatcher matcher(compiled->grammar, reasoning);
        const std::vector<uint32_t> mask = matcher.mask();
        ASSERT_EQ(static_cast<int64_t>(mask.size()), (width + 31) / 32);  // as wide as the logits
        for (int64_t id = bench.tokenizer.vocab_size(); id < static_cast<int64_t>(mask.size()) * 32;
             ++id) {
            EXPECT_EQ(mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1, 0u) << id;
            EXPECT_FALSE(matcher.accept(static_cast<int32_t>(id)));
        }
    }
    Request r = bench.request({}, false, 0);
    r.sampling.logit_bias = {{static_cast<int32_t>(width), 100.0}};
    EXPECT_FALSE(bench.lab.submit(r).ok());
}

/// Proposes the same ids at every step.
DraftOverride always(std::vector<int32_t> ids) {
    return [ids = std::move(ids)](const SlotState&, Proposal* p) {
        for (size_t k = 0; k < p->tokens.size(); ++k) p->tokens[k] = ids[k % ids.size()];
    };
}

TEST(StructuredCases, C065NoMarkupBeforeTheReasoningEnds) {
    const json rows = case_rows("speculation.json", "C-065");
    ASSERT_EQ(rows.size(), 2u);
    Bench off;
    const Tokenizer& t = off.tokenizer;
    const int32_t marker = t.id_of("｜DSML｜"), end = t.id_of(kEnd);
    ASSERT_GE(marker, 0);
    const StructuredOutputArgs calls = StructuredOutputArgs::of(
        Type::kStructuralTag,
        R"({"type":"structural_tag","format":{"type":"tag","begin":"<｜DSML｜ calls>","content":{"type":"regex","pattern":"[a-z]{2,9}"},"end":"</｜DSML｜ calls>"}})");
    const StructuredOutputArgs schema = schema_args(
        {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}, {"required", {"a"}}});
    const auto id = [&](const char* text) { return t.encode(text)[0]; };
    const std::vector<std::vector<int32_t>> hostile = {{id("<"), marker, id(" c")},
                                                       {end, id("{"), id("\"")}};
    for (size_t i = 0; i < rows.size(); ++i) {
        Bench on(3, always(hostile[i]));
        for (uint64_t seed = 0; seed < 2; ++seed) {
            Request r = off.request(i == 0 ? calls : schema, true, seed);
            r.sampling.max_tokens = 60;
            const Completion plain = off.run(r), drafted = on.run(r);
            EXPECT_EQ(digest(drafted), digest(plain)) << "row " << i << " seed " << seed;
            // Calls that began in reasoning would have no form: the marker is no word of it, and
            // what a draft proposes adds none.
            const auto& ids = drafted.choices[0].token_ids;
            const auto stop = std::find(ids.begin(), ids.end(), end);
            const auto& plain_ids = plain.choices[0].token_ids;
            const auto plain_stop = std::find(plain_ids.begin(), plain_ids.end(), end);
            EXPECT_EQ(std::count(ids.begin(), stop, marker),
                      std::count(plain_ids.begin(), plain_stop, marker));
        }
    }
}

TEST(StructuredCases, C073TheClosingTagInsideADraftBlock) {
    const json rows = case_rows("speculation.json", "C-073");
    Bench off;
    const Tokenizer& t = off.tokenizer;
    const StructuredOutputArgs args = StructuredOutputArgs::of(
        Type::kJson,
        R"({"type":"object","properties":{"a":{"type":"integer","maximum":99,"minimum":0}},"required":["a"],"additionalProperties":false})");
    const int32_t end = t.id_of(kEnd);
    const std::vector<int32_t> object = t.encode("{\"a\":1}"), words = t.encode("free words");
    int finished = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
        const bool free_words = i + 1 == rows.size();
        const size_t place = free_words ? 0 : i;  // "position N is </think>"
        Bench on(5, [&, place](const SlotState& s, Proposal* p) {
            // Whatever comes before stays the model's own; behind the tag the object, or words.
            const auto& tail = free_words ? words : object;
            (void)s;
            for (size_t k = place; k < p->tokens.size(); ++k)
                p->tokens[k] = k == place ? end : tail[(k - place - 1) % tail.size()];
        });
        for (uint64_t seed = 0; seed < 2; ++seed) {
            Request r = off.request(args, true, seed);
            r.sampling.max_tokens = 60;
            r.sampling.temperature = rows[i]["in"].value("temperature", 0.0);
            const Completion plain = off.run(r), drafted = on.run(r);
            EXPECT_EQ(digest(drafted), digest(plain)) << "row " << i << " seed " << seed;
            if (drafted.choices[0].finish_reason != FinishReason::kStop) continue;
            ++finished;
            EXPECT_TRUE(valid(args, split(drafted.choices[0].text).second))
                << drafted.choices[0].text;
        }
    }
    EXPECT_GE(finished, 4);
}

}  // namespace
}  // namespace deepinfer::testing
