// The handed cases of prompts and parsing (tests/data/cases/recipe_parser.json), one row at a time.
// Rows that need a running server or a model are counted and named at the end; everything else must
// be judged.
#include <gtest/gtest.h>

#include <algorithm>

#include "recipe/recipe_test_util.h"

namespace deepinfer::recipe {
namespace {

using ::deepinfer::testing::read_packed;
using ::deepinfer::testing::released_tokenizer;

const char* const kMarker = "<｜DSML｜ parameter name=\"";

TestJson load_cases() {
    return TestJson::parse(read_packed("cases/recipe_parser.json"));
}

const TestJson& find_case(const TestJson& cases, const std::string& id) {
    for (const TestJson& c : cases)
        if (c["id"] == id) return c;
    ADD_FAILURE() << "no case " << id;
    static const TestJson none;
    return none;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

struct Outcome {
    std::optional<ConvertedRequest> request;
    ApiError error;
    PromptText prompt;
    std::vector<int32_t> ids;
};

/// Converts and encodes; a body without a model gets the served one.
Outcome run_body(TestJson body, const std::string& endpoint, bool parse_specials = false) {
    if (!body.contains("model")) body["model"] = "deepseek-flash";
    const Protocol protocol = endpoint == "/v1/messages"    ? Protocol::kMessages
                              : endpoint == "/v1/responses" ? Protocol::kResponses
                                                            : Protocol::kChatCompletions;
    Outcome out;
    ConvertResult converted = convert_request(protocol, body.dump(), {});
    out.error = converted.error;
    if (!converted.request) return out;
    out.request = std::move(converted.request);
    out.prompt = encode_prompt(out.request->conversation);
    if (parse_specials) {
        out.ids = released_tokenizer().encode(out.prompt.text, SpecialTokens::kParse);
    } else {
        Result<std::vector<int32_t>> ids = prompt_ids(released_tokenizer(), out.prompt);
        EXPECT_TRUE(ids.ok()) << ids.status().to_string();
        if (ids.ok()) out.ids = std::move(ids).value();
    }
    return out;
}

bool ends_with(const std::string& text, const std::string& tail) {
    return text.size() >= tail.size() &&
           text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

/// Ids of control tokens that content brought in: more of them than the template flagged.
int64_t extra_ids(const Outcome& out, int32_t id) {
    int64_t flagged = 0;
    for (const SpecialRange& r : out.prompt.specials)
        if (released_tokenizer().id_of(
                std::string_view(out.prompt.text).substr(r.begin, r.end - r.begin)) == id)
            ++flagged;
    return std::count(out.ids.begin(), out.ids.end(), id) - flagged;
}

void check_refusal(const Outcome& out, const TestJson& want) {
    ASSERT_FALSE(out.request.has_value()) << "accepted: " << want.dump();
    EXPECT_EQ(out.error.status, want["status"].get<int>());
    if (want.contains("param")) {
        EXPECT_NE(out.error.param.find(want["param"].get<std::string>()), std::string::npos)
            << out.error.param;
    }
    if (want.contains("message_mentions")) {
        EXPECT_NE(out.error.message.find(want["message_mentions"].get<std::string>()),
                  std::string::npos)
            << out.error.message;
    }
}

void check_prompt(const Outcome& out, const TestJson& want) {
    ASSERT_TRUE(out.request.has_value()) << out.error.message;
    const std::string& text = out.prompt.text;
    if (want.contains("prompt")) {
        EXPECT_EQ(text, want["prompt"].get<std::string>());
    }
    if (want.contains("prompt_ends_with")) {
        EXPECT_TRUE(ends_with(text, want["prompt_ends_with"].get<std::string>())) << text;
    }
    if (want.contains("prompt_has")) {
        EXPECT_NE(text.find(want["prompt_has"].get<std::string>()), std::string::npos) << text;
    }
    if (want.contains("schema_line")) {
        EXPECT_NE(text.find("\n" + want["schema_line"].get<std::string>() + "\n"),
                  std::string::npos)
            << text;
    }
    if (want.contains("ids")) {
        EXPECT_EQ(out.ids, want["ids"].get<std::vector<int32_t>>());
    }
    if (want.contains("ids_absent_inside_content")) {
        for (const TestJson& id : want["ids_absent_inside_content"])
            EXPECT_EQ(extra_ids(out, id.get<int32_t>()), 0) << id;
    }
}

/// Rows of {body, endpoint} -> prompt or refusal.
void run_body_rows(const std::string& id, size_t num_rows) {
    const TestJson cases = load_cases();
    std::vector<std::string> prompts;
    size_t judged = 0;
    for (const TestJson& row : find_case(cases, id)["rows"]) {
        const TestJson& in = row["in"];
        SCOPED_TRACE(id + " " + in.dump().substr(0, 300));
        if (!in.contains("body")) continue;
        ++judged;
        const Outcome out = run_body(
            in["body"], in.value("endpoint", ""), in.value("special_in_content", "") == "parse");
        prompts.push_back(out.prompt.text);
        const TestJson& want = row["want"];
        if (want.is_string()) {  // "prompt of row 1"
            const std::string sentence = want.get<std::string>();
            const size_t at = std::stoul(sentence.substr(sentence.rfind(' ') + 1)) - 1;
            EXPECT_EQ(out.prompt.text, prompts.at(at));
        } else if (want.value("status", 200) != 200) {
            check_refusal(out, want);
        } else {
            check_prompt(out, want);
        }
    }
    EXPECT_EQ(judged, num_rows);
}

TEST(RecipeCases, C010ControlStringsInContent) {
    run_body_rows("C-010", 5);
}
TEST(RecipeCases, C013SystemsAndUsers) {
    run_body_rows("C-013", 6);
}
TEST(RecipeCases, C014Reasoning) {
    run_body_rows("C-014", 5);
}
TEST(RecipeCases, C018Messages) {
    run_body_rows("C-018", 4);
}
TEST(RecipeCases, C019ReasoningItems) {
    run_body_rows("C-019", 3);
}
TEST(RecipeCases, C020ThinkingSwitches) {
    run_body_rows("C-020", 7);
}
TEST(RecipeCases, C021Prefix) {
    run_body_rows("C-021", 4);
}
TEST(RecipeCases, C022ContentParts) {
    run_body_rows("C-022", 5);
}

TEST(RecipeCases, C011Effort) {
    const TestJson cases = load_cases();
    for (const TestJson& row : find_case(cases, "C-011")["rows"]) {
        SCOPED_TRACE(row.dump());
        TestJson body = row["in"].value("body", TestJson::object());
        if (!row["in"].contains("body")) {
            body["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
            body["reasoning_effort"] = row["in"]["reasoning_effort"];
        }
        const Outcome out = run_body(body, "");
        const TestJson& want = row["want"];
        if (want.contains("status")) {
            check_refusal(out, want);
        } else {
            check_prompt(out, want);
            if (want.contains("number")) {
                EXPECT_NE(
                    out.prompt.text.find("Reasoning Effort: " + want["number"].dump() + " (range"),
                    std::string::npos);
            }
        }
    }
}

TEST(RecipeCases, C012PythonJson) {
    const TestJson cases = load_cases();
    for (const TestJson& row : find_case(cases, "C-012")["rows"]) {
        SCOPED_TRACE(row.dump());
        if (row["in"].contains("body")) {
            check_prompt(run_body(row["in"]["body"], ""), row["want"]);
            continue;
        }
        // A value in a tool's schema is shown in the prompt; one that is no JSON makes the body
        // none.
        const std::string json = row["in"]["json"].get<std::string>();
        const std::string body =
            "{\"model\":\"deepseek-flash\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
            "\"tools\":[{\"type\":\"function\","
            "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"default\":" +
            json + "}}}]}";
        // (Repeated keys are refused in bodies; the spelling is asked of arguments then.)
        const bool repeated = json.find("\"a\":1,\"b\":2,\"a\"") != std::string::npos;
        if (repeated) {
            Conversation c;
            c.messages = {Message::user("q"), Message::assistant("")};
            c.messages[1].tool_calls = {{"i", "f", "{\"v\": " + json + "}"}};
            EXPECT_NE(
                encode_prompt(c).text.find(">" + row["want"]["text"].get<std::string>() + "</"),
                std::string::npos);
            EXPECT_FALSE(convert_request(Protocol::kChatCompletions, body, {}).request.has_value());
            continue;
        }
        const ConvertResult result = convert_request(Protocol::kChatCompletions, body, {});
        if (row["want"].contains("status")) {
            EXPECT_FALSE(result.request.has_value());
            EXPECT_EQ(result.error.status, 400);
        } else {
            ASSERT_TRUE(result.request.has_value()) << result.error.message;
            EXPECT_NE(
                encode_prompt(result.request->conversation)
                    .text.find("\"default\": " + row["want"]["text"].get<std::string>() + "}}\n"),
                std::string::npos);
        }
    }
}

Parsed run_script(const Outcome& out, const std::string& text) {
    return parse_every_cut(text, out.request->parsing);
}

TEST(RecipeCases, C015ToolChoiceNone) {
    const TestJson cases = load_cases();
    for (const TestJson& row : find_case(cases, "C-015")["rows"]) {
        const Outcome out = run_body(row["in"]["body"], "");
        check_prompt(out, row["want"]);
        if (!row["in"].contains("script")) continue;
        const Parsed parsed = run_script(out, row["in"]["script"].get<std::string>());
        EXPECT_EQ(parsed.calls.size(), row["want"]["tool_calls"].get<size_t>());
        EXPECT_EQ(parsed.content, row["want"]["content"].get<std::string>());
        EXPECT_EQ(parsed.finish, row["want"]["finish"].get<std::string>());
    }
}

TEST(RecipeCases, C016RequiredChoice) {
    const TestJson cases = load_cases();
    for (const TestJson& row : find_case(cases, "C-016")["rows"]) {
        SCOPED_TRACE(row.dump());
        const TestJson& want = row["want"];
        const Outcome out = run_body(row["in"]["body"], "");
        if (want.value("status", 200) != 200) {
            check_refusal(out, want);
            continue;
        }
        check_prompt(out, want);
        EXPECT_TRUE(out.request->must_call);
        if (!want.contains("model_text")) {  // the calls themselves need a model under constraint
            EXPECT_TRUE(ends_with(out.prompt.text, "<think>"));
            continue;
        }
        const Parsed parsed = run_script(out, want["model_text"].get<std::string>());
        EXPECT_EQ(parsed.summary(), "R[] C[] F[tool_calls] f({})");
    }
}

TEST(RecipeCases, C017OddHistories) {
    const TestJson cases = load_cases();
    const TestJson& rows = find_case(cases, "C-017")["rows"];
    const TestJson body = rows[0]["in"]["body"];
    const std::string prompt = run_body(body, "").prompt.text;
    check_prompt(run_body(body, ""), rows[0]["want"]);
    for (size_t i = 1; i < rows.size(); ++i) {
        SCOPED_TRACE(rows[i].dump());
        TestJson changed = body;
        const TestJson& in = rows[i]["in"];
        if (in.contains("function_arguments"))
            changed["messages"][1]["tool_calls"][0]["function"]["arguments"] =
                in["function_arguments"];
        if (in.contains("assistant_content")) {
            changed["messages"][1]["content"] = in["assistant_content"];
            if (in["assistant_content"] == "(key left out)")
                changed["messages"][1].erase("content");
        }
        const Outcome out = run_body(changed, "");
        if (rows[i]["want"].is_string()) {
            EXPECT_EQ(out.prompt.text, prompt);
        } else if (rows[i]["want"].contains("status")) {
            check_refusal(out, rows[i]["want"]);
        } else {
            check_prompt(out, rows[i]["want"]);
        }
    }
}

// ------------------------------------------------------------------ outputs

ParsingOptions options_of(const TestJson& in) {
    ParsingOptions options;
    options.start = in.value("thinking", false) ? ParserStart::kReasoning : ParserStart::kContent;
    options.tools = in.value("parse_tools", true);
    options.json = in.value("json_mode", false);
    options.parallel_tool_calls = in.value("parallel_tool_calls", true);
    if (in.contains("stop")) options.stop = in["stop"].get<std::vector<std::string>>();
    if (in.contains("parameters"))
        for (const auto& item : in["parameters"].items())
            options.parameters[item.key()] = item.value().dump();
    return options;
}

FinishReason finish_of(const TestJson& in) {
    return in.value("finish", "stop") == "length" ? FinishReason::kLength : FinishReason::kStop;
}

/// A key that is absent from `want` is empty.
void check_parsed(const Parsed& parsed, const TestJson& want) {
    EXPECT_EQ(parsed.reasoning, want.value("reasoning", ""));
    EXPECT_EQ(parsed.content, want.value("content", ""));
    if (want.contains("finish")) {
        EXPECT_EQ(parsed.finish, want["finish"].get<std::string>());
    }
    const TestJson calls = want.value("calls", TestJson::array());
    if (calls.is_number()) {
        EXPECT_EQ(parsed.calls.size(), calls.get<size_t>());
        return;
    }
    ASSERT_EQ(parsed.calls.size(), calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(parsed.calls[i].name, calls[i]["name"].get<std::string>());
        EXPECT_EQ(parsed.calls[i].arguments, calls[i]["arguments"].get<std::string>());
    }
}

/// Rows of {text, …} -> what the client has in hand, at every cut. Returns how many were judged.
size_t run_text_rows(const std::string& id) {
    const TestJson cases = load_cases();
    size_t judged = 0;
    for (const TestJson& row : find_case(cases, id)["rows"]) {
        const TestJson& in = row["in"];
        SCOPED_TRACE(id + " " + row.dump().substr(0, 400));
        if (!in.contains("text") || in.contains("stream") || in.contains("pieces") ||
            in.contains("tokens_per_step"))
            continue;
        const std::string text = in["text"].get<std::string>();
        const TestJson& want = row["want"];
        ++judged;
        if (in.contains("max_tokens")) {  // cut anywhere by the limit: length, every time
            for (size_t n = 1; n < text.size(); ++n)
                EXPECT_EQ(
                    parse_pieces({text.substr(0, n)}, options_of(in), FinishReason::kLength).finish,
                    "length");
            continue;
        }
        const Parsed parsed = parse_every_cut(text, options_of(in), finish_of(in));
        if (want.contains("content_parses_as")) {
            EXPECT_EQ(TestJson::parse(parsed.content), want["content_parses_as"]);
        } else if (want.contains("content_stripped")) {
            const size_t begin = parsed.content.find_first_not_of(' ');
            const size_t end = parsed.content.find_last_not_of(' ') + 1;
            EXPECT_EQ(parsed.content.substr(begin, end - begin),
                      want["content_stripped"].get<std::string>());
            EXPECT_EQ(parsed.finish, want["finish"].get<std::string>());
        } else if (want.contains("never")) {
            for (const ToolCall& call : parsed.calls)
                EXPECT_NE(call.arguments, "{}") << "a finished call without arguments";
        } else {
            check_parsed(parsed, want);
        }
    }
    return judged;
}

TEST(RecipeCases, C023LostTypes) {
    EXPECT_EQ(run_text_rows("C-023"), 4u);
}
TEST(RecipeCases, C025StartInReasoning) {
    EXPECT_EQ(run_text_rows("C-025"), 7u);
}
TEST(RecipeCases, C026CallsInsideReasoning) {
    EXPECT_EQ(run_text_rows("C-026"), 4u);
}
TEST(RecipeCases, C027StrayTags) {
    EXPECT_EQ(run_text_rows("C-027"), 4u);
}
TEST(RecipeCases, C028BlocksMisspelt) {
    EXPECT_EQ(run_text_rows("C-028"), 7u);
}
TEST(RecipeCases, C029CutCalls) {
    EXPECT_EQ(run_text_rows("C-029"), 6u);
}
TEST(RecipeCases, C031ParameterNames) {
    EXPECT_EQ(run_text_rows("C-031"), 4u);
}
TEST(RecipeCases, C032ParallelCalls) {
    EXPECT_EQ(run_text_rows("C-032"), 2u);
}
TEST(RecipeCases, C033JsonMode) {
    EXPECT_EQ(run_text_rows("C-033"), 4u);
}

TEST(RecipeCases, C024ClosingTags) {
    const TestJson cases = load_cases();
    const TestJson& c = find_case(cases, "C-024");
    for (const TestJson& row : c["rows"]) {
        const std::string text = replace_all(c["setup"]["text"].get<std::string>(),
                                             "{value}",
                                             row["in"]["value"].get<std::string>());
        const Parsed parsed = parse_every_cut(text, {});
        ASSERT_EQ(parsed.calls.size(), 1u);
        EXPECT_EQ(parsed.calls[0].name, "run");
        EXPECT_EQ(parsed.calls[0].arguments, row["want"]["arguments"].get<std::string>());
        EXPECT_EQ(parsed.content, "");
        EXPECT_EQ(parsed.finish, "tool_calls");
    }
}

TEST(RecipeCases, C030TypesOfValues) {
    const TestJson cases = load_cases();
    const TestJson& c = find_case(cases, "C-030");
    for (const TestJson& row : c["rows"]) {
        SCOPED_TRACE(row.dump());
        const TestJson& in = row["in"];
        if (in.contains("whole_text")) {
            EXPECT_EQ(parse_every_cut(in["whole_text"].get<std::string>(), {}).content,
                      row["want"]["content"].get<std::string>());
            continue;
        }
        std::string text = replace_all(
            c["setup"]["text"].get<std::string>(), "{name}", in["name"].get<std::string>());
        text = replace_all(text, "{string}", in["string"].get<bool>() ? "true" : "false");
        text = replace_all(text, "{value}", in["value"].get<std::string>());
        const Parsed parsed = parse_every_cut(text, {});
        ASSERT_EQ(parsed.calls.size(), 1u);
        const std::string& got = parsed.calls[0].arguments;
        EXPECT_TRUE(TestJson::accept(got)) << got;
        // Digits must be intact, so the spelling is compared; blanks around a value do not count.
        const std::string want = row["want"]["arguments_equal_as_json"].get<std::string>();
        const bool padded = in["value"] == " 7 ";
        EXPECT_EQ(padded ? TestJson::parse(got).dump() : got,
                  padded ? TestJson::parse(want).dump() : want);
    }
}

TEST(RecipeCases, C032IndexAndIdsOfStreamedCalls) {
    const TestJson cases = load_cases();
    const std::string text = find_case(cases, "C-032")["rows"][1]["in"]["text"].get<std::string>();
    const Outcome out =
        run_body({{"messages", {{{"role", "user"}, {"content", "q"}}}},
                  {"stream", true},
                  {"thinking", {{"type", "disabled"}}},
                  {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}},
                 "");
    ResponseContext context;
    context.response_id = "r1";
    const auto responder = make_responder(*out.request, context);
    std::vector<StreamEvent> events = responder->start();
    for (const char c : text)
        for (StreamEvent& e : responder->push(std::string(1, c), 1)) events.push_back(std::move(e));
    for (StreamEvent& e : responder->finish(FinishReason::kStop)) events.push_back(std::move(e));
    std::vector<std::string> ids;
    std::vector<std::string> arguments(2);
    for (const StreamEvent& e : events) {
        const TestJson delta = TestJson::parse(e.data)["choices"][0]["delta"];
        if (!delta.contains("tool_calls")) continue;
        const TestJson& call = delta["tool_calls"][0];
        const size_t index = call["index"].get<size_t>();
        if (call.contains("id")) {
            EXPECT_EQ(index, ids.size());
            EXPECT_EQ(call["type"], "function");
            EXPECT_EQ(call["function"]["name"], "f");
            ids.push_back(call["id"].get<std::string>());
        } else {
            EXPECT_EQ(index + 1, ids.size());
            EXPECT_FALSE(call["function"].contains("name"));
        }
        arguments.at(index) += call["function"]["arguments"].get<std::string>();
    }
    ASSERT_EQ(ids.size(), 2u);
    EXPECT_NE(ids[0], ids[1]);
    EXPECT_EQ(arguments[0], "{\"a\": 1}");
    EXPECT_EQ(arguments[1], "{\"a\": 2}");
}

TEST(RecipeCases, C034RenderedAgain) {
    const TestJson cases = load_cases();
    for (const TestJson& row : find_case(cases, "C-034")["rows"]) {
        const Parsed parsed = parse_every_cut(row["in"]["sampled"].get<std::string>(), {});
        EXPECT_EQ(parsed.content, row["want"]["content"].get<std::string>());
        Conversation c;
        c.thinking = false;
        c.messages = {Message::user("q")};
        const std::string before = encode_prompt(c).text;
        c.messages.push_back(Message::assistant(parsed.content));
        c.messages[1].tool_calls = parsed.calls;
        EncodeOptions options;
        options.generation_prompt = false;
        const std::string rendered = encode_prompt(c, options).text.substr(before.size());
        EXPECT_EQ(rendered, row["want"]["rerendered"].get<std::string>() + "<｜end▁of▁sentence｜>");
    }
}

TEST(RecipeCases, C035OneKindOfTextInADelta) {
    const TestJson cases = load_cases();
    const TestJson& rows = find_case(cases, "C-035")["rows"];
    const Parsed first = parse_pieces(rows[0]["in"]["pieces"].get<std::vector<std::string>>(),
                                      options_of(rows[0]["in"]),
                                      FinishReason::kStop);
    TestJson deltas = TestJson::array();
    for (const Delta& d : first.deltas)
        deltas.push_back(
            {{d.kind == Delta::Kind::kReasoning ? "reasoning_content" : "content", d.text}});
    EXPECT_EQ(deltas, rows[0]["want"]["deltas"]);
    const Parsed second = parse_pieces(rows[1]["in"]["pieces"].get<std::vector<std::string>>(),
                                       options_of(rows[1]["in"]),
                                       FinishReason::kStop);
    ASSERT_EQ(second.deltas.size(), 3u);
    EXPECT_EQ(second.deltas[0].text, "R");
    EXPECT_EQ(second.deltas[1].kind, Delta::Kind::kCall);
}

TEST(RecipeCases, C036ArgumentsStream) {
    const std::string text =
        std::string("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n") + kMarker +
        "code\" string=\"true\">" + std::string(5000, 'x') + "</｜DSML｜ parameter>\n" + kMarker +
        "n\" string=\"false\">7</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    StreamParser parser({});
    size_t num_deltas = 0;
    size_t gap = 0;
    size_t longest_gap = 0;
    bool begun = false;
    std::string joined;
    for (const int32_t id : released_tokenizer().encode(text)) {
        std::vector<Delta> deltas;
        parser.push(released_tokenizer().token_bytes(id), &deltas);
        for (const Delta& d : deltas) {
            if (!begun) {
                EXPECT_EQ(d.kind, Delta::Kind::kCall);
                EXPECT_EQ(d.text, "f");
            }
            begun = true;
            if (d.kind != Delta::Kind::kArguments) continue;
            ++num_deltas;
            joined += d.text;
        }
        gap = deltas.empty() ? gap + 1 : 0;
        if (begun && joined.size() < 5020) longest_gap = std::max(longest_gap, gap);
    }
    EXPECT_GE(num_deltas, 50u);
    EXPECT_LE(longest_gap, 24u);
    EXPECT_EQ(joined, "{\"code\": \"" + std::string(5000, 'x') + "\", \"n\": 7}");
}

}  // namespace
}  // namespace deepinfer::recipe
