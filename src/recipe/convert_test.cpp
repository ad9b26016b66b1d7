// Conversion where we differ from the reference, limits, and refusals that name their field. What
// is the same is proven by the golden vectors.
#include "recipe/convert.h"

#include <gtest/gtest.h>

#include "recipe/recipe_test_util.h"
#include "recipe/tool_schema.h"

namespace deepinfer::recipe {
namespace {

TestJson user(const TestJson& content = "Hi") {
    return {{"role", "user"}, {"content", content}};
}

TestJson chat(const TestJson& more = TestJson::object()) {
    TestJson body = {{"model", "deepseek-flash"}, {"messages", TestJson::array({user()})}};
    body.update(more);
    return body;
}

ConvertResult convert(const TestJson& body,
                      Protocol protocol = Protocol::kChatCompletions,
                      bool compat = false) {
    ConvertOptions options;
    options.compat = compat;
    return convert_request(protocol, body.dump(), options);
}

TestJson function(const std::string& name, const TestJson& parameters = nullptr) {
    TestJson f = {{"name", name}};
    if (!parameters.is_null()) f["parameters"] = parameters;
    return {{"type", "function"}, {"function", f}};
}

void expect_refused(const TestJson& body,
                    const std::string& param,
                    Protocol protocol = Protocol::kChatCompletions) {
    const ConvertResult result = convert(body, protocol);
    ASSERT_FALSE(result.request.has_value()) << "accepted: " << body.dump().substr(0, 300);
    EXPECT_EQ(result.error.status, 400);
    EXPECT_EQ(result.error.type, "invalid_request_error");
    EXPECT_FALSE(result.error.message.empty());
    EXPECT_EQ(result.error.param, param) << result.error.message;
}

TEST(Convert, RefusalsNameTheirField) {
    expect_refused(chat({{"temperature", 2.5}}), "temperature");
    expect_refused(chat({{"temperature", "1"}}), "temperature");
    expect_refused(chat({{"top_p", 0}}), "top_p");
    expect_refused(chat({{"n", 17}}), "n");
    expect_refused(chat({{"n", 1.0}}), "n");
    expect_refused(chat({{"top_logprobs", 3}}), "top_logprobs");
    expect_refused(chat({{"logprobs", true}, {"top_logprobs", 21}}), "top_logprobs");
    expect_refused(chat({{"stop", {"a", ""}}}), "stop[1]");
    expect_refused(chat({{"stop", std::vector<std::string>(17, "a")}}), "stop");
    expect_refused(chat({{"messages", TestJson::array()}}), "messages");
    expect_refused(chat({{"messages", {user(), {{"role", "robot"}, {"content", "x"}}}}}),
                   "messages[1].role");
    expect_refused(chat({{"messages", {user(5)}}}), "messages[0].content");
    expect_refused(chat({{"messages", {user({{{"type", "video_url"}}})}}}),
                   "messages[0].content[0]");
    expect_refused(chat({{"tools", {function("a b")}}}), "tools[0].function.name");
    expect_refused(chat({{"tools", {function("a", {{"type", "string"}})}}}), "tools[0].function");
    expect_refused(chat({{"tools", {function("a"), function("a")}}}), "tools[1].function");
    expect_refused(chat({{"tool_choice", "required"}}), "tool_choice");
    expect_refused(chat({{"response_format", {{"type", "json_object"}}}}), "response_format");
    expect_refused(chat({{"logit_bias", {{"x", 1}}}}), "logit_bias");
    expect_refused(chat({{"logit_bias", {{"5", 101}}}}), "logit_bias");
    expect_refused(chat({{"stop_token_ids", {1, -1}}}), "stop_token_ids[1]");
    expect_refused(chat({{"seed", -1}}), "seed");
    expect_refused(chat({{"thinking", "on"}}), "thinking");
    expect_refused(
        TestJson{{"model", "deepseek-flash"}, {"input", "x"}, {"previous_response_id", "r"}},
        "previous_response_id",
        Protocol::kResponses);
}

TEST(Convert, UnknownModelIs404) {
    TestJson body = chat();
    body["model"] = "other";
    const ConvertResult result = convert(body);
    EXPECT_EQ(result.error.status, 404);
    EXPECT_EQ(result.error.code, "model_not_found");
    EXPECT_EQ(convert(body, Protocol::kChatCompletions, true).error.status, 400);
    ConvertOptions options;
    options.model_names = {"a", "other"};
    EXPECT_TRUE(
        convert_request(Protocol::kChatCompletions, body.dump(), options).request.has_value());
}

TEST(Convert, SamplingIsHonouredUnlessCompat) {
    const TestJson body = chat({{"temperature", 0.3},
                                {"top_p", 0.5},
                                {"n", 3},
                                {"top_k", 5},
                                {"min_p", 0.1},
                                {"logit_bias", {{"7", -1.5}}},
                                {"seed", 9},
                                {"max_completion_tokens", 5}});
    const ConvertResult ours = convert(body);
    ASSERT_TRUE(ours.request) << ours.error.message;
    const RequestSampling& s = ours.request->sampling;
    EXPECT_EQ(s.temperature, 0.3);
    EXPECT_EQ(s.top_p, 0.5);
    EXPECT_EQ(s.n, 3);
    EXPECT_EQ(s.top_k, 5);
    EXPECT_EQ(s.min_p, 0.1);
    EXPECT_EQ(s.max_tokens, 5);
    EXPECT_EQ(s.seed, 9u);
    ASSERT_EQ(s.logit_bias.size(), 1u);
    EXPECT_EQ(s.logit_bias[0].first, 7);
    TestJson compat_body = body;
    compat_body.erase("n");
    const ConvertResult compat = convert(compat_body, Protocol::kChatCompletions, true);
    ASSERT_TRUE(compat.request) << compat.error.message;
    EXPECT_EQ(compat.request->sampling.temperature, 1.0);
    EXPECT_EQ(compat.request->sampling.top_p, 0.95);
    EXPECT_EQ(compat.request->sampling.top_k, 0);
    EXPECT_FALSE(compat.request->sampling.max_tokens.has_value());
}

TEST(Convert, RepeatedKeysAreRefusedUnlessCompat) {
    const std::string body =
        "{\"model\":\"deepseek-flash\",\"messages\":[{\"role\":\"user\",\"content\":\"a\","
        "\"content\":\"b\"}]}";
    EXPECT_FALSE(convert_request(Protocol::kChatCompletions, body, {}).request.has_value());
    ConvertOptions compat;
    compat.compat = true;
    const ConvertResult result = convert_request(Protocol::kChatCompletions, body, compat);
    ASSERT_TRUE(result.request.has_value());
    EXPECT_EQ(result.request->conversation.messages[0].content[0].text, "b");
}

TEST(Convert, LimitsHoldAtTheirEdge) {
    const auto tools = [](size_t n) {
        TestJson list = TestJson::array();
        for (size_t i = 0; i < n; ++i) list.push_back(function("t" + std::to_string(i)));
        return chat({{"tools", list}});
    };
    EXPECT_TRUE(convert(tools(128)).request.has_value());
    EXPECT_FALSE(convert(tools(129)).request.has_value());
    const auto nested = [](size_t depth) {  // the body and "x" itself count
        return "{\"model\":\"deepseek-flash\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
               "\"x\":" +
               std::string(depth, '[') + std::string(depth, ']') + "}";
    };
    EXPECT_TRUE(convert_request(Protocol::kChatCompletions, nested(63), {}).request.has_value());
    EXPECT_FALSE(convert_request(Protocol::kChatCompletions, nested(64), {}).request.has_value());
    EXPECT_FALSE(
        convert_request(Protocol::kChatCompletions, nested(1'000'000), {}).request.has_value());
}

TEST(Convert, MessagesAnyMeansRequired) {
    const TestJson body = {{"model", "deepseek-flash"},
                           {"messages", {user()}},
                           {"thinking", {{"type", "disabled"}}},
                           {"tools", {{{"name", "w"}, {"input_schema", {{"type", "object"}}}}}},
                           {"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", true}}}};
    const ConvertResult ours = convert(body, Protocol::kMessages);
    ASSERT_TRUE(ours.request);
    EXPECT_TRUE(ours.request->must_call);
    EXPECT_EQ(ours.request->parsing.start, ParserStart::kCalls);
    EXPECT_FALSE(ours.request->parsing.parallel_tool_calls);
    const ConvertResult compat = convert(body, Protocol::kMessages, true);
    EXPECT_EQ(compat.request->conversation.tool_choice, ToolChoice::kAuto);
}

