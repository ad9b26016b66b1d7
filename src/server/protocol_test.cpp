// The protocols over HTTP, with a scripted model: whole and streamed answers say the same.
#include <algorithm>

#include "server/server_test_util.h"

namespace deepinfer::server {
namespace {

constexpr const char* kToolScript =
    "Think.</think>Checking.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"a\">\n"
    "<｜DSML｜ parameter name=\"x\" string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"b\">\n<｜DSML｜ parameter name=\"y\" string=\"true\">q"
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

json tools_chat() {
    json list = json::array();
    for (const char* name : {"a", "b"})
        list.push_back({{"type", "function"},
                        {"function",
                         {{"name", name},
                          {"parameters", {{"type", "object"}, {"properties", json::object()}}}}}});
    return list;
}
json tools_messages() {
    json list = json::array();
    for (const char* name : {"a", "b"})
        list.push_back({{"name", name},
                        {"input_schema", {{"type", "object"}, {"properties", json::object()}}}});
    return list;
}

/// Joins the chunks of a Chat Completions stream into the whole answer's choices.
json joined_chat(const std::string& body, json* usage) {
    std::map<int, json> choices;
    for (const std::string& data : events_of(body)) {
        if (data == "[DONE]") continue;
        const json event = json::parse(data);
        if (event.contains("usage") && !event["usage"].is_null()) *usage = event["usage"];
        for (const json& choice : event["choices"]) {
            json& whole = choices[choice["index"]];
            if (whole.is_null())
                whole = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", json::array()}};
            const json& delta = choice["delta"];
            for (const char* key : {"content", "reasoning_content"})
                if (delta.contains(key) && delta[key].is_string())
                    whole[key] = whole[key].get<std::string>() + delta[key].get<std::string>();
            if (delta.contains("tool_calls")) {
                for (const json& call : delta["tool_calls"]) {
                    const size_t i = call["index"];
                    if (i == whole["tool_calls"].size()) {
                        whole["tool_calls"].push_back(call);
                    } else {
                        json& arguments = whole["tool_calls"][i]["function"]["arguments"];
                        arguments = arguments.get<std::string>() +
                                    call["function"]["arguments"].get<std::string>();
                    }
                }
            }
            for (const char* list : {"content", "reasoning_content"})
                if (choice["logprobs"].is_object() && choice["logprobs"].contains(list))
                    for (const json& entry : choice["logprobs"][list])
                        whole["logprobs"][list].push_back(entry);
            if (!choice["finish_reason"].is_null())
                whole["finish_reason"] = choice["finish_reason"];
        }
    }
    json out = json::array();
    for (const auto& [index, choice] : choices) out.push_back(choice);
    return out;
}

TEST(ChatCompletions, StreamedAndWholeAgree) {
    for (const char* script : {"Because.</think>Paris.", kToolScript}) {
        const TestServer server({.text = script, .cached_tokens = 3});
        for (const int n : {1, 3}) {
            json body = TestServer::chat(
                {{"n", n}, {"logprobs", true}, {"top_logprobs", 2}, {"tools", tools_chat()}});
            const HttpResult whole = server.post("/v1/chat/completions", body);
            ASSERT_EQ(whole.status, 200) << whole.body;
            EXPECT_EQ(whole.field("content-type"), "application/json");
            body["stream"] = true;
            const HttpResult stream = server.post("/v1/chat/completions", body);
            ASSERT_EQ(stream.status, 200);
            EXPECT_EQ(stream.field("content-type"), "text/event-stream");
            EXPECT_EQ(events_of(stream.body).back(), "[DONE]");
            json usage;
            const json joined = joined_chat(stream.body, &usage);
            const json answer = whole.parsed();
            EXPECT_EQ(answer["usage"], usage);
            EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
            EXPECT_EQ(usage["prompt_cache_hit_tokens"].get<int>() +
                          usage["prompt_cache_miss_tokens"].get<int>(),
                      usage["prompt_tokens"].get<int>());
            ASSERT_EQ(joined.size(), static_cast<size_t>(n));
            ASSERT_EQ(answer["choices"].size(), static_cast<size_t>(n));
            for (int i = 0; i < n; ++i) {
                const json& choice = answer["choices"][static_cast<size_t>(i)];
                const json& other = joined[static_cast<size_t>(i)];
                EXPECT_EQ(choice["index"], i);
                EXPECT_EQ(choice["finish_reason"], other["finish_reason"]);
                EXPECT_EQ(choice["message"]["content"], other["content"]);
                EXPECT_EQ(choice["message"]["reasoning_content"], other["reasoning_content"]);
                for (const char* list : {"content", "reasoning_content"})
                    EXPECT_EQ(choice["logprobs"][list], other["logprobs"][list]);
                if (!other["tool_calls"].empty()) {
                    ASSERT_EQ(choice["message"]["tool_calls"].size(), other["tool_calls"].size());
                    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
                              other["tool_calls"][0]["function"]);
                }
            }
        }
    }
}

TEST(ChatCompletions, LogprobsCoverEveryTokenButTheEnd) {
    const TestServer server({.text = "Why.</think>Yes, half 😀 of it."});
    const json body = TestServer::chat({{"logprobs", true}});
    const json answer = server.post("/v1/chat/completions", body).parsed();
    const json& logprobs = answer["choices"][0]["logprobs"];
    const int tokens = static_cast<int>(logprobs["content"].size()) +
                       static_cast<int>(logprobs["reasoning_content"].size());
    EXPECT_EQ(tokens + 1, answer["usage"]["completion_tokens"]);
    std::string bytes;
    for (const json& entry : logprobs["content"])
        for (const json& byte : entry["bytes"]) bytes.push_back(static_cast<char>(byte.get<int>()));
    EXPECT_EQ(bytes, "Yes, half 😀 of it.");
    EXPECT_EQ(logprobs["content"][0]["top_logprobs"], json::array());
}

TEST(ChatCompletions, UsageComesAsAsked) {
    const auto usages = [](const TestServer& server, bool asked) {
        json body = TestServer::chat({{"stream", true}});
        if (asked) body["stream_options"] = {{"include_usage", true}};
        std::vector<std::string> out;
        for (const std::string& data : events_of(server.post("/v1/chat/completions", body).body)) {
            if (data == "[DONE]") continue;
            const json event = json::parse(data);
            out.push_back(!event.contains("usage")   ? "absent"
                          : event["usage"].is_null() ? "null"
                          : event["choices"].empty() ? "own chunk"
                                                     : "with the end");
        }
        return out;
    };
    const TestServer ours({.text = "a</think>b"});
    EXPECT_EQ(usages(ours, false).front(), "absent");
    EXPECT_EQ(usages(ours, false).back(), "with the end");
    EXPECT_EQ(usages(ours, true).front(), "null");
    EXPECT_EQ(usages(ours, true).back(), "with the end");
    ServerConfig config;
    config.openai_usage_chunk = true;
    const TestServer openai({.text = "a</think>b"}, config);
    EXPECT_EQ(usages(openai, true).back(), "own chunk");
    const std::vector<std::string> without = usages(openai, false);
    EXPECT_EQ(without.back(), "absent");
}

TEST(ChatCompletions, AStopSequenceEndsTheChoiceAndTheEnginesWork) {
    const TestServer server({.text = "one two STOP three", .finish_with_eos = false});
    const json answer =
        server
            .post("/v1/chat/completions",
                  TestServer::chat({{"stop", "STOP"}, {"thinking", {{"type", "disabled"}}}}))
            .parsed();
    EXPECT_EQ(answer["choices"][0]["message"]["content"], "one two ");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["running"] == 0; }));
    EXPECT_EQ(server.status()["generation"]["aborts"], 0);
}

