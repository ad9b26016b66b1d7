// The handed cases of tests/data/cases/server.json, over HTTP. C-085 (remote images) stands in
// pictures_test.cpp.
#include <cctype>

#include "server/server_test_util.h"
#include "support/case_file.h"

namespace deepinfer::server {
namespace {

json case_of(const std::string& id) {
    return testing::load_case("server.json", id);
}

/// A user message whose prompt has exactly this many tokens.
json prompt_of(const TestServer& server, size_t tokens, const json& more) {
    std::string text = "w";
    for (;;) {
        json body =
            TestServer::chat({{"messages", json::array({{{"role", "user"}, {"content", text}}})},
                              {"thinking", {{"type", "disabled"}}}});
        const size_t count = server.post("/tokenize", body).parsed()["count"];
        if (count == tokens) {
            body.update(more);
            return body;
        }
        if (count > tokens) return json();
        for (size_t i = count; i < tokens; ++i) text += " w";
    }
}

TEST(ServerCases, C083HangUps) {
    const json c = case_of("C-083");
    ASSERT_EQ(c["rows"].size(), 6u);
    // Seqs 1: "queued behind a full batch" is a second request.
    const TestServer server(
        {.finish_with_eos = false, .max_model_len = 8000, .max_num_seqs = 1, .step_us = 2000});
    const auto text = [](bool stream) {
        return request_text("POST",
                            "/v1/chat/completions",
                            TestServer::chat({{"stream", stream}, {"max_tokens", 4000}}).dump());
    };
    const auto quiet = [&] {
        return server.reaches(
            [](const json& s) {
                return s["engine"]["running"] == 0 && s["engine"]["waiting"] == 0 &&
                       s["generation"]["open"] == 0;
            },
            1000);
    };
    const auto generated = [&] {
        return server.status()["generation"]["generation_tokens"].get<int64_t>();
    };
    {
        RawSocket socket(server.port());  // stream, after two tokens
        socket.send(text(true));
        socket.receive_until("\"w\"");
        socket.close();
        EXPECT_TRUE(quiet());
        EXPECT_LT(generated(), 200);
    }
    for (const bool hard : {false, true}) {
        RawSocket socket(server.port());  // whole, after 100 ms
        socket.send(text(false));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        hard ? socket.reset() : socket.close();
        EXPECT_TRUE(quiet()) << hard;
        EXPECT_LT(generated(), 600);
    }
    {
        RawSocket first(server.port()), second(server.port());  // queued
        first.send(text(true));
        first.receive_until("\"w\"");
        second.send(text(false));
        EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["waiting"] == 1; }));
        second.close();
        EXPECT_TRUE(
            server.reaches([](const json& s) { return s["engine"]["waiting"] == 0; }, 1000));
        EXPECT_EQ(server.status()["engine"]["running"], 1);
        first.close();
        EXPECT_TRUE(quiet());
    }
    for (const bool stream : {true, false}) {
        RawSocket socket(server.port());  // sends no more, but reads: the request goes on
        socket.send(
            request_text("POST",
                         "/v1/chat/completions",
                         TestServer::chat({{"stream", stream}, {"max_tokens", 40}}).dump()));
        socket.half_close();
        const std::string all = socket.receive_all();
        EXPECT_NE(all.find("\"finish_reason\": \"length\""), std::string::npos) << all;
        EXPECT_TRUE(quiet());
    }
    const int64_t aborts = server.status()["generation"]["aborts"];
    EXPECT_EQ(aborts, 5);
    EXPECT_EQ(
        server.post("/v1/chat/completions", TestServer::chat({{"stream", true}, {"max_tokens", 5}}))
            .status,
        200);
    EXPECT_EQ(server.status()["generation"]["aborts"], aborts);  // a normal end sends none
}

TEST(ServerCases, C084PromptsTooLong) {
    const json c = case_of("C-084");
    const TestServer server({.finish_with_eos = false, .max_model_len = 512});
    int num_run = 0;
    for (const json& row : c["rows"]) {
        const json& in = row["in"];
        const json& want = row["want"];
        SCOPED_TRACE(in.dump());
        json more = json::object();
        for (const char* key : {"max_tokens", "n", "stream"})
            if (in.contains(key) && !in[key].is_null()) more[key] = in[key];
        const std::string path = in.value("endpoint", "/v1/chat/completions");
        json body = prompt_of(server, in["prompt_tokens"], more);
        ASSERT_FALSE(body.is_null());
        if (path == "/v1/responses") {
            body["input"] = body["messages"];
            body.erase("messages");
            body["reasoning"] = {{"effort", "none"}};
        }
        const HttpResult r = server.post(path, body);
        EXPECT_EQ(r.status, want["status"]) << r.body;
        if (want.contains("code")) {
            EXPECT_EQ(r.parsed()["error"]["code"], want["code"]);
        }
        if (want.contains("error_type")) {
            EXPECT_EQ(r.parsed()["error"]["type"], want["error_type"]);
        }
        if (want.contains("content_type")) {
            EXPECT_EQ(r.field("content-type"), want["content_type"]);
        }
        if (want.contains("sse_bytes")) {
            EXPECT_EQ(r.body.find("data:"), std::string::npos);
        }
        if (want.contains("completion_tokens_at_most")) {
            EXPECT_LE(r.parsed()["usage"]["completion_tokens"], want["completion_tokens_at_most"]);
        }
        ++num_run;
    }
    EXPECT_EQ(num_run, 12);
    server.expect_alive();
}