TEST(Convert, RequiredWhileThinkingLeavesThePromptOpen) {
    const ConvertResult result =
        convert(chat({{"tools", {function("f")}}, {"tool_choice", "required"}}));
    ASSERT_TRUE(result.request);
    EXPECT_TRUE(result.request->must_call);
    EXPECT_EQ(result.request->parsing.start, ParserStart::kReasoning);
    const std::string text = encode_prompt(result.request->conversation).text;
    EXPECT_EQ(text.substr(text.size() - 7), "<think>");
}

TEST(Convert, CallsInReasoningCountOnlyWhereCallsAreFree) {
    const auto allowed = [](TestJson tool, const char* choice, bool compat = false) {
        const ConvertResult r = convert(
            chat({{"tools", {tool}}, {"tool_choice", choice}}), Protocol::kChatCompletions, compat);
        return r.request.has_value() && r.request->parsing.calls_in_reasoning;
    };
    TestJson strict = function("f");
    strict["function"]["strict"] = true;
    EXPECT_TRUE(allowed(function("f"), "auto"));
    EXPECT_FALSE(allowed(function("f"), "required"));
    EXPECT_FALSE(allowed(strict, "auto"));
    EXPECT_TRUE(allowed(strict, "none"));
    EXPECT_TRUE(allowed(strict, "auto", true));
}

