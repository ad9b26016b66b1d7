// Limits at and over, hostile and slow peers, the end of the server.
#include <fstream>

#include "server/http_message.h"
#include "server/server_test_util.h"

namespace deepinfer::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

TEST(Limits, OfTheBodyHoldExactly) {
    ServerConfig config;
    ServerLimits& l = config.limits;
    l.json_depth = 8;
    l.json_keys = 16;
    l.json_string_bytes = 2000;
    l.messages = 3;
    l.tools = 2;
    l.schema_bytes = 200;
    l.body_bytes = 10'000;
    l.prompt_text_bytes = 3000;
    const TestServer server({.text = "</think>ok"}, config);
    const auto status = [&](json more) {
        return server.post(kChat, TestServer::chat(more)).status;
    };
    // Depth: the body is one level, metadata the others.
    const auto nested = [](int depth) {
        json inner = 1;
        for (int i = 1; i < depth; ++i) inner = json::array({inner});
        return inner;
    };
    EXPECT_EQ(status({{"metadata", nested(8)}}), 200);
    EXPECT_EQ(status({{"metadata", nested(9)}}), 400);
    const auto keys = [](int n) {
        json out = json::object();
        for (int i = 0; i < n; ++i) out["k" + std::to_string(i)] = 1;
        return out;
    };
    EXPECT_EQ(status({{"metadata", keys(16)}}), 200);
    EXPECT_EQ(status({{"metadata", keys(17)}}), 400);
    EXPECT_EQ(status({{"metadata", std::string(2000, 'a')}}), 200);
    EXPECT_EQ(status({{"metadata", std::string(2001, 'a')}}), 400);
    const auto messages = [](int n) {
        return json(
            std::vector<json>(static_cast<size_t>(n), {{"role", "user"}, {"content", "hi"}}));
    };
    EXPECT_EQ(status({{"messages", messages(3)}}), 200);
    EXPECT_EQ(status({{"messages", messages(4)}}), 400);
    const auto tools = [](int n, size_t description) {
        json out = json::array();
        for (int i = 0; i < n; ++i)
            out.push_back(
                {{"type", "function"},
                 {"function",
                  {{"name", "t" + std::to_string(i)},
                   {"parameters",
                    {{"type", "object"}, {"description", std::string(description, 'd')}}}}}});
        return out;
    };
    EXPECT_EQ(status({{"tools", tools(2, 1)}}), 200);
    EXPECT_EQ(status({{"tools", tools(3, 1)}}), 400);
    const size_t frame = std::string(R"({"description": "", "type": "object"})").size();
    EXPECT_EQ(status({{"tools", tools(1, 200 - frame)}}), 200);
    EXPECT_EQ(status({{"tools", tools(1, 201 - frame)}}), 400);
    EXPECT_EQ(status({{"stop", std::string(256, 's')}}), 200);
    EXPECT_EQ(status({{"stop", std::string(257, 's')}}), 400);
    EXPECT_EQ(status({{"stop", std::vector<std::string>(16, "s")}}), 200);
    EXPECT_EQ(status({{"stop", std::vector<std::string>(17, "s")}}), 400);
    EXPECT_EQ(status({{"n", 16}}), 200);
    EXPECT_EQ(status({{"n", 17}}), 400);
    EXPECT_EQ(status({{"logprobs", true}, {"top_logprobs", 20}}), 200);
    EXPECT_EQ(status({{"logprobs", true}, {"top_logprobs", 21}}), 400);
    EXPECT_EQ(status({{"cache_salt", std::string(256, 's')}}), 200);
    EXPECT_EQ(status({{"cache_salt", std::string(257, 's')}}), 400);
    // Duplicate keys have two meanings.
    EXPECT_EQ(call(server.port(),
                   "POST",
                   kChat,
                   R"({"model":"nano","model":"nano","messages":[{"role":"user","content":"x"}]})")
                  .status,
              400);
    // The body's own size, said or chunked.
    const auto sized = [&](size_t bytes) {
        std::string out = TestServer::chat().dump();
        out.insert(1, std::string(bytes - out.size(), ' '));
        return out;
    };
    EXPECT_EQ(call(server.port(), "POST", kChat, sized(10'000)).status, 200);
    EXPECT_EQ(call(server.port(), "POST", kChat, sized(10'001)).status, 413);
    const auto chunked = [&](size_t bytes) {
        const std::string text = sized(bytes);
        RawSocket socket(server.port());
        socket.send(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Transfer-Encoding: chunked\r\n\r\n");
        for (size_t at = 0; at < text.size(); at += 1000) {
            std::string out;
            append_chunk(std::string_view(text).substr(at, 1000), &out);
            socket.send(out);
        }
        socket.send("0\r\n\r\n");
        return socket.receive_all().substr(9, 3);
    };
    EXPECT_EQ(chunked(10'000), "200");
    EXPECT_EQ(chunked(10'001), "413");
    server.expect_alive();
}

TEST(Limits, LogitBiasHasAtMost1024Entries) {
    const TestServer server({.text = "</think>ok"});
    const auto status = [&](int n) {
        json bias = json::object();
        for (int i = 0; i < n; ++i) bias[std::to_string(i)] = 1;
        return server.post(kChat, TestServer::chat({{"logit_bias", bias}})).status;
    };
    EXPECT_EQ(status(1024), 200);
    EXPECT_EQ(status(1025), 400);
    EXPECT_EQ(server.post(kChat, TestServer::chat({{"logit_bias", {{"99999999", 1}}}})).status,
              400);
}

TEST(Limits, OfConnectionsHoldExactly) {
    ServerConfig config;
    config.limits.connections_per_ip = 3;
    const TestServer server({}, config);
    const auto refused = [&](RawSocket& s) {
        s.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        return s.receive_until("\r\n\r\n", 3000).find("503") != std::string::npos;
    };
    std::vector<std::unique_ptr<RawSocket>> sockets;
    for (int i = 0; i < 3; ++i) {
        sockets.push_back(std::make_unique<RawSocket>(server.port()));
        EXPECT_FALSE(refused(*sockets.back()));
    }
    RawSocket fourth(server.port());
    EXPECT_TRUE(refused(fourth));
    // The admin listener is not crowded out, and a place becomes free again.
    EXPECT_EQ(server.admin("/health").status, 200);
    sockets.clear();
    EXPECT_TRUE(server.reaches([](const json& s) { return s["http"]["connections"] == 1; }));
    RawSocket again(server.port());
    EXPECT_FALSE(refused(again));
}

TEST(Limits, TheQueueSaysLater) {
    const TestServer server(
        {.finish_with_eos = false, .max_queue = 1, .max_num_seqs = 1, .step_us = 2000});
    RawSocket running(server.port()), waiting(server.port());
    const std::string body =
        request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump());
    running.send(body);
    running.receive_until("\"w\"");
    waiting.send(body);
    EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["waiting"] == 1; }));
    const HttpResult r = server.post(kChat, TestServer::chat());
    EXPECT_EQ(r.status, 429);
    EXPECT_EQ(r.field("retry-after"), "1");
    EXPECT_EQ(r.parsed()["error"]["type"], "rate_limit_error");
}

TEST(Limits, OfTimeEndWithATypedError) {
    ServerConfig config;
    config.limits.queue_timeout_ms = 300;
    config.limits.total_timeout_ms = 900;
    const TestServer server({.finish_with_eos = false, .max_num_seqs = 1, .step_us = 5000}, config);
    RawSocket running(server.port());
    running.send(request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump()));
    running.receive_until("\"w\"");
    const HttpResult queued = server.post(kChat, TestServer::chat());
    EXPECT_EQ(queued.status, 503);
    EXPECT_NE(queued.body.find("300 ms"), std::string::npos) << queued.body;
    const std::string all = running.receive_until("[DONE]", 5000);
    EXPECT_NE(all.find("900 ms"), std::string::npos);
    EXPECT_NE(all.find("data: {\"error\""), std::string::npos);
    EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["running"] == 0; }));
    // Messages and Responses say it in their own words.
    const json messages = json::array({{{"role", "user"}, {"content", "hi"}}});
    const HttpResult m = server.post(
        "/v1/messages",
        {{"model", "nano"}, {"max_tokens", 4000}, {"messages", messages}, {"stream", true}});
    EXPECT_NE(m.body.find("event: error\ndata: {\"type\": \"error\""), std::string::npos);
    const HttpResult r =
        server.post("/v1/responses", {{"model", "nano"}, {"input", "hi"}, {"stream", true}});
    const json last = json::parse(events_of(r.body).back());
    EXPECT_EQ(last["type"], "response.failed");
    EXPECT_EQ(last["response"]["status"], "failed");
}

TEST(HostilePeers, SlowHeadsAndBodiesAreEnded) {
    ServerConfig config;
    config.limits.header_timeout_ms = 400;
    config.limits.body_timeout_ms = 600;
    config.limits.idle_timeout_ms = 500;
    const TestServer server({.text = "</think>ok"}, config);
    RawSocket head(server.port()), body(server.port()), silent(server.port());
    head.send("GET /health HTTP/1.1\r\nHost: lo");
    body.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    EXPECT_NE(head.receive_all(4000).find("408 Request Timeout"), std::string::npos);
    EXPECT_TRUE(head.closed_by_peer());
    EXPECT_NE(body.receive_all(4000).find("408 Request Timeout"), std::string::npos);
    EXPECT_EQ(silent.receive_all(4000), "");
    EXPECT_TRUE(silent.closed_by_peer());
    server.expect_alive();
}

TEST(HostilePeers, FloodsGetATypedErrorAndHarmNobody) {
    const TestServer server({.text = "</think>ok"});
    const auto answer = [&](const std::string& bytes) {
        RawSocket socket(server.port());
        socket.send(bytes);
        const std::string all = socket.receive_all(6000);
        EXPECT_TRUE(socket.closed_by_peer());
        return all.size() > 12 ? std::stoi(all.substr(9, 3)) : 0;
    };
    std::string fields;
    for (int i = 0; i < 5000; ++i) fields += "X-" + std::to_string(i) + ": y\r\n";
    EXPECT_EQ(answer("GET / HTTP/1.1\r\n" + fields), 431);
    EXPECT_EQ(answer("GET / HTTP/1.1\r\nHost: " + std::string(100'000, 'h')), 431);
    EXPECT_EQ(answer("GET /" + std::string(100'000, 'a')), 414);
    EXPECT_EQ(answer("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                     "9999999999999\r\n\r\n"),
              413);
    EXPECT_EQ(answer(std::string(100'000, '\0')), 400);
    const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n";  // of TLS
    EXPECT_EQ(answer(std::string(hello, sizeof hello - 1)), 400);
    EXPECT_EQ(answer("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
    EXPECT_EQ(answer("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: "
                     "chunked\r\n\r\n0\r\n\r\n"),
              400);
    server.expect_alive();
}

TEST(HostilePeers, DisconnectStormsLeaveNothingBehind) {
    const TestServer server({.finish_with_eos = false, .step_us = 500});
    for (int round = 0; round < 4; ++round) {
        std::vector<std::unique_ptr<RawSocket>> sockets;
        for (int i = 0; i < 50; ++i) {
            sockets.push_back(std::make_unique<RawSocket>(server.port()));
            sockets.back()->send(
                request_text("POST", kChat, TestServer::chat({{"stream", i % 2 == 0}}).dump()));
        }
        for (size_t i = 0; i < sockets.size(); ++i)
            i % 3 == 0 ? sockets[i]->reset() : sockets[i]->close();
    }
    EXPECT_TRUE(server.reaches(
        [](const json& s) {
            return s["engine"]["running"] == 0 && s["engine"]["waiting"] == 0 &&
                   s["generation"]["open"] == 0 && s["http"]["connections"] == 1;
        },
        10000))
        << server.status();
}

TEST(HostilePeers, AReaderThatDoesNotReadIsEnded) {
    ServerConfig config;
    config.limits.send_timeout_ms = 700;
    const TestServer server({.finish_with_eos = false, .max_model_len = 400'000}, config);
    RawSocket slow(server.port());
    slow.small_receive_buffer();
    slow.send(request_text(
        "POST", kChat, TestServer::chat({{"stream", true}, {"max_tokens", 390'000}}).dump()));
    EXPECT_TRUE(
        server.reaches([](const json& s) { return s["generation"]["slow_clients"] == 1; }, 15000))
        << server.status();
    EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["running"] == 0; }));
    server.expect_alive();
}

TEST(Connections, GoOnAndTakePipelinedRequests) {
    const TestServer server({.text = "</think>ok"});
    RawSocket socket(server.port());
    const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    socket.send(get + get +
                "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    const std::string all = socket.receive_all();
    size_t count = 0;
    for (size_t at = 0; (at = all.find("200 OK", at)) != std::string::npos; ++at) ++count;
    EXPECT_EQ(count, 3u) << all;
    RawSocket old(server.port());
    old.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
             std::to_string(TestServer::chat({{"stream", true}}).dump().size()) + "\r\n\r\n" +
             TestServer::chat({{"stream", true}}).dump());
    const std::string answer = old.receive_all();
    EXPECT_EQ(answer.find("chunked"), std::string::npos);
    EXPECT_NE(answer.find("data: [DONE]"), std::string::npos);
    RawSocket expecting(server.port());
    const std::string body = TestServer::chat().dump();
    expecting.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: "
        "100-continue\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n");
    EXPECT_NE(expecting.receive_until("100 Continue").find("100 Continue"), std::string::npos);
    expecting.send(body);
    EXPECT_NE(expecting.receive_all().find("200 OK"), std::string::npos);
}

TEST(Connections, ASilentStreamIsKeptAlive) {
    ServerConfig config;
    config.limits.keep_alive_ms = 100;
    const TestServer server({.finish_with_eos = false, .max_num_seqs = 1, .step_us = 2000}, config);
    RawSocket running(server.port()), waiting(server.port());
    const std::string body =
        request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump());
    running.send(body);
    running.receive_until("\"w\"");
    waiting.send(body);
    EXPECT_NE(waiting.receive_until(": keep-alive").find(": keep-alive"), std::string::npos);
}

TEST(Requests, CanBeTakenBackByTheirOwner) {
    const TestServer server({.finish_with_eos = false, .step_us = 2000});
    RawSocket socket(server.port());
    socket.send(request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump()));
    const std::string head = socket.receive_until("\"w\"");
    const size_t at = head.find("x-request-id: ") + 14;
    const std::string id = head.substr(at, head.find("\r\n", at) - at);
    const json live = call(server.server->admin_port(), "GET", "/admin/requests").parsed();
    ASSERT_EQ(live["requests"].size(), 1u);
    EXPECT_EQ(live["requests"][0]["id"], id);
    EXPECT_EQ(call(server.port(), "DELETE", "/v1/requests/other").status, 404);
    EXPECT_EQ(call(server.port(), "DELETE", "/v1/requests/" + id).status, 200);
    EXPECT_NE(socket.receive_until("[DONE]").find("cancelled"), std::string::npos);
    EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["running"] == 0; }));
}

TEST(Ending, LetsOpenRequestsFinishThenEndsTheRest) {
    const TestServer server({.finish_with_eos = false, .step_us = 2000});
    RawSocket quick(server.port()), endless(server.port()), idle(server.port());
    quick.send(request_text(
        "POST", kChat, TestServer::chat({{"stream", true}, {"max_tokens", 60}}).dump()));
    endless.send(request_text(
        "POST", kChat, TestServer::chat({{"stream", true}, {"max_tokens", 3000}}).dump()));
    endless.receive_until("\"w\"");
    quick.receive_until("\"w\"");
    std::thread drain([&] { server.server->drain(100, 600); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(server.admin("/ready").parsed()["status"], "draining");
    EXPECT_EQ(server.get("/health").status, 200);  // still accepting
    const std::string finished = quick.receive_until("[DONE]");
    EXPECT_NE(finished.find("\"finish_reason\": \"length\""), std::string::npos);
    const std::string ended = endless.receive_all();
    drain.join();
    EXPECT_NE(ended.find("shutting down"), std::string::npos);
    EXPECT_NE(ended.find("data: [DONE]"), std::string::npos);
    EXPECT_EQ(idle.receive_all(2000), "");
    EXPECT_TRUE(idle.closed_by_peer());
    RawSocket late(server.port());
    late.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(late.receive(500), "");
}

TEST(Ending, AtOnceWithOpenRequestsIsClean) {
    auto server = std::make_unique<TestServer>(Script{.finish_with_eos = false, .step_us = 1000});
    std::vector<std::unique_ptr<RawSocket>> sockets;
    for (int i = 0; i < 20; ++i) {
        sockets.push_back(std::make_unique<RawSocket>(server->port()));
        sockets.back()->send(
            request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump()));
    }
    sockets.back()->receive_until("\"w\"");
    server.reset();
    for (const auto& socket : sockets) socket->receive_all(2000);
}

TEST(Draining, CanBeTakenBack) {
    const TestServer server;
    const int admin = server.server->admin_port();
    EXPECT_EQ(call(admin, "POST", "/admin/drain", "{}").parsed()["phase"], "draining");
    EXPECT_EQ(server.get("/ready").status, 503);
    EXPECT_EQ(call(admin, "POST", "/admin/undrain", "{}").parsed()["phase"], "ready");
    EXPECT_EQ(server.get("/ready").status, 200);
}

TEST(Logs, HoldNoContent) {
    const std::string path = testing::TempDir() + "/server_" + std::to_string(getpid()) + ".log";
    {
        ServerConfig config;
        config.log_file = path;
        const TestServer server({.text = "</think>a hidden answer"}, config);
        server.post(
            kChat,
            TestServer::chat(
                {{"messages", json::array({{{"role", "user"}, {"content", "secret question"}}})},
                 {"user", "somebody"}}));
        server.post(kChat,
                    TestServer::chat({{"messages", json::array({{{"role", "secret role"}}})}}));
    }
    std::ifstream file(path);
    std::string line, all;
    bool found = false;
    while (std::getline(file, line)) {
        const json entry = json::parse(line);
        all += line;
        if (entry["event"] == "request" && entry["status"] == 200) {
            found = true;
            EXPECT_EQ(entry["route"], "chat_completions");
            EXPECT_GT(entry["prompt_tokens"], 0);
            EXPECT_GT(entry["completion_tokens"], 0);
            EXPECT_EQ(entry["finish_reason"], "stop");
            EXPECT_EQ(entry["user"].get<std::string>().size(), 16u);
        }
    }
    EXPECT_TRUE(found);
    for (const char* word : {"secret", "hidden", "somebody"})
        EXPECT_EQ(all.find(word), std::string::npos) << word;
    std::remove(path.c_str());
}

TEST(Metrics, CountWhatHappened) {
    const TestServer server({.text = "a</think>b"});
    server.post(kChat, TestServer::chat());
    server.post(kChat, {{"x", 1}});
    const std::string text = server.admin("/metrics").body;
    for (const char* line :
         {"deepinfer_http_requests_total{model_name=\"nano\",engine=\"0\",route=\"chat_"
          "completions\",status=\"200\"} 1",
          "deepinfer_http_requests_total{model_name=\"nano\",engine=\"0\",route=\"chat_"
          "completions\",status=\"400\"} 1",
          "vllm:request_success_total{model_name=\"nano\",engine=\"0\",finished_reason=\"stop\"} 1",
          "vllm:time_to_first_token_seconds_count{model_name=\"nano\",engine=\"0\"} 1",
          "vllm:num_requests_running{model_name=\"nano\",engine=\"0\"} 0",
          "vllm:cache_config_info{"})
        EXPECT_NE(text.find(line), std::string::npos) << line;
    ServerConfig config;
    config.vllm_metrics = false;
    const TestServer bare({}, config);
    EXPECT_EQ(bare.admin("/metrics").body.find("vllm:"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::server
