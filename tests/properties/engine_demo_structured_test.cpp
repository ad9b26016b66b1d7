// Constraints and speculation on the demonstration checkpoint, thinking on and off: any number of
// drafts gives the bytes of none, drafts are really accepted, and what ends by itself has its form.
#include <gtest/gtest.h>

#include "deepinfer/recipe.h"
#include "deepinfer/recipe_constraint.h"
#include "deepinfer/structured_output.h"
#include "grammar/constraint_compiler.h"
#include "grammar/token_matcher.h"
#include "properties/engine_lab.h"

namespace deepinfer::testing {
namespace {

using Type = StructuredOutputArgs::Type;

struct Asked {
    Request request;
    recipe::Conversation conversation;
    StructuredOutputArgs args;  ///< with tools: of the answer behind the reasoning
};

Asked ask(const Tokenizer& t, recipe::Conversation c, StructuredOutputArgs args, uint64_t seed) {
    Asked a;
    a.request.prompt_token_ids = recipe::prompt_ids(t, recipe::encode_prompt(c)).value();
    a.request.sampling.so_args = args;
    a.request.sampling.temperature = seed % 2 == 0 ? 0.0 : 0.8;
    a.request.sampling.seq_seed = seed;
    a.request.sampling.logprobs = 1;
    a.request.sampling.max_tokens = c.thinking ? 220 : 90;
    a.conversation = std::move(c);
    a.args = std::move(args);
    return a;
}

std::vector<Asked> asked(const Tokenizer& t) {
    recipe::ToolDefinition tool;
    tool.name = "add";
    tool.client_parameters = tool.parameters =
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false})";
    tool.strict = true;
    std::vector<Asked> all;
    uint64_t seed = 0;
    for (const bool thinking : {false, true}) {
        const auto conversation = [&](const char* text) {
            recipe::Conversation c;
            c.thinking = thinking;
            c.effort = recipe::Effort::from_number(10);
            c.messages = {recipe::Message::user(text)};
            return c;
        };
        const auto form = [&](const char* text, Type type, const char* value) {
            all.push_back(
                ask(t, conversation(text), StructuredOutputArgs::of(type, value), seed++));
        };
        form("12 + 30", Type::kRegex, "[0-9]{1,4}");
        form(
            "What is the capital of France?",
            Type::kJson,
            R"({"type":"object","properties":{"city":{"type":"string","maxLength":20},"sure":{"type":"boolean"}},"required":["city","sure"],"additionalProperties":false})");
        form("Yes or no?", Type::kEbnf, "root ::= (\"yes\" | \"no\") (\" \" root){0,3}");
        form("7 * 8", Type::kJson, R"({"type":"array","items":{"type":"integer"},"maxItems":4})");
        recipe::Conversation c = conversation("Add 3 and 4.");
        c.tools = {tool};
        all.push_back(ask(t, c, recipe::output_constraint(c, true), seed++));
    }
    return all;
}

struct Outcome {
    std::vector<std::string> digests;
    std::vector<Completion> done;
    int64_t rows = 0, steps = 0;
};

Outcome run(int nextn, bool async) {
    EngineConfig config = lab_config("demo");
    config.nextn = nextn;
    config.async_scheduling = async;
    EngineLab lab(config);
    const Tokenizer& t = *lab.parts().tokenizer;
    grammar::ConstraintCompiler compiler(
        grammar::Vocabulary::of(t, lab.parts().info.vocab_size, lab.parts().info.eos_token_id));
    std::vector<uint64_t> numbers;
    for (const Asked& a : asked(t)) {
        const auto compiled = compiler.get(a.args);
        EXPECT_TRUE(compiled.ok()) << compiled.status().message();
        const bool open =
            grammar::reasoning_is_open(a.request.prompt_token_ids, compiler.vocabulary());
        EXPECT_EQ(open, a.conversation.thinking);
        numbers.push_back(
            lab.submit(a.request, std::make_shared<grammar::TokenMatcher>(compiled->grammar, open))
                .value());
    }
    lab.run_until_idle();
    Outcome out;
    for (const uint64_t n : numbers) {
        out.done.push_back(lab.completion(n));
        out.digests.push_back(digest(out.done.back()));
    }
    out.rows = lab.scheduler().stats().draft_rows;
    out.steps = lab.scheduler().stats().steps;
    return out;
}

TEST(EngineDemoStructured, DraftsDoNotMatterThinkingOrNot) {
    const Outcome plain = run(0, false);
    EXPECT_EQ(plain.rows, 0);
    for (const auto& [nextn, async] : {std::pair(2, true), std::pair(5, false)}) {
        const Outcome drafted = run(nextn, async);
        EXPECT_EQ(drafted.digests, plain.digests) << nextn << " async " << async;
        for (size_t i = 0; i < plain.done.size(); ++i)
            EXPECT_EQ(drafted.done[i].choices[0].text, plain.done[i].choices[0].text);
        EXPECT_GT(drafted.rows, 0);
        // The checkpoint's drafts are right often enough to save steps.
        EXPECT_LT(drafted.steps, plain.steps) << nextn << " async " << async;
    }
    // What ended by itself has its form, behind the reasoning where there was some.
    EngineLab lab(lab_config("demo"));
    const std::vector<Asked> all = asked(*lab.parts().tokenizer);
    int ended[2] = {0, 0};
    for (size_t i = 0; i < all.size(); ++i) {
        const CompletionChoice& c = plain.done[i].choices[0];
        if (c.finish_reason != FinishReason::kStop) continue;
        std::string text = c.text;
        if (all[i].conversation.thinking) {
            const size_t end = text.find("</think>");
            ASSERT_NE(end, std::string::npos) << text;
            text = text.substr(end + std::string("</think>").size());
        }
        const ConstraintReport r = check_constraint(all[i].args, {text});
        ASSERT_TRUE(r.ok);
        EXPECT_TRUE(r.accepted[0]) << c.text;
        ++ended[all[i].conversation.thinking];
    }
    EXPECT_GE(ended[0], 3);
    EXPECT_GE(ended[1], 2);
}

}  // namespace
}  // namespace deepinfer::testing