TEST(Convert, StrictSchemasAreShownAsTheClientWroteThem) {
    TestJson tool = function("f",
                             {{"type", "object"},
                              {"title", "T"},
                              {"properties", {{"a", {{"type", "string"}, {"minLength", 1}}}}}});
    tool["function"]["strict"] = true;
    const TestJson body = chat({{"tools", {tool}}});
    const ConvertResult ours = convert(body);
    ASSERT_TRUE(ours.request);
    EXPECT_EQ(ours.request->conversation.tools[0].parameters,
              "{\"type\": \"object\", \"title\": \"T\", \"properties\": {\"a\": {\"type\": "
              "\"string\", \"minLength\": 1}}}");
    const ConvertResult compat = convert(body, Protocol::kChatCompletions, true);
    EXPECT_EQ(compat.request->conversation.tools[0].parameters,
              "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}, "
              "\"additionalProperties\": false, \"required\": [\"a\"]}");
    EXPECT_EQ(compat.request->conversation.tools[0].client_parameters,
              ours.request->conversation.tools[0].parameters);
}

TEST(Convert, SpelledPlaceholdersAreRefusedOnlyWhereTheyWouldBecomeImages) {
    const TestJson body = chat({{"messages", {user("see <｜deepseek_image｜>")}}});
    EXPECT_TRUE(convert(body).request.has_value());
    ConvertOptions options;
    options.special_in_content_parse = true;
    EXPECT_FALSE(
        convert_request(Protocol::kChatCompletions, body.dump(), options).request.has_value());
}

TEST(Convert, ErrorBodiesHaveTheProtocolsShape) {
    ApiError error;
    error.message = "m";
    error.param = "p";
    EXPECT_EQ(error_body(Protocol::kChatCompletions, error),
              "{\"error\": {\"message\": \"m\", \"type\": \"invalid_request_error\", \"param\": "
              "\"p\", \"code\": null}}");
    EXPECT_EQ(error_body(Protocol::kMessages, error),
              "{\"type\": \"error\", \"error\": {\"type\": \"invalid_request_error\", \"message\": "
              "\"m\"}}");
}

