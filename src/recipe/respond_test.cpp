// Streams and whole answers agree: accumulating the events of an answer, as a client library does,
// gives the object that is not streamed, for every protocol, start and end.
#include <gtest/gtest.h>

#include "recipe/recipe_test_util.h"

namespace deepinfer::recipe {
namespace {

using ::deepinfer::testing::below;
using ::deepinfer::testing::test_rng;

TestJson accumulate_chat(const std::vector<TestJson>& events) {
    TestJson message = {{"role", "assistant"}};
    TestJson out;
    for (const TestJson& e : events) {
        const TestJson& choice = e["choices"][0];
        for (const auto& item : choice["delta"].items()) {
            if (item.key() == "tool_calls") {
                const TestJson& call = item.value()[0];
                const size_t index = call["index"].get<size_t>();
                if (index == message["tool_calls"].size()) {
                    message["tool_calls"].push_back(call);
                } else {
                    TestJson& text = message["tool_calls"][index]["function"]["arguments"];
                    text =
                        text.get<std::string>() + call["function"]["arguments"].get<std::string>();
                }
            } else if (item.value().is_string() && item.key() != "role") {
                message[item.key()] =
                    message.value(item.key(), "") + item.value().get<std::string>();
            }
        }
        if (!choice["finish_reason"].is_null()) {
            out["finish_reason"] = choice["finish_reason"];
            out["usage"] = e["usage"];
        }
    }
    out["message"] = message;
    return out;
}

TestJson whole_chat(const TestJson& response) {
    return {{"finish_reason", response["choices"][0]["finish_reason"]},
            {"usage", response["usage"]},
            {"message", response["choices"][0]["message"]}};
}

TestJson accumulate_messages(const std::vector<TestJson>& events) {
    TestJson out;
    std::string partial;
    for (const TestJson& e : events) {
        const std::string type = e["type"].get<std::string>();
        if (type == "message_start") out = e["message"];
        if (type == "content_block_start") {
            EXPECT_EQ(e["index"].get<size_t>(), out["content"].size());
            out["content"].push_back(e["content_block"]);
            partial.clear();
        }
        if (type == "content_block_delta") {
            TestJson& block = out["content"].back();
            for (const char* key : {"text", "thinking", "signature"})
                if (e["delta"].contains(key))
                    block[key] = block[key].get<std::string>() + e["delta"][key].get<std::string>();
            if (e["delta"].contains("partial_json"))
                partial += e["delta"]["partial_json"].get<std::string>();
        }
        if (type == "content_block_stop" && out["content"].back()["type"] == "tool_use") {
            const TestJson input = TestJson::parse(partial, nullptr, false);
            if (input.is_object()) out["content"].back()["input"] = input;
        }
        if (type == "message_delta") {
            out["stop_reason"] = e["delta"]["stop_reason"];
            out["stop_sequence"] = e["delta"]["stop_sequence"];
            out["usage"] = e["usage"];
        }
    }
    EXPECT_EQ(events.back()["type"], "message_stop");
    return out;
}

TestJson accumulate_responses(const std::vector<TestJson>& events) {
    std::vector<std::string> texts;
    std::vector<TestJson> items;
    for (size_t i = 0; i < events.size(); ++i) {
        const TestJson& e = events[i];
        EXPECT_EQ(e["sequence_number"].get<size_t>(), i);
        const std::string type = e["type"].get<std::string>();
        if (type == "response.output_item.added") texts.emplace_back();
        if (type.size() > 6 && type.compare(type.size() - 6, 6, ".delta") == 0)
            texts.at(e["output_index"].get<size_t>()) += e["delta"].get<std::string>();
        if (type.size() > 5 && type.compare(type.size() - 5, 5, ".done") == 0) {
            for (const char* key : {"text", "arguments", "input"})
                if (e.contains(key)) {
                    EXPECT_EQ(e[key].get<std::string>(), texts.at(e["output_index"].get<size_t>()));
                }
        }
        if (type == "response.output_item.done") items.push_back(e["item"]);
    }
    TestJson out = events.back()["response"];
    EXPECT_EQ(out["output"], TestJson(items));
    return out;
}

struct Answer {
    std::vector<TestJson> events;
    TestJson response;
};

Answer respond(Protocol protocol,
               const TestJson& body,
               const std::vector<std::string>& pieces,
               FinishReason finish) {
    const ConvertResult converted = convert_request(protocol, body.dump(), {});
    EXPECT_TRUE(converted.request.has_value()) << converted.error.message;
    ResponseContext context;
    context.response_id = "id1";
    context.model = "deepseek-flash";
    context.prompt_tokens = 10;
    context.cached_tokens = 4;
    const auto responder = make_responder(*converted.request, context);
    Answer out;
    const auto take = [&](const std::vector<StreamEvent>& events) {
        for (const StreamEvent& e : events) {
            out.events.push_back(TestJson::parse(e.data));
            EXPECT_EQ(e.name, out.events.back().value("type", ""));
        }
    };
    take(responder->start());
    for (const std::string& piece : pieces) {
        if (responder->finished()) break;
        take(responder->push(piece, 1));
    }
    take(responder->finish(finish));
    EXPECT_TRUE(responder->finish(FinishReason::kLength).empty()) << "only the first end counts";
    out.response = TestJson::parse(responder->response());
    return out;
}

TestJson body_of(Protocol protocol, bool thinking, bool tools, bool stop) {
    const TestJson schema = {{"type", "object"}};
    TestJson body = {{"model", "deepseek-flash"}, {"stream", true}};
    if (protocol == Protocol::kResponses) {
        body["input"] = "q";
        if (!thinking) body["reasoning"] = {{"effort", "none"}};
        if (tools)
            body["tools"] =
                TestJson::array({{{"type", "function"}, {"name", "f"}, {"parameters", schema}},
                                 {{"type", "custom"}, {"name", "apply_patch"}}});
        return body;
    }
    body["messages"] = TestJson::array({{{"role", "user"}, {"content", "q"}}});
    if (!thinking) body["thinking"] = {{"type", "disabled"}};
    const bool chat = protocol == Protocol::kChatCompletions;
    if (stop) body[chat ? "stop" : "stop_sequences"] = {"STOP"};
    if (tools && chat)
        body["tools"] = TestJson::array(
            {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}});
    if (tools && !chat)
        body["tools"] = TestJson::array({{{"name", "f"}, {"input_schema", schema}}});
    return body;
}

TEST(Responder, StreamsAccumulateToTheWholeAnswer) {
    std::mt19937 rng = test_rng();
    const std::string d = "｜DSML｜";
    const auto call =
        [&](const std::string& name, const std::string& key, const std::string& value) {
            return "<" + d + " invoke name=\"" + name + "\">\n<" + d + " parameter name=\"" + key +
                   "\" string=\"true\">" + value + "</" + d + " parameter>\n</" + d + " invoke>\n";
        };
    const std::vector<std::string> parts = {"text ",
                                            "\n",
                                            "中😀",
                                            "</think>",
                                            "STOP",
                                            "\"q\" \\",
                                            "<" + d + " calls>\n" + call("f", "a", "x\n\"y\"") +
                                                call("apply_patch", "input", "*** \"é\"\n\x01") +
                                                "</" + d + " calls>"};
    const FinishReason reasons[] = {
        FinishReason::kStop, FinishReason::kLength, FinishReason::kContentFilter};
    for (int round = 0; round < 600; ++round) {
        std::string text;
        for (uint32_t i = below(rng, 7); i > 0; --i)
            text += parts[below(rng, static_cast<uint32_t>(parts.size()))];
        if (below(rng, 4) == 0) text.resize(below(rng, static_cast<uint32_t>(text.size()) + 1));
        std::vector<std::string> pieces;
        for (size_t at = 0; at < text.size();) {
            const size_t n = 1 + below(rng, 9);
            pieces.push_back(text.substr(at, n));
            at += n;
        }
        const auto protocol = static_cast<Protocol>(below(rng, 3));
        const TestJson body =
            body_of(protocol, below(rng, 2) == 0, below(rng, 3) != 0, below(rng, 3) == 0);
        const FinishReason reason = reasons[below(rng, 3)];
        SCOPED_TRACE(body.dump() + " " + text);
        const Answer answer = respond(protocol, body, pieces, reason);
        if (protocol == Protocol::kChatCompletions) {
            EXPECT_EQ(TestJson(nlohmann::json(accumulate_chat(answer.events))),
                      TestJson(nlohmann::json(whole_chat(answer.response))));
        } else if (protocol == Protocol::kMessages) {
            EXPECT_EQ(nlohmann::json(accumulate_messages(answer.events)),
                      nlohmann::json(answer.response));
        } else {
            EXPECT_EQ(nlohmann::json(accumulate_responses(answer.events)),
                      nlohmann::json(answer.response));
        }
        const Answer whole = respond(protocol, body, {text}, reason);
        if (protocol == Protocol::kMessages) {
            EXPECT_EQ(whole.response["content"], answer.response["content"]) << "the cut matters";
        }
        if (::testing::Test::HasFailure()) return;
    }
}

TEST(Responder, CustomInputIsDecodedWhileItStreams) {
    const std::string text =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"apply_patch\">\n<｜DSML｜ parameter "
        "name=\"input\" string=\"true\">*** \"é😀\"\n\t\\ \x01</｜DSML｜ "
        "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    const Answer answer = respond(Protocol::kResponses,
                                  body_of(Protocol::kResponses, false, true, false),
                                  bytes,
                                  FinishReason::kStop);
    EXPECT_EQ(answer.response["output"][0]["type"], "custom_tool_call");
    EXPECT_EQ(answer.response["output"][0]["input"], "*** \"é😀\"\n\t\\ \x01");
}