TEST(ServerCases, C086MalformedRequests) {
    const json c = case_of("C-086");
    const TestServer server({.text = "</think>ok"});
    int num_run = 0;
    for (const json& row : c["rows"]) {
        const json& in = row["in"];
        const json& want = row["want"];
        SCOPED_TRACE(in.dump());
        std::string body;
        if (in.contains("body")) {
            body = TestServer::chat(in["body"]).dump();
        } else if (in.contains("exact_body")) {
            json exact = in["exact_body"];
            exact["model"] = "nano";
            body = exact.dump();
        } else if (in.contains("raw")) {
            body = in["raw"];
        } else if (in.contains("raw_hex")) {
            const std::string hex = in["raw_hex"];
            std::string digits;
            for (const char ch : hex)
                if (std::isxdigit(static_cast<unsigned char>(ch)) != 0) digits.push_back(ch);
            for (size_t i = 0; i + 1 < digits.size(); i += 2)
                body.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
        } else if (in.contains("raw_recipe")) {
            body.assign(100000, '[');
        }
        std::string fields =
            "Content-Type: " + in.value("content_type", "application/json") + "\r\n";
        if (body.empty() && in.contains("raw")) fields += "Content-Length: 0\r\n";
        const auto begin = std::chrono::steady_clock::now();
        const std::string path = in.value("path", "/v1/chat/completions");
        const HttpResult r = call(server.port(), in.value("method", "POST"), path, body, fields);
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (want.contains("param")) {
            EXPECT_EQ(r.status, 400) << r.body;
            EXPECT_EQ(r.parsed()["error"]["param"], want["param"]) << r.body;
        } else if (want["status"].is_number()) {
            EXPECT_EQ(r.status, want["status"]) << r.body;
        } else {
            EXPECT_TRUE(r.status == 200 || r.status == 415) << r.body;
        }
        if (want.contains("code")) {
            EXPECT_EQ(r.parsed()["error"]["code"], want["code"]);
        }
        if (want.contains("seconds_below")) {
            EXPECT_LT(seconds, want["seconds_below"]);
        }
        EXPECT_EQ(r.field("content-type"), "application/json");
        if (r.status != 200) {
            for (const char* key : {"message", "type", "param", "code"})
                EXPECT_TRUE(r.parsed()["error"].contains(key)) << r.body;
            // The same body on Messages has the other envelope.
            if (path == "/v1/chat/completions" && in.value("method", "POST") == "POST") {
                const HttpResult other = call(server.port(), "POST", "/v1/messages", body, fields);
                if (other.status >= 400) {
                    EXPECT_EQ(other.parsed()["type"], "error") << other.body;
                    EXPECT_LT(other.status, 500);
                }
            }
        }
        ++num_run;
    }
    EXPECT_EQ(num_run, static_cast<int>(c["rows"].size()));
    EXPECT_GT(num_run, 45);
    server.expect_alive();
}

