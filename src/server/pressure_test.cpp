// What clients could fill the server with: bodies, long work, connections, answers nobody reads.
#include <atomic>

#include "server/http_message.h"
#include "server/response_store.h"
#include "server/routes.h"
#include "server/server_test_util.h"

namespace deepinfer::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

/// A chat body of exactly this many bytes.
std::string sized(size_t bytes, json more = json::object()) {
    std::string out = TestServer::chat(std::move(more)).dump();
    out.insert(1, std::string(bytes - out.size(), ' '));
    return out;
}

/// The status of a body that comes in chunks, so that its size is not said beforehand.
int chunked(int port, const std::string& text) {
    RawSocket socket(port);
    socket.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < text.size(); at += 4000) {
        std::string out;
        append_chunk(std::string_view(text).substr(at, 4000), &out);
        socket.send(out);
    }
    socket.send("0\r\n\r\n");
    const std::string all = socket.receive_all();
    return all.size() > 12 ? std::stoi(all.substr(9, 3)) : 0;
}

TEST(Bodies, OfAllRequestsTogetherAreBounded) {
    ServerConfig config;
    config.limits.held_body_bytes = 100'000;
    const TestServer server({.finish_with_eos = false, .step_us = 2000}, config);
    const auto held = [&](int64_t bytes) {
        return server.reaches([&](const json& s) { return s["http"]["held_body_bytes"] == bytes; });
    };
    const json few = {{"max_tokens", 2}};
    const auto status = [&](size_t bytes) {
        return call(server.port(), "POST", kChat, sized(bytes, few)).status;
    };
    EXPECT_EQ(status(100'000), 200);
    EXPECT_EQ(status(100'001), 503);
    EXPECT_EQ(chunked(server.port(), sized(100'000, few)), 200);
    EXPECT_EQ(chunked(server.port(), sized(100'001, few)), 503);
    EXPECT_TRUE(held(0));

    // A request that is being answered keeps its part, one whose body is still coming too.
    RawSocket open(server.port()), coming(server.port());
    open.send(request_text("POST", kChat, sized(50'000, {{"stream", true}})));
    open.receive_until("\"w\"");
    coming.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "40000\r\n\r\n" +
        std::string(10'000, ' '));
    EXPECT_TRUE(held(60'000));
    EXPECT_EQ(status(40'000), 200);
    const HttpResult over = call(server.port(), "POST", kChat, sized(40'001, few));
    EXPECT_EQ(over.status, 503);
    EXPECT_EQ(over.field("retry-after"), "1");
    EXPECT_EQ(over.parsed()["error"]["type"], "overloaded_error");
    EXPECT_NE(over.body.find("100000 bytes"), std::string::npos) << over.body;
    EXPECT_EQ(chunked(server.port(), sized(40'001, few)), 503);
    // One that asks first is refused before it sends anything.
    RawSocket asking(server.port());
    asking.send(
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        "Content-Length: 40001\r\n\r\n");
    const std::string answer = asking.receive_all();
    EXPECT_EQ(answer.substr(9, 3), "503");
    EXPECT_NE(answer.find("{\"type\": \"error\""), std::string::npos) << answer;
    // Small ones come whole with their head: they count as well.
    EXPECT_EQ(status(500), 200);

    coming.close();
    EXPECT_TRUE(held(50'000));
    open.close();
    EXPECT_TRUE(held(0));
    EXPECT_EQ(status(100'000), 200);
}

TEST(LongWork, HoldsUpNobodyElse) {
    ServerConfig config;
    config.cpu_threads = 1;
    const TestServer server({.text = "</think>ok"}, config);
    std::string text;
    for (int i = 0; text.size() < (7 << 20); ++i)
        text += "word" + std::to_string(i % 100000 * 7919) + ", ";
    const std::string long_body = json{{"model", "nano"}, {"prompt", text}}.dump();
    std::vector<std::unique_ptr<RawSocket>> sockets;
    for (int i = 0; i < 4; ++i) {
        sockets.push_back(std::make_unique<RawSocket>(server.port()));
        sockets.back()->send(request_text("POST", "/tokenize", long_body));
    }
    ASSERT_TRUE(server.reaches(
        [](const json& s) { return s["http"]["held_body_bytes"] >= 4 * (7 << 20); }));
    // With one thread for all work these would come after the long ones.
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(server.get("/health").status, 200);
        server.expect_alive();
        EXPECT_EQ(server.post("/tokenize", {{"model", "nano"}, {"prompt", "a b"}}).status, 200);
    }
    EXPECT_EQ(sockets.back()->receive(0), "") << "the long work was done before the short";
    const Tokenizer tokenizer = Tokenizer::load(demo_dir()).value();
    const size_t count = tokenizer.encode(text).size() + 1;  // and the BOS
    const std::string answer = sockets.front()->receive_all(60'000);
    EXPECT_NE(answer.find("{\"count\": " + std::to_string(count) + ","), std::string::npos)
        << answer.substr(0, 400);
    // Work whose client has gone is not begun.
    for (const auto& socket : sockets) socket->close();
    EXPECT_TRUE(
        server.reaches([](const json& s) { return s["http"]["held_body_bytes"] == 0; }, 60'000));
}

TEST(LongPrompts, AreRefusedBeforeTheyAreTokenized) {
    const TestServer server({.text = "</think>ok", .max_model_len = 64});
    const Tokenizer tokenizer = Tokenizer::load(demo_dir()).value();
    const size_t longest = tokenizer.longest_token_bytes();
    // By its bytes alone, and where those leave it open, by the first 64 tokens.
    for (const size_t bytes : {longest * 70, size_t{400}, size_t{6} << 20}) {
        const std::string text(bytes, '.');
        for (const auto& [path, body] : std::vector<std::pair<std::string, json>>{
                 {kChat, TestServer::chat({{"messages", {{{"role", "user"}, {"content", text}}}}})},
                 {"/v1/completions", {{"model", "nano"}, {"prompt", text}, {"max_tokens", 1}}},
                 {"/v1/responses", {{"model", "nano"}, {"input", text}}}}) {
            const HttpResult r = server.post(path, body);
            if (bytes == 400 && r.status == 200) continue;  // long runs are few tokens
            EXPECT_EQ(r.status, 400) << path << " " << bytes;
            EXPECT_EQ(r.parsed()["error"]["code"], "context_length_exceeded") << r.body;
        }
    }
    // Counting them is still possible.
    const std::string words = [] {
        std::string out;
        for (int i = 0; i < 500; ++i) out += " w" + std::to_string(i);
        return out;
    }();
    const HttpResult counted = server.post("/tokenize", {{"model", "nano"}, {"prompt", words}});
    EXPECT_EQ(counted.parsed()["count"], tokenizer.encode(words).size() + 1);
    const json body = TestServer::chat({{"messages", {{{"role", "user"}, {"content", words}}}}});
    EXPECT_EQ(server.post(kChat, body).parsed()["error"]["code"], "context_length_exceeded");
    EXPECT_GT(server.post("/v1/messages/count_tokens", body).parsed()["input_tokens"], 64);
}

TEST(Json, IsBoundedWhileItIsRead) {
    ServerConfig config;
    config.limits.json_keys = 1000;
    const TestServer server({.text = "</think>ok"}, config);
    std::string body = "{";
    for (int i = 0; i < 1'000'000; ++i) body += "\"k" + std::to_string(i) + "\":0,";
    body += "that is no JSON";  // nobody comes as far as here
    const HttpResult r = call(server.port(), "POST", kChat, body);
    EXPECT_EQ(r.status, 400);
    EXPECT_NE(r.body.find("more than 1000 keys"), std::string::npos) << r.body;
}

TEST(SlowReaders, AreEndedByTheirRateHoweverRegularlyTheyRead) {
    for (const bool bounded : {true, false}) {
        ServerConfig config;
        config.limits.send_timeout_ms = 2000;
        config.limits.send_min_bytes_per_s = bounded ? 1'000'000'000 : 0;
        const TestServer server({.finish_with_eos = false, .max_model_len = 400'000}, config);
        RawSocket slow(server.port());
        slow.small_receive_buffer(32 << 10);
        // Alternatives of every token: the text alone would be joined into what the kernel buffers.
        slow.send(request_text("POST",
                               kChat,
                               TestServer::chat({{"stream", true},
                                                 {"max_tokens", 60'000},
                                                 {"logprobs", true},
                                                 {"top_logprobs", 20}})
                                   .dump()));
        // Takes something all the time, so that no single write waits for long.
        std::atomic<bool> stop{false};
        std::thread reading([&] {
            while (!stop) {
                slow.receive_some(2000);
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
        });
        const bool ended =
            server.reaches([](const json& s) { return s["generation"]["slow_clients"] == 1; },
                           bounded ? 20'000 : 4'000);
        stop = true;
        reading.join();
        EXPECT_EQ(ended, bounded);
        slow.close();
        EXPECT_TRUE(server.reaches([](const json& s) { return s["engine"]["running"] == 0; }));
    }
}

TEST(Limits, OfConnectionsInAllAndOfTheAdminListenerHoldExactly) {
    ServerConfig config;
    config.limits.connections = 3;
    config.limits.admin_connections = 2;
    const TestServer server({}, config);
    const auto refused = [](RawSocket& s) {
        s.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        return s.receive_until("\r\n\r\n", 3000).find(" 503 ") != std::string::npos;
    };
    for (const auto& [port, places] :
         {std::pair<int, int>{server.port(), 3}, {server.server->admin_port(), 2}}) {
        std::vector<std::unique_ptr<RawSocket>> sockets;
        for (int i = 0; i < places; ++i) {
            sockets.push_back(std::make_unique<RawSocket>(port));
            EXPECT_FALSE(refused(*sockets.back())) << port << " " << i;
        }
        RawSocket over(port);
        EXPECT_TRUE(refused(over));
    }
    // All places are given back, and neither listener took the other's.
    EXPECT_TRUE(server.reaches([](const json& s) {
        return s.is_object() && s.contains("http") && s["http"]["connections"] == 1;
    }));
}

TEST(Encodings, OfBodiesAreRefusedByName) {
    const TestServer server({.text = "</think>ok"});
    const std::string body = TestServer::chat().dump();
    for (const char* coding : {"gzip", "deflate", "br", "zstd", "gzip, identity"}) {
        const HttpResult r = call(server.port(),
                                  "POST",
                                  kChat,
                                  body,
                                  "Content-Encoding: " + std::string(coding) + "\r\n");
        EXPECT_EQ(r.status, 415) << coding;
        EXPECT_EQ(r.parsed()["error"]["type"], "invalid_request_error");
    }
    EXPECT_EQ(call(server.port(), "POST", kChat, body, "Content-Encoding: identity\r\n").status,
              200);
}

TEST(Models, OfNamesWithASlashAreFound) {
    ServerConfig config;
    config.served_model_names = {"org/name", "with space"};
    const TestServer server({}, config);
    for (const char* path : {"/v1/models/org/name", "/v1/models/org%2Fname", "/models/org%2fname"})
        EXPECT_EQ(server.get(path).parsed()["id"], "org/name") << path;
    EXPECT_EQ(server.get("/v1/models/with%20space").parsed()["id"], "with space");
    for (const char* path : {"/v1/models/org", "/v1/models/org/other", "/v1/models/org%252Fname"})
        EXPECT_EQ(server.get(path).status, 404) << path;
    EXPECT_EQ(server.get("/v1/models/").parsed()["object"], "list");
}

TEST(Paths, AreDecodedOnce) {
    EXPECT_EQ(percent_decoded("a%2Fb%2fc"), "a/b/c");
    EXPECT_EQ(percent_decoded("100%"), "100%");
    EXPECT_EQ(percent_decoded("%4"), "%4");
    EXPECT_EQ(percent_decoded("%zz%41"), "%zzA");
    EXPECT_EQ(percent_decoded("%2525"), "%25");
}

TEST(Admin, FlushesThePrefixCache) {
    const TestServer server({.text = "</think>ok"});
    const int admin = server.server->admin_port();
    const HttpResult r = call(admin, "POST", "/admin/cache/flush", "{}");
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.parsed()["flushed_blocks"], 0);  // the stand-in has no cache
    EXPECT_EQ(call(admin, "GET", "/admin/cache/flush").status, 405);
    const TestServer loading({.tokenizer_dir = "-"});
    EXPECT_EQ(call(loading.server->admin_port(), "POST", "/admin/cache/flush", "{}").status, 503);
}

TEST(Limits, OfRequestsAtOnceAndOfBatchesHoldExactly) {
    ServerConfig config;
    config.limits.live_requests = 2;
    config.limits.batch_prompts = 4;
    config.limits.prompt_text_bytes = 3000;
    const TestServer server({.finish_with_eos = false, .step_us = 2000}, config);
    const auto completions = [&](size_t prompts, int n) {
        return server
            .post("/v1/completions",
                  {{"model", "nano"},
                   {"prompt", std::vector<std::string>(prompts, "w")},
                   {"n", n},
                   {"max_tokens", 1}})
            .status;
    };
    EXPECT_EQ(completions(4, 1), 200);
    EXPECT_EQ(completions(5, 1), 400);
    EXPECT_EQ(completions(2, 2), 200);
    EXPECT_EQ(completions(3, 2), 400);
    const auto text = [&](const char* path, size_t bytes) {
        return server
            .post(path, {{"model", "nano"}, {"prompt", std::string(bytes, 'a')}, {"max_tokens", 1}})
            .status;
    };
    for (const char* path : {"/tokenize", "/v1/completions"}) {
        EXPECT_EQ(text(path, 3000), 200) << path;
        EXPECT_EQ(text(path, 3001), 400) << path;
    }
    const json long_message =
        json::array({{{"role", "user"}, {"content", std::string(3000, 'a')}}});
    EXPECT_EQ(server.post(kChat, TestServer::chat({{"messages", long_message}})).status, 400);

    const std::string stream =
        request_text("POST", kChat, TestServer::chat({{"stream", true}}).dump());
    RawSocket first(server.port()), second(server.port());
    first.send(stream);
    first.receive_until("\"w\"");
    EXPECT_EQ(server.get("/health").status, 200);
    second.send(stream);
    second.receive_until("\"w\"");
    const HttpResult third = server.post(kChat, TestServer::chat());
    EXPECT_EQ(third.status, 503);
    EXPECT_EQ(third.field("retry-after"), "1");
}

/// An engine that begins with every prompt and then gives `tokens` tokens and no more.
class StallingBackend final : public ForwardingBackend {
  public:
    StallingBackend(std::unique_ptr<InferenceBackend> inner, int tokens)
        : ForwardingBackend(std::move(inner)), tokens_(tokens) {}
    Result<uint64_t> submit(Request, RequestCallbacks callbacks) override {
        callbacks.on_prefill({});
        for (int i = 0; i < tokens_; ++i) {
            Output o;
            o.token_ids = {tokenizer().encode("w").front()};
            o.text = "w";
            callbacks.on_output(o);
        }
        return uint64_t{1};
    }
    void abort(uint64_t) override { ++aborts; }

    std::atomic<int> aborts{0};

  private:
    const int tokens_;
};

TEST(Limits, OfTheFirstTokenAndBetweenTokensEndTheRequest) {
    for (const int tokens : {0, 2}) {
        ServerConfig config;
        config.limits.first_token_timeout_ms = 300;
        config.limits.inter_token_timeout_ms = 400;
        const TestServer server({.tokenizer_dir = "-"}, config);
        ScriptedBackendOptions script;
        script.tokenizer_dir = demo_dir();
        auto backend = std::make_unique<StallingBackend>(scripted_backend(script).value(), tokens);
        StallingBackend& engine = *backend;
        server.server->attach(std::move(backend));
        const HttpResult r = server.post(kChat, TestServer::chat());
        EXPECT_EQ(r.status, 503);
        EXPECT_NE(r.body.find(tokens == 0 ? "300 ms" : "400 ms"), std::string::npos) << r.body;
        EXPECT_EQ(engine.aborts, 1);
        const HttpResult stream = server.post(kChat, TestServer::chat({{"stream", true}}));
        EXPECT_NE(stream.body.find("data: {\"error\""), std::string::npos) << stream.body;
        EXPECT_NE(stream.body.find("[DONE]"), std::string::npos);
        EXPECT_EQ(engine.aborts, 2);
    }
}

TEST(SlowSenders, OfABodyAreEndedByItsRate) {
    ServerConfig config;
    config.limits.body_min_bytes_per_s = 1'000'000;
    const TestServer server({.text = "</think>ok"}, config);
    RawSocket slow(server.port());
    slow.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "100000\r\n\r\n");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    std::string answer;
    while (answer.empty() && std::chrono::steady_clock::now() < end) {
        slow.send(" ");
        answer = slow.receive(200);
    }
    EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 408");
    server.expect_alive();
}

TEST(Store, HoldsBytesAndAgeExactly) {
    ServerLimits limits;
    limits.stored_bytes = 4000;
    limits.stored_age_ms = 1000;
    ResponseStore store(limits);
    const SteadyTime now = std::chrono::steady_clock::now();
    const auto turn = [](size_t bytes) {
        StoredTurn out;
        out.owner = "t";
        out.response = std::string(bytes, 'x');
        return out;
    };
    store.put("alone", turn(100), now);
    const int64_t overhead = store.bytes() - 100;
    const size_t half = static_cast<size_t>(2000 - overhead);
    store.put("a", turn(half), now);
    store.put("b", turn(half), now);
    EXPECT_EQ(store.bytes(), 4000);
    EXPECT_EQ(store.get("alone", "t", now), nullptr);
    EXPECT_NE(store.get("a", "t", now), nullptr);
    store.put("c", turn(half + 1), now);  // one byte more than fits beside another
    EXPECT_EQ(store.turns(), 1u);
    store.put("large", turn(static_cast<size_t>(4001 - overhead)), now);
    EXPECT_EQ(store.get("large", "t", now), nullptr);
    EXPECT_NE(store.get("c", "t", now + Milliseconds(1000)), nullptr);
    EXPECT_EQ(store.get("c", "t", now + Milliseconds(1001)), nullptr);
    EXPECT_EQ(store.bytes(), 0);
}

}  // namespace
}  // namespace deepinfer::server
