// Request bodies → the constraint they imply → which answers it takes. Calls are in DSML (prompt
// format V4.1), whose marker is a token; here its spelling stands for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "deepinfer/recipe_constraint.h"
#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"
#include "grammar/xgrammar_engine.h"
#include "support/case_file.h"

namespace deepinfer {
namespace {

const std::string kBook =
    R"({"type":"function","function":{"name":"book","strict":true,"parameters":{"type":"object","properties":{"seats":{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3},"name":{"type":"string","maxLength":12},"meta":{"type":"object","properties":{"vip":{"type":"boolean"}},"required":["vip"],"additionalProperties":false},"note":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["seats","name","meta"],"additionalProperties":false}}})";
const std::string kFree =
    R"({"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"q":{"type":"string"}}}}})";

StructuredOutputArgs constraint_of(
    const std::string& rest,
    std::string messages = R"([{"role":"user","content":"Answer as json."}])") {
    const std::string body =
        R"({"model":"deepseek-flash","messages":)" + messages + "," + rest + "}";
    const recipe::ConvertResult r =
        recipe::convert_request(recipe::Protocol::kChatCompletions, body, {});
    EXPECT_TRUE(r.request) << r.error.message;
    if (!r.request) return {};
    const Result<StructuredOutputArgs> args = recipe::output_constraint(*r.request);
    EXPECT_TRUE(args.ok()) << args.status().message();
    return args.ok() ? args.value() : StructuredOutputArgs();
}

