// What takes long holds up nobody else: lanes of a pool, and constraints that are compiled while
// other tenants' requests go on.
#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "server/server_test_util.h"
#include "server/work_pool.h"
#include "support/scratch_dir.h"

namespace deepinfer::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";

/// Everybody waits until it is opened.
class Gate {
  public:
    void pass() {
        std::unique_lock<std::mutex> lock(mutex_);
        ++waiting_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return open_; });
        --waiting_;
    }
    void open() {
        const std::lock_guard<std::mutex> lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    /// Whether so many stand before it within 10 s.
    bool reached(int count) {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return waiting_ == count; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    int waiting_ = 0;
};

TEST(WorkPool, ALaneTakesItsShareAndNoMore) {
    Gate gate;
    std::atomic<int> done{0};
    {
        WorkPool pool(3, 100, WorkPool::Lanes{2, 3});
        const auto blocked = [&] {
            gate.pass();
            ++done;
        };
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.submit(blocked, "greedy"));
        ASSERT_TRUE(gate.reached(2));
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool.submit(blocked, "greedy"));
        EXPECT_FALSE(pool.submit(blocked, "greedy"));  // two run, three wait, one is too many
        Gate other;
        for (int i = 0; i < 5; ++i) {
            std::atomic<bool> ran{false};
            ASSERT_TRUE(pool.submit([&] { ran = true; }, "other"));
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (!ran && std::chrono::steady_clock::now() < end) std::this_thread::yield();
            ASSERT_TRUE(ran);
        }
        EXPECT_TRUE(gate.reached(2));
        gate.open();
    }
    EXPECT_EQ(done, 5);  // what is queued is run before the end
}

/// A model whose constraints take as long to compile as the test wants.
class SlowCompiler final : public ForwardingBackend {
  public:
    SlowCompiler(std::unique_ptr<InferenceBackend> inner, Gate& gate)
        : ForwardingBackend(std::move(inner)), gate_(gate) {}
    Result<uint64_t> submit(Request request, RequestCallbacks callbacks) override {
        if (request.sampling.so_args.value == "bomb") {
            gate_.pass();
            return Status(StatusCode::kResourceExhausted,
                          "so_args: compiling the constraint takes more than 5000 ms of processor "
                          "time");
        }
        request.sampling.so_args = {};
        return ForwardingBackend::submit(std::move(request), std::move(callbacks));
    }
    bool constraint_is_ready(const StructuredOutputArgs& args) const override {
        return args.value == "known";
    }

  private:
    Gate& gate_;
};

// sha256 of "secret" and "admin-secret"
constexpr const char* kKeys = R"(keys:
- {id: bomber, scopes: [infer], sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b}
- {id: other, scopes: [infer], sha256: 16175223c8ddce5ace0493c948569c211b03c4c6bb3d3e484434999448cffe01}
)";

TEST(SlowConstraints, HoldUpOnlyTheTenantThatSendsThem) {
    const testing::ScratchDir scratch;
    ServerConfig config;
    config.api_keys = scratch.file("keys.yaml");
    std::ofstream(config.api_keys) << kKeys;
    const TestServer server({.tokenizer_dir = "-"}, config);
    Gate gate;
    ScriptedBackendOptions script;
    script.tokenizer_dir = demo_dir();
    script.text = "</think>ok";
    server.server->attach(std::make_unique<SlowCompiler>(scripted_backend(script).value(), gate));
    const std::string bomber = "x-api-key: secret\r\n", other = "x-api-key: admin-secret\r\n";
    const auto asks = [](const std::string& regex, bool stream = false) {
        return TestServer::chat(
            {{"guided_regex", regex}, {"thinking", {{"type", "disabled"}}}, {"stream", stream}});
    };
    // Two are compiled, sixteen wait; the one behind them is told so.
    std::vector<std::unique_ptr<RawSocket>> bombs;
    const auto send_bomb = [&](bool stream) {
        bombs.push_back(std::make_unique<RawSocket>(server.port()));
        bombs.back()->send(request_text("POST", kChat, asks("bomb", stream).dump(), bomber));
    };
    for (int i = 0; i < 18; ++i) {
        send_bomb(i % 2 == 1);
        if (i == 1) {
            ASSERT_TRUE(gate.reached(2));
        }
    }
    HttpResult full;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (full.status != 429 && std::chrono::steady_clock::now() < end) {
        RawSocket probe(server.port());
        probe.send(request_text("POST", kChat, asks("bomb").dump(), bomber));
        const std::string answer = probe.receive_all(300);
        if (answer.size() > 12) full.status = std::stoi(answer.substr(9, 3)), full.head = answer;
    }
    EXPECT_EQ(full.status, 429);
    EXPECT_FALSE(full.field("retry-after").empty()) << full.head;
    EXPECT_TRUE(gate.reached(2));

    // Others compile, and even the bomber's requests without a new constraint are answered.
    EXPECT_EQ(server.post(kChat, asks("new"), other).status, 200);
    EXPECT_EQ(server.post(kChat, asks("new", true), other).status, 200);
    EXPECT_EQ(server.post(kChat, TestServer::chat(), bomber).status, 200);
    EXPECT_EQ(server.post(kChat, asks("known"), bomber).status, 200);

    // A client that hangs up takes its place in the line back; the others get their refusals,
    // streamed ones with status 400 too.
    bombs.back()->close();
    gate.open();
    for (size_t i = 0; i + 1 < bombs.size(); ++i) {
        const std::string answer = bombs[i]->receive_all();
        EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 400") << answer;
        EXPECT_NE(answer.find("5000 ms of processor time"), std::string::npos);
        EXPECT_NE(answer.find("structured_outputs"), std::string::npos);
    }
    EXPECT_EQ(server.post(kChat, asks("new"), bomber).status, 200);
}

TEST(SlowConstraints, EndAfterTheQueueTimeAndWithTheServer) {
    ServerConfig config;
    config.limits.queue_timeout_ms = 300;
    Gate gate;
    TestServer server({.tokenizer_dir = "-"}, config);
    ScriptedBackendOptions script;
    script.tokenizer_dir = demo_dir();
    server.server->attach(std::make_unique<SlowCompiler>(scripted_backend(script).value(), gate));
    for (const bool stream : {false, true}) {
        const HttpResult r =
            server.post(kChat, TestServer::chat({{"guided_regex", "bomb"}, {"stream", stream}}));
        EXPECT_EQ(r.status, 503);
        EXPECT_NE(r.body.find("300 ms"), std::string::npos) << r.body;
    }
    gate.open();
}

}  // namespace
}  // namespace deepinfer::server