TEST(JsonLines, EveryAnswerCarriesTheId) {
    const Tokenizer& tokenizer = ::deepinfer::testing::released_tokenizer();
    for (const char* line : {"", "{", "[]", "5", "null", "\"x\"", "{\"id\":1}{}"}) {
        const TestJson answer = TestJson::parse(encode_json_line(tokenizer, line));
        EXPECT_TRUE(answer["id"].is_null()) << line;
        EXPECT_EQ(answer["error"]["status"], 400) << line;
        EXPECT_TRUE(TestJson::parse(parse_json_line(nullptr, line)).contains("error")) << line;
    }
    for (const char* line : {"{\"id\": {\"a\": [1]}}",
                             "{\"id\": {\"a\": [1]}, \"protocol\": 5}",
                             "{\"id\": {\"a\": [1]}, \"op\": \"x\"}",
                             "{\"id\": {\"a\": [1]}, \"protocol\": \"conversation\", \"body\": []}",
                             "{\"id\": {\"a\": [1]}, \"tokens\": [[1]]}",
                             "{\"id\": {\"a\": [1]}, \"op\": \"respond\"}",
                             "{\"id\": {\"a\": [1]}, \"bytes\": [\"0\"]}",
                             "{\"id\": {\"a\": [1]}, \"chunks\": [5]}"}) {
        EXPECT_EQ(TestJson::parse(encode_json_line(tokenizer, line))["id"].dump(), "{\"a\":[1]}")
            << line;
        const TestJson answer = TestJson::parse(parse_json_line(nullptr, line));
        EXPECT_EQ(answer["id"].dump(), "{\"a\":[1]}") << line;
        EXPECT_EQ(answer["error"]["status"], 400) << line;
    }
    const TestJson missing = TestJson::parse(
        encode_json_line(tokenizer, "{\"protocol\":\"conversation\",\"body\":{\"messages\":[]}}"));
    EXPECT_TRUE(missing["id"].is_null());
    EXPECT_FALSE(missing.contains("error"));
}

/// Found by the fuzzer: sentences quote the request, and a quote may end inside a character.
TEST(JsonLines, AnswersAreValidUtf8) {
    const Tokenizer& tokenizer = ::deepinfer::testing::released_tokenizer();
    std::string name(59, 'x');
    for (int i = 0; i < 40; ++i) name += "\xE4\xB8\xAD";
    const std::string lines[] = {
        "{\"op\": \"" + name + "\"}",
        "{\"protocol\": \"" + name + "\"}",
        "{\"a\": \"\xE4\xB8\"}",
        "\xFF\xFE",
        "{\"protocol\": \"chat_completions\", \"body\": {\"model\": \"x" + name + "\"}}",
        "{\"protocol\": \"chat_completions\", \"body_text\": \"" + name + "\"}"};
    for (const std::string& line : lines) {
        EXPECT_TRUE(TestJson::accept(encode_json_line(tokenizer, line))) << line;
        EXPECT_TRUE(TestJson::accept(parse_json_line(nullptr, line))) << line;
    }
}

TEST(SchemaFault, FindsWhatCannotBeASchema) {
    const char* bad[] = {"{\"type\":\"bogus\"}",
                         "{\"type\":[]}",
                         "{\"type\":[\"string\",\"string\"]}",
                         "{\"properties\":[]}",
                         "{\"properties\":{\"a\":5}}",
                         "{\"items\":[{}]}",
                         "{\"required\":[1]}",
                         "{\"required\":[\"a\",\"a\"]}",
                         "{\"pattern\":\"(\"}",
                         "{\"patternProperties\":{\"[\":{}}}",
                         "{\"anyOf\":[]}",
                         "{\"minLength\":-1}",
                         "{\"minLength\":1.5}",
                         "{\"multipleOf\":0}",
                         "{\"maximum\":\"5\"}",
                         "{\"$ref\":\"#/$defs/x\"}",
                         "{\"$ref\":\"https://example.invalid/s\"}",
                         "{\"$ref\":5}",
                         "{\"additionalProperties\":5}",
                         "{\"description\":5}",
                         "5",
                         "\"x\"",
                         "null",
                         "{\"$ref\":\"#nowhere\"}",
                         "{\"not\":[]}"};
    for (const char* text : bad)
        EXPECT_TRUE(schema_fault(parse_json(text).value()).has_value()) << text;
    const char* good[] = {"true",
                          "{}",
                          "{\"type\":[\"string\",\"null\"]}",
                          "{\"minLength\":1.0}",
                          "{\"$ref\":\"#\"}",
                          "{\"$defs\":{\"a/b\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/a~1b\"}",
                          "{\"$defs\":{\"x\":{\"$anchor\":\"n\"}},\"$ref\":\"#n\"}",
                          "{\"pattern\":\"^\\\\d+(?=x)\\\\u00e9$\"}",
                          "{\"unknown\":5}",
                          "{\"enum\":[]}",
                          "{\"items\":true}"};
    for (const char* text : good)
        EXPECT_FALSE(schema_fault(parse_json(text).value()).has_value())
            << text << ": " << schema_fault(parse_json(text).value()).value_or("");
}

}  // namespace
}  // namespace deepinfer::recipe