TEST(Responder, CountsTokensBeforeTheEndOfReasoning) {
    const Answer answer = respond(Protocol::kChatCompletions,
                                  body_of(Protocol::kChatCompletions, true, false, false),
                                  {"Plan", ".", "</think>", "12", ""},
                                  FinishReason::kStop);
    EXPECT_EQ(answer.response["usage"]["completion_tokens"], 5);
    EXPECT_EQ(answer.response["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
    EXPECT_EQ(answer.response["usage"]["total_tokens"], 15);
    const Answer plain = respond(Protocol::kChatCompletions,
                                 body_of(Protocol::kChatCompletions, false, false, false),
                                 {"12"},
                                 FinishReason::kStop);
    EXPECT_FALSE(plain.response["usage"].contains("completion_tokens_details"));
}

TEST(Responder, UnreadableCallsDoNotLookLikeCallsWithoutArguments) {
    const std::string text =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<force>true</force>\n</｜DSML｜ "
        "invoke>\n</｜DSML｜ calls>";
    const Answer answer = respond(Protocol::kMessages,
                                  body_of(Protocol::kMessages, false, true, false),
                                  {text},
                                  FinishReason::kStop);
    EXPECT_EQ(answer.response["content"][0]["input"],
              TestJson({{"arguments", "<force>true</force>"}}));
}

}  // namespace
}  // namespace deepinfer::recipe