TEST(ServerCases, C087MessagesBlocks) {
    const json c = case_of("C-087");
    int num_run = 0;
    for (const json& row : c["rows"]) {
        const json& in = row["in"];
        const json& want = row["want"];
        SCOPED_TRACE(in.dump());
        const bool cut = in.value("finish", "") == "length";
        const TestServer server(
            {.text = in.value("script", "Hi"), .cached_tokens = in.value("cached_tokens", 0)});
        json body = {{"model", "nano"},
                     {"max_tokens", 300},
                     {"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                     {"thinking", {{"type", in.value("thinking", true) ? "enabled" : "disabled"}}}};
        if (in.contains("script") &&
            in["script"].get<std::string>().find("invoke") != std::string::npos)
            body["tools"] = json::array({{{"name", "a"}, {"input_schema", {{"type", "object"}}}},
                                         {{"name", "b"}, {"input_schema", {{"type", "object"}}}}});
        if (cut) body["max_tokens"] = 1;
        const json whole = server.post("/v1/messages", body).parsed();
        ++num_run;
        if (want.contains("input_tokens")) {
            // The row's counts, by its rule: input_tokens are the uncached ones.
            const json& usage = whole["usage"];
            EXPECT_EQ(
                usage["cache_read_input_tokens"].get<int>() + usage["input_tokens"].get<int>(),
                server.post("/v1/messages/count_tokens", body).parsed()["input_tokens"].get<int>());
            continue;
        }
        body["stream"] = true;
        std::vector<json> blocks;
        std::string stop_reason;
        bool open = false;
        for (const std::string& data : events_of(server.post("/v1/messages", body).body)) {
            const json e = json::parse(data);
            const std::string type = e["type"];
            if (type == "content_block_start") {
                EXPECT_FALSE(open);
                EXPECT_EQ(e["index"], blocks.size());
                blocks.push_back(e["content_block"]);
                if (blocks.back().contains("input")) blocks.back()["input"] = "";
                open = true;
            } else if (type == "content_block_delta") {
                EXPECT_TRUE(open);
                const json& d = e["delta"];
                const auto add = [&](const char* to, const char* from) {
                    blocks.back()[to] =
                        blocks.back()[to].get<std::string>() + d[from].get<std::string>();
                };
                if (d["type"] == "text_delta") add("text", "text");
                if (d["type"] == "thinking_delta") add("thinking", "thinking");
                if (d["type"] == "signature_delta") add("signature", "signature");
                if (d["type"] == "input_json_delta") add("input", "partial_json");
            } else if (type == "content_block_stop") {
                open = false;
            } else if (type == "message_delta") {
                stop_reason = e["delta"]["stop_reason"];
            }
        }
        EXPECT_EQ(stop_reason, whole["stop_reason"]);
        if (want.contains("stop_reason")) {
            EXPECT_EQ(stop_reason, want["stop_reason"]);
        }
        ASSERT_EQ(blocks.size(), whole["content"].size()) << whole;
        std::vector<std::string> shown;
        for (size_t i = 0; i < blocks.size(); ++i) {
            const json& b = blocks[i];
            const std::string type = b["type"];
            if (type == "tool_use") {
                EXPECT_EQ(json::parse(b["input"].get<std::string>()), whole["content"][i]["input"]);
                shown.push_back("tool_use " + b["name"].get<std::string>() + " " +
                                whole["content"][i]["input"].dump());
            } else if (type == "thinking") {
                EXPECT_NE(b["signature"], "");
                EXPECT_EQ(b["thinking"], whole["content"][i]["thinking"]);
                shown.push_back("thinking");
            } else {
                EXPECT_EQ(b["text"], whole["content"][i]["text"]);
                shown.push_back("text " + b["text"].get<std::string>());
            }
        }
        if (!want.contains("blocks")) continue;
        ASSERT_EQ(shown.size(), want["blocks"].size());
        for (size_t i = 0; i < shown.size(); ++i) {
            std::string expected = want["blocks"][i];
            if (expected.rfind("thinking", 0) == 0) expected = "thinking";
            expected.erase(std::remove(expected.begin(), expected.end(), ' '), expected.end());
            std::string got = shown[i];
            got.erase(std::remove(got.begin(), got.end(), ' '), got.end());
            EXPECT_EQ(got, expected);
        }
    }
    EXPECT_EQ(num_run, 6);
}

TEST(ServerCases, C029CallsThatAreCutOffSayLength) {
    const json rows = testing::load_case("recipe_parser.json", "C-029")["rows"];
    const std::string text = rows[5]["in"]["text"];
    const int64_t num_tokens =
        static_cast<int64_t>(Tokenizer::load(demo_dir()).value().encode(text).size());
    const TestServer server({.text = text});
    const json schema = {{"type", "object"}, {"properties", json::object()}};
    const json messages = json::array({{{"role", "user"}, {"content", "q"}}});
    for (int64_t limit = 1; limit < num_tokens; limit += limit < num_tokens - 4 ? 3 : 1) {
        SCOPED_TRACE(limit);
        json body = TestServer::chat(
            {{"max_tokens", limit},
             {"thinking", {{"type", "disabled"}}},
             {"tools",
              json::array({{{"type", "function"},
                            {"function", {{"name", "f"}, {"parameters", schema}}}}})}});
        EXPECT_EQ(server.post("/v1/chat/completions", body).parsed()["choices"][0]["finish_reason"],
                  "length");
        body["stream"] = true;
        EXPECT_NE(server.post("/v1/chat/completions", body).body.find("\"length\""),
                  std::string::npos);
        EXPECT_EQ(server
                      .post("/v1/messages",
                            {{"model", "nano"},
                             {"max_tokens", limit},
                             {"messages", messages},
                             {"thinking", {{"type", "disabled"}}},
                             {"tools", json::array({{{"name", "f"}, {"input_schema", schema}}})}})
                      .parsed()["stop_reason"],
                  "max_tokens");
        EXPECT_EQ(
            server
                .post("/v1/responses",
                      {{"model", "nano"},
                       {"max_output_tokens", limit},
                       {"input", "q"},
                       {"reasoning", {{"effort", "none"}}},
                       {"tools",
                        json::array(
                            {{{"type", "function"}, {"name", "f"}, {"parameters", schema}}})}})
                .parsed()["status"],
            "incomplete");
    }
}

}  // namespace
}  // namespace deepinfer::server