TEST(Messages, EventsComeInOrder) {
    const TestServer server({.text = kToolScript});
    json body = {{"model", "nano"},
                 {"max_tokens", 200},
                 {"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                 {"tools", tools_messages()},
                 {"stream", true}};
    const HttpResult stream = server.post("/v1/messages", body);
    ASSERT_EQ(stream.status, 200) << stream.body;
    std::vector<std::string> seen;
    for (const std::string& data : events_of(stream.body)) {
        const json e = json::parse(data);
        std::string line = e["type"];
        if (line == "ping") continue;
        if (line == "content_block_start") {
            const json& block = e["content_block"];
            line += " " + std::to_string(e["index"].get<int>()) + " " +
                    block["type"].get<std::string>();
            if (block["type"] == "tool_use") line += " " + block["name"].get<std::string>();
        } else if (line == "content_block_delta") {
            line =
                e["delta"]["type"].get<std::string>() + " " + std::to_string(e["index"].get<int>());
        } else if (line == "content_block_stop") {
            line += " " + std::to_string(e["index"].get<int>());
        } else if (line == "message_delta") {
            line += " stop_reason " + e["delta"]["stop_reason"].get<std::string>();
        }
        if (seen.empty() || seen.back() != line) seen.push_back(line);
    }
    const std::vector<std::string> want = {"message_start",
                                           "content_block_start 0 thinking",
                                           "thinking_delta 0",
                                           "signature_delta 0",
                                           "content_block_stop 0",
                                           "content_block_start 1 text",
                                           "text_delta 1",
                                           "content_block_stop 1",
                                           "content_block_start 2 tool_use a",
                                           "input_json_delta 2",
                                           "content_block_stop 2",
                                           "content_block_start 3 tool_use b",
                                           "input_json_delta 3",
                                           "content_block_stop 3",
                                           "message_delta stop_reason tool_use",
                                           "message_stop"};
    EXPECT_EQ(seen, want);
    body["stream"] = false;
    const json whole = server.post("/v1/messages", body).parsed();
    EXPECT_EQ(whole["content"][2]["input"], json({{"x", 1}}));
    EXPECT_EQ(whole["content"][3]["input"], json({{"y", "q"}}));
    EXPECT_EQ(whole["stop_reason"], "tool_use");
}

TEST(Messages, UsageLeavesCachedTokensOut) {
    const TestServer server({.text = "</think>Hi", .cached_tokens = 5});
    const json body = {{"model", "nano"},
                       {"max_tokens", 20},
                       {"messages", json::array({{{"role", "user"}, {"content", "hello there"}}})}};
    const json count = server.post("/v1/messages/count_tokens", body).parsed();
    const json usage = server.post("/v1/messages", body).parsed()["usage"];
    EXPECT_EQ(usage["cache_read_input_tokens"], 5);
    EXPECT_EQ(usage["input_tokens"].get<int>() + 5, count["input_tokens"].get<int>());
}

TEST(Responses, TurnsAreStoredForTheirOwner) {
    const TestServer server({.text = "</think>Paris."});
    const json first =
        server.post("/v1/responses", {{"model", "nano"}, {"input", "Capital of France?"}}).parsed();
    ASSERT_EQ(first["status"], "completed") << first;
    EXPECT_EQ(first["store"], true);
    const std::string id = first["id"];
    EXPECT_EQ(server.get("/v1/responses/" + id).parsed(), first);
    const json second = server
                            .post("/v1/responses",
                                  {{"model", "nano"},
                                   {"input", "And of Italy?"},
                                   {"previous_response_id", id},
                                   {"stream", false}})
                            .parsed();
    ASSERT_EQ(second["status"], "completed") << second;
    EXPECT_EQ(second["previous_response_id"], id);
    // The prompt holds the turn before.
    const json alone =
        server.post("/v1/responses", {{"model", "nano"}, {"input", "And of Italy?"}}).parsed();
    EXPECT_GT(second["usage"]["input_tokens"].get<int>(),
              alone["usage"]["input_tokens"].get<int>() + 5);
    // The same as sending it.
    json items = json::array({{{"role", "user"}, {"content", "Capital of France?"}}});
    for (const json& item : first["output"]) items.push_back(item);
    items.push_back({{"role", "user"}, {"content", "And of Italy?"}});
    const json sent = server.post("/v1/responses", {{"model", "nano"}, {"input", items}}).parsed();
    EXPECT_EQ(sent["usage"]["input_tokens"], second["usage"]["input_tokens"]);

    EXPECT_EQ(call(server.port(), "DELETE", "/v1/responses/" + id).status, 200);
    EXPECT_EQ(server.get("/v1/responses/" + id).status, 404);
    const HttpResult gone = server.post(
        "/v1/responses", {{"model", "nano"}, {"input", "x"}, {"previous_response_id", id}});
    EXPECT_EQ(gone.status, 404);
    EXPECT_EQ(gone.parsed()["error"]["param"], "previous_response_id");
    const json unstored =
        server.post("/v1/responses", {{"model", "nano"}, {"input", "x"}, {"store", false}})
            .parsed();
    EXPECT_EQ(server.get("/v1/responses/" + unstored["id"].get<std::string>()).status, 404);
}

TEST(Responses, StreamedAndWholeAgree) {
    const TestServer server({.text = kToolScript});
    json tools = json::array();
    for (const char* name : {"a", "b"})
        tools.push_back({{"type", "function"},
                         {"name", name},
                         {"parameters", {{"type", "object"}, {"properties", json::object()}}}});
    json body = {{"model", "nano"}, {"input", "hi"}, {"tools", tools}, {"top_logprobs", 1}};
    const json whole = server.post("/v1/responses", body).parsed();
    body["stream"] = true;
    const HttpResult stream = server.post("/v1/responses", body);
    int64_t sequence = 0;
    json last;
    for (const std::string& data : events_of(stream.body)) {
        last = json::parse(data);
        EXPECT_EQ(last["sequence_number"], sequence++);
    }
    ASSERT_EQ(last["type"], "response.completed");
    ASSERT_EQ(last["response"]["output"].size(), whole["output"].size());
    for (size_t i = 0; i < whole["output"].size(); ++i) {
        EXPECT_EQ(last["response"]["output"][i]["type"], whole["output"][i]["type"]);
        for (const char* key : {"content", "arguments", "name", "status"})
            EXPECT_EQ(last["response"]["output"][i].value(key, json()),
                      whole["output"][i].value(key, json()));
    }
    EXPECT_FALSE(whole["output"][1]["content"][0]["logprobs"].empty());
    EXPECT_EQ(last["response"]["usage"], whole["usage"]);
}

TEST(Completions, TextGoesOn) {
    const TestServer server({.text = " and more"});
    json body = {{"model", "nano"}, {"prompt", json::array({"One", "Two"})}, {"n", 2}};
    const json whole = server.post("/v1/completions", body).parsed();
    ASSERT_EQ(whole["choices"].size(), 4u) << whole;
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(whole["choices"][i]["index"], i);
        EXPECT_EQ(whole["choices"][i]["text"], " and more");
        EXPECT_EQ(whole["choices"][i]["finish_reason"], "stop");
    }
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    std::map<int, std::string> texts;
    json usage;
    const std::vector<std::string> events = events_of(server.post("/v1/completions", body).body);
    for (const std::string& data : events) {
        if (data == "[DONE]") continue;
        const json event = json::parse(data);
        if (!event["usage"].is_null()) usage = event["usage"];
        for (const json& choice : event["choices"])
            texts[choice["index"]] += choice["text"].get<std::string>();
    }
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(usage, whole["usage"]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(texts[i], " and more");
}

TEST(Completions, EchoAndLimits) {
    const TestServer server({.text = " x y z"});
    json body = {
        {"model", "nano"}, {"prompt", "Say"}, {"echo", true}, {"max_tokens", 2}, {"logprobs", 0}};
    const json answer = server.post("/v1/completions", body).parsed();
    EXPECT_EQ(answer["choices"][0]["text"].get<std::string>().rfind("Say", 0), 0u) << answer;
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
    const auto refused = [&](json more, const char* param) {
        json wrong = {{"model", "nano"}, {"prompt", "Say"}};
        wrong.update(more);
        const HttpResult r = server.post("/v1/completions", wrong);
        EXPECT_EQ(r.status, 400) << more;
        EXPECT_EQ(r.parsed()["error"]["param"], param) << r.body;
    };
    refused({{"max_tokens", 0}}, "max_tokens");
    refused({{"n", 17}}, "n");
    refused({{"best_of", 3}}, "best_of");
    refused({{"logprobs", 21}}, "logprobs");
    refused({{"prompt", json::array()}}, "prompt");
    refused({{"prompt", json::array({-1})}}, "prompt");
    refused({{"prompt", json::array({1 << 30})}}, "prompt");
    refused({{"prompt", json::object()}}, "prompt");
    refused({{"stop", json::array({""})}}, "stop");
    refused({{"stop", std::string(257, 'a')}}, "stop");
    refused({{"suffix", "b"}, {"prompt", std::vector<std::string>(129, "a")}}, "prompt");
    EXPECT_EQ(server
                  .post("/v1/completions",
                        {{"model", "nano"}, {"prompt", "a"}, {"stop", std::string(256, 'a')}})
                  .status,
              200);
    EXPECT_EQ(server.post("/v1/completions", {{"model", "other"}, {"prompt", "a"}}).status, 404);
}

TEST(Tokens, ThereAndBack) {
    const TestServer server;
    const json ids = server.post("/tokenize", {{"prompt", "Hello, world"}}).parsed();
    EXPECT_EQ(ids["count"], ids["tokens"].size());
    EXPECT_EQ(ids["max_model_len"], 4096);
    const json bare = server
                          .post("/tokenize",
                                {{"prompt", "Hello, world"},
                                 {"add_special_tokens", false},
                                 {"return_token_strs", true}})
                          .parsed();
    EXPECT_EQ(bare["tokens"].size() + 1, ids["tokens"].size());
    EXPECT_EQ(bare["token_strs"].size(), bare["tokens"].size());
    EXPECT_EQ(server.post("/detokenize", {{"tokens", bare["tokens"]}}).parsed()["prompt"],
              "Hello, world");
    const json chat = server.post("/tokenize", TestServer::chat()).parsed();
    EXPECT_GT(chat["count"].get<int>(), 5);
    EXPECT_EQ(server.post("/detokenize", {{"tokens", {1 << 30}}}).status, 400);
    EXPECT_EQ(server.post("/tokenize", {{"prompt", 5}}).status, 400);
}

TEST(Models, AnswerInBothShapes) {
    ServerConfig config;
    config.served_model_names = {"one", "two"};
    const TestServer server({}, config);
    const json list = server.get("/v1/models").parsed();
    EXPECT_EQ(list["object"], "list");
    EXPECT_EQ(list["data"][1]["id"], "two");
    const json anthropic = server.get("/v1/models", "anthropic-version: 2023-06-01\r\n").parsed();
    EXPECT_EQ(anthropic["data"][0]["type"], "model");
    EXPECT_EQ(anthropic["last_id"], "two");
    EXPECT_EQ(server.get("/v1/models/two").parsed()["id"], "two");
    EXPECT_EQ(server.get("/v1/models/three").status, 404);
}

TEST(Refusals, NameWhatIsLacking) {
    const TestServer server;  // a model without a vision tower
    const json part = {{"type", "image_url"},
                       {"image_url", {{"url", "data:image/png;base64,AAAA"}}}};
    const json messages = json::array({{{"role", "user"}, {"content", json::array({part})}}});
    const HttpResult r =
        server.post("/v1/chat/completions", TestServer::chat({{"messages", messages}}));
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(r.parsed()["error"]["param"], "messages") << r.body;
    EXPECT_NE(r.body.find("takes no pictures"), std::string::npos) << r.body;
    EXPECT_EQ(server.post("/v1/embeddings", {{"model", "nano"}, {"input", "x"}}).status, 501);
}

}  // namespace
}  // namespace deepinfer::server