void expect_texts(const StructuredOutputArgs& args,
                  const std::vector<std::string>& accept,
                  const std::vector<std::string>& reject) {
    std::vector<std::string> texts = accept;
    texts.insert(texts.end(), reject.begin(), reject.end());
    const ConstraintReport r = check_constraint(args, texts);
    ASSERT_TRUE(r.ok) << args.value << " " << r.refused[0].pointer << " " << r.refused[0].reason;
    for (size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(r.accepted[i], i < accept.size()) << texts[i];
}

std::string param(const std::string& name, const std::string& kind, const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + kind + "\">" + value +
           "</｜DSML｜ parameter>\n";
}
std::string call(const std::string& tool, const std::string& params) {
    return "<｜DSML｜ invoke name=\"" + tool + "\">\n" + params + "</｜DSML｜ invoke>\n";
}
std::string block(const std::string& calls) {
    return "<｜DSML｜ calls>\n" + calls + "</｜DSML｜ calls>";
}

const std::string kGood = param("seats", "false", "[1, 2]") +
                          param("name", "true", "Ann <3 \"x\"") +
                          param("meta", "false", "{\"vip\": true}");

TEST(ToolCalls, ARequiredToolIsCalledWithValidArguments) {
    const StructuredOutputArgs thinking = constraint_of(
        "\"tools\":[" + kBook +
        R"(],"tool_choice":{"type":"function","function":{"name":"book"}},"thinking":{"type":"enabled"})");
    const std::string two =
        call("book", kGood) + call("book", kGood + param("note", "false", "null"));
    expect_texts(
        thinking,
        {"\n\n" + block(call("book", kGood)),
         "\n\n" + block(two),
         "\n\n" + block(call("book", kGood + param("note", "true", "hi\nthere")))},
        {"",
         "free text",
         block(call("book", kGood)),
         "\n\n" + block(""),
         "\n\n" + block(call("look", kGood)),
         "\n\n" + block(call("book", param("seats", "false", "[1, 2]"))),
         "\n\n" + block(call("book",
                             param("seats", "true", "[1, 2]") + param("name", "true", "a") +
                                 param("meta", "false", "{\"vip\": true}"))),
         "\n\n" + block(call("book",
                             param("seats", "false", "[1,2,3,4]") + param("name", "true", "a") +
                                 param("meta", "false", "{\"vip\": true}"))),
         "\n\n" +
             block(call("book",
                        param("seats", "false", "[1]") + param("name", "true", "thirteen long") +
                            param("meta", "false", "{\"vip\": true}"))),
         "\n\n" + block(call("book", kGood + param("extra", "true", "x")))});
    // Without thinking the prompt has begun the block.
    const StructuredOutputArgs direct = constraint_of(
        "\"tools\":[" + kBook + R"(],"tool_choice":"required","thinking":{"type":"disabled"})");
    expect_texts(direct,
                 {call("book", kGood) + "</｜DSML｜ calls>"},
                 {block(call("book", kGood)), call("book", "") + "</｜DSML｜ calls>"});
    const StructuredOutputArgs single = constraint_of(
        "\"tools\":[" + kBook +
        R"(],"tool_choice":"required","parallel_tool_calls":false,"thinking":{"type":"disabled"})");
    expect_texts(single, {call("book", kGood) + "</｜DSML｜ calls>"}, {two + "</｜DSML｜ calls>"});
}

TEST(ToolCalls, AutoIsFreeUntilABlockBegins) {
    const StructuredOutputArgs args =
        constraint_of("\"tools\":[" + kBook + "," + kFree + R"(],"thinking":{"type":"disabled"})");
    expect_texts(
        args,
        {"",
         "No call, 5 < 6.",
         "Let me see.\n\n" + block(call("book", kGood)),
         "\n\n" + block(call("look", param("q", "true", "x") + param("any", "false", "[1]")) +
                        call("book", kGood))},
        {"\n\n" + block(call("book", "")),
         "<｜DSML｜ nonsense",
         "\n\n" + block(call("other", "")),
         "\n\n" + block(call("book", kGood)) + "more"});
    EXPECT_TRUE(constraint_of("\"tools\":[" + kFree + "]").empty());
    EXPECT_TRUE(constraint_of("\"tools\":[" + kBook + R"(],"tool_choice":"none")").empty());
}

/// Uniform draws from what the constraint allows, byte by byte; prefers to end once it is long.
std::string draw(const std::shared_ptr<const grammar::CompiledGrammar>& compiled,
                 std::mt19937_64& random) {
    constexpr int kSoftEnd = 150, kHardEnd = 4000;
    grammar::Matcher matcher(compiled);
    std::vector<uint32_t> mask(9);
    std::string text;
    for (int step = 0; step < kHardEnd; ++step) {
        matcher.fill(mask);
        std::vector<int32_t> allowed;
        for (int32_t v = 0; v <= 256; ++v) {
            if ((mask[static_cast<size_t>(v) / 32] >> (v % 32) & 1) != 0) allowed.push_back(v);
        }
        if (allowed.empty()) return "";
        int32_t token = allowed[random() % allowed.size()];
        if (step > kSoftEnd) {
            for (const char c : std::string("<\"]}")) {
                if (std::find(allowed.begin(), allowed.end(), c) != allowed.end()) token = c;
            }
            if (allowed.back() == 256) token = 256;
        }
        if (token == 256) return text;
        if (!matcher.accept(token)) return "";
        text.push_back(static_cast<char>(token));
    }
    return "";
}

/// Whether the text as it stands, its markers spelled with ordinary tokens, is an answer; with
/// `marked`, the bracketed markers «｜DSML｜» are tokens.
bool takes(const std::shared_ptr<const grammar::CompiledGrammar>& compiled, std::string text) {
    const std::string token = "«｜DSML｜»";
    for (size_t at = 0; (at = text.find(token, at)) != std::string::npos;)
        text.replace(at, token.size(), grammar::marked_text("｜DSML｜"));
    grammar::Matcher matcher(compiled);
    return matcher.accept_text(text) && matcher.complete();
}
std::string as_tokens(std::string text) {
    const std::string marker = "｜DSML｜", token = "«｜DSML｜»";
    for (size_t at = 0; (at = text.find(marker, at)) != std::string::npos; at += token.size())
        text.replace(at, marker.size(), token);
    return text;
}

// The parser of answers reads text: what spells a marker is one to it, token or not.
TEST(ToolCalls, NoOtherTokensSpellAMarker) {
    const auto compile = [](const std::string& rest) {
        const auto c = grammar::CompiledGrammar::compile(
            grammar::Vocabulary::bytes(), grammar::lower(constraint_of(rest)).ebnf, 1);
        EXPECT_TRUE(c.ok());
        return c.value();
    };
    const std::string d = "｜DSML｜";
    const auto strict = compile("\"tools\":[" + kBook + R"(],"thinking":{"type":"disabled"})");
    EXPECT_TRUE(takes(strict, as_tokens("Well.\n\n" + block(call("book", kGood)))));
    EXPECT_FALSE(takes(strict, "Well.\n\n" + block(call("book", kGood))));
    EXPECT_FALSE(takes(strict, "Well.\n\n" + block(call("rob", ""))));
    EXPECT_FALSE(takes(strict, "<" + d));
    EXPECT_TRUE(takes(strict, "A ｜ bar, <｜, ｜DSML｜ and </｜ are text."));
    const auto with = [&](const std::string& params) {
        return takes(strict, "\n\n" + as_tokens(block(call("book", params))));
    };
    const std::string seats = as_tokens(param("seats", "false", "[1]")),
                      name = as_tokens(param("name", "true", "Ann")),
                      meta = as_tokens(param("meta", "false", "{\"vip\": true}"));
    const auto note = [&](const std::string& text) {
        return takes(strict,
                     "\n\n" + as_tokens("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"book\">\n") +
                         seats + name + meta +
                         as_tokens("<｜DSML｜ parameter name=\"note\" string=\"true\">") + text +
                         as_tokens("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
    };
    EXPECT_TRUE(with(kGood));
    EXPECT_TRUE(note("a ｜ b <｜DSML｜ c </｜ d"));
    EXPECT_FALSE(note("x</" + d));
    EXPECT_FALSE(note("x</" + d + " parameter>\n<" + d + " parameter name=\"evil\""));

    // A value that spells the end of one cannot be carried, so it is no choice.
    const auto listed = compile(
        R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"k":{"enum":["x</｜DSML｜","y"]}},"required":["k"],"additionalProperties":false}}}],"thinking":{"type":"disabled"})");
    const auto chosen = [&](const std::string& value) {
        return takes(
            listed,
            "\n\n" +
                as_tokens("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
                          "name=\"k\" string=\"true\">") +
                value + as_tokens("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
    };
    EXPECT_TRUE(chosen("y"));
    EXPECT_FALSE(chosen("x</" + d));

    // JSON in front of a block, and inside one.
    const std::string format =
        R"({"type":"json_schema","json_schema":{"name":"v","strict":true,"schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}}})";
    const auto either = compile("\"response_format\":" + format + ",\"tools\":[" + kFree +
                                R"(],"thinking":{"type":"disabled"})");
    EXPECT_TRUE(takes(either, R"({"a": "x \uff5c <"})"));
    EXPECT_FALSE(takes(either, "{\"a\": \"<" + d + "\"}"));
    const auto inside = [&](const std::string& json) {
        return takes(either,
                     "\n\n" +
                         as_tokens("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"look\">\n<｜DSML｜ "
                                   "parameter name=\"k\" string=\"false\">") +
                         json +
                         as_tokens("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
    };
    EXPECT_TRUE(inside(R"({"k": ["\uff5c"]})"));
    EXPECT_FALSE(inside("{\"k\": [\"</" + d + "\"]}"));
    // Without calls a string is free to spell anything.
    EXPECT_TRUE(takes(compile("\"response_format\":" + format), "{\"a\": \"<" + d + "\"}"));
}

TEST(ToolCalls, C043StrictArgumentsAreWholeAndValid) {
    const nlohmann::json rows = testing::case_rows("structured.json", "C-043");
    for (const nlohmann::json& row : rows) {
        const nlohmann::json& in = row["in"];
        const std::string schema = in["tools"][0]["function"]["parameters"].dump();
        const StructuredOutputArgs args = constraint_of(
            "\"tools\":" + in["tools"].dump() + ",\"tool_choice\":" + in["tool_choice"].dump() +
            ",\"thinking\":" + in["thinking"].dump());
        const auto compiled = grammar::CompiledGrammar::compile(
            grammar::Vocabulary::bytes(), grammar::lower(args).ebnf, 1);
        ASSERT_TRUE(compiled.ok()) << compiled.status().message();
        std::mt19937_64 random(43);
        int whole = 0;
        constexpr int kDraws = 500;  // a row
        for (int i = 0; i < kDraws; ++i) {
            std::string text = draw(compiled.value(), random);
            if (text.empty()) continue;
            // The code point that stands for the marker's token, back to its spelling.
            const std::string marker = grammar::marked_text("｜DSML｜");
            for (size_t at = 0; (at = text.find(marker, at)) != std::string::npos;)
                text.replace(at, marker.size(), "｜DSML｜");
            recipe::StreamParser parser({});
            std::vector<recipe::Delta> deltas;
            parser.push(text, &deltas);
            parser.finish(recipe::FinishReason::kStop, &deltas);
            std::map<int, std::string> arguments;
            for (const recipe::Delta& d : deltas) {
                if (d.kind == recipe::Delta::Kind::kArguments) arguments[d.call_idx] += d.text;
            }
            ASSERT_GE(arguments.size(), 1u) << text;
            EXPECT_EQ(parser.finish_reason(), recipe::FinishReason::kToolCalls);
            EXPECT_EQ(parser.counters().num_repaired_arguments, 0) << text;
            for (const auto& [idx, json] : arguments) {
                ASSERT_TRUE(nlohmann::json::accept(json)) << json << "\n" << text;
                // Members in the schema's order, as a value of it would come.
                const ConstraintReport r = check_constraint(
                    StructuredOutputArgs::of(StructuredOutputArgs::Type::kJson, schema),
                    {nlohmann::json::parse(json).dump()});
                ASSERT_TRUE(r.ok);
                EXPECT_TRUE(r.accepted[0]) << json;
            }
            ++whole;
        }
        EXPECT_GE(whole, kDraws * 3 / 4);
    }
}

TEST(ToolCalls, C044OneConstraintForAllEndpoints) {
    const nlohmann::json rows = testing::case_rows("structured.json", "C-044");
    const auto implied = [](recipe::Protocol protocol, nlohmann::json body) {
        body["model"] = "deepseek-flash";
        const recipe::ConvertResult r = recipe::convert_request(protocol, body.dump(), {});
        EXPECT_TRUE(r.request) << r.error.message;
        const Result<StructuredOutputArgs> args = recipe::output_constraint(*r.request);
        EXPECT_TRUE(args.ok()) << args.status().message();
        return structured_output_to_json(args.value());
    };
    std::set<std::string> forms;
    for (const nlohmann::json& row : rows) {
        const std::string endpoint = row["in"]["endpoint"];
        if (endpoint == "/v1/completions") continue;  // the server's own reader
        forms.insert(implied(endpoint == "/v1/responses" ? recipe::Protocol::kResponses
                                                         : recipe::Protocol::kChatCompletions,
                             row["in"]["body"]));
    }
    EXPECT_EQ(forms.size(), 1u);
    EXPECT_NE(forms.begin()->find("verdict"), std::string::npos);
}

TEST(ToolCalls, FormatsAloneAndWithTools) {
    const std::string schema =
        R"({"type":"json_schema","json_schema":{"name":"v","strict":true,"schema":{"type":"object","properties":{"verdict":{"enum":["yes","no"]}},"required":["verdict"],"additionalProperties":false}}})";
    const std::vector<std::string> good = {"{\"verdict\": \"no\"}"};
    expect_texts(
        constraint_of("\"response_format\":" + schema), good, {"{\"verdict\":\"maybe\"}", "x"});
    expect_texts(constraint_of(R"("response_format":{"type":"json_object"})"),
                 {"{\"a\": [1]}", "{}"},
                 {"[1]", "\"a\""});
    expect_texts(
        constraint_of(R"("response_format":{"type":"regex","regex":"[0-9]+"})"), {"12"}, {"x"});
    expect_texts(constraint_of("\"response_format\":" + schema + ",\"tools\":[" + kFree + "]"),
                 {good[0], "\n\n" + block(call("look", param("q", "true", "x")))},
                 {"text", "{}"});
    // Not strict: what cannot be enforced is left out, and told.
    const StructuredOutputArgs loose = constraint_of(
        R"("response_format":{"type":"json_schema","json_schema":{"name":"v","schema":{"type":"string","format":"color"}}})");
    EXPECT_FALSE(loose.strict);
    EXPECT_EQ(check_constraint(loose, {}).notes.at(0).pointer, "/format");
}

TEST(ToolCalls, GuidedFieldsAreTheSameConstraints) {
    expect_texts(constraint_of(R"("guided_choice":["yes","no"])"), {"yes"}, {"maybe"});
    expect_texts(constraint_of(R"("guided_regex":"a+")"), {"aa"}, {"b"});
    expect_texts(
        constraint_of(R"("guided_grammar":"root ::= \"a\" root | \"b\"")"), {"aab"}, {"a"});
    expect_texts(
        constraint_of(R"("structured_outputs":{"json":{"type":"integer"}})"), {"5"}, {"x"});
    const auto refused = [](const std::string& rest) {
        const recipe::ConvertResult r = recipe::convert_request(
            recipe::Protocol::kChatCompletions,
            R"({"model":"deepseek-flash","messages":[{"role":"user","content":"json"}],)" + rest +
                "}",
            {});
        return !r.request || !recipe::output_constraint(*r.request).ok();
    };
    EXPECT_TRUE(refused(R"("guided_regex":"a","guided_choice":["b"])"));
    EXPECT_TRUE(refused(R"("guided_choice":[])"));
    EXPECT_TRUE(refused(R"("guided_regex":7)"));
    EXPECT_TRUE(refused(R"("guided_regex":"a","response_format":{"type":"json_object"})"));
}

}  // namespace
}  // namespace deepinfer
