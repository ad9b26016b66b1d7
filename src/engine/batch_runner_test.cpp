// Batch files: forms, faults that fail alone, and going on after being stopped in any way.
#include "engine/batch_runner.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "backends/cpu/cpu_backend.h"
#include "support/golden_file.h"
#include "support/scratch_dir.h"

namespace deepinfer {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Engine> make_engine() {
    static std::once_flag once;
    std::call_once(once, [] { register_cpu_backend(); });
    EngineConfig c;
    c.model_dir = testing::checkpoint_path("demo");
    c.threads = 1;
    c.max_num_seqs = 4;
    c.max_num_batched_tokens = 32;
    c.max_model_len = 256;
    auto e = Engine::create(c);
    if (!e.ok()) {
        std::fprintf(stderr, "%s\n", e.status().to_string().c_str());
        std::abort();
    }
    return std::move(e).value();
}

class BatchRunner : public ::testing::Test {
  protected:
    void SetUp() override {
        in_ = dir_.file("in.jsonl");
        out_ = dir_.file("out.jsonl");
    }
    void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
    std::vector<Json> answers() {
        std::vector<Json> all;
        std::ifstream in(out_);
        std::string line;
        while (std::getline(in, line)) all.push_back(Json::parse(line));
        return all;
    }
    std::map<std::string, Json> by_id() {
        std::map<std::string, Json> all;
        for (const Json& j : answers()) EXPECT_TRUE(all.emplace(j["id"], j).second) << j["id"];
        return all;
    }

    testing::ScratchDir dir_;
    std::string in_, out_;
};

std::string simple_lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
        text +=
            R"({"id":"q)" + std::to_string(i) + R"(","prompt":"Number )" + std::to_string(i) +
            R"( is","sampling":{"temperature":0,"max_tokens":6,"ignore_eos":true,"logprobs":0}})" +
            "\n";
    }
    return text;
}

TEST_F(BatchRunner, NativeFormsAndFaultsThatFailAlone) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(
        in_,
        R"({"id":"raw","prompt":"The capital of France","sampling":{"temperature":0,"max_tokens":3}})"
        "\n"
        R"({"id":"ids","prompt_token_ids":[0,17,5],"sampling":{"max_tokens":4,"seq_seed":7,"logprobs":1,"ignore_eos":true,"n":2}})"
        "\n\n"
        R"({"id":"typo","prompt":"x","samplin":{}})"
        "\n"
        R"({"id":"range","prompt":"x","sampling":{"temperature":9}})"
        "\n"
        R"({"id":"two","prompt":"x","prompt_token_ids":[1]})"
        "\n"
        R"({"id":"none"})"
        "\n"
        R"({"id":"long","prompt":"x","sampling":{"max_tokens":4000}})"
        "\n"
        R"({"id":"chat","messages":[{"role":"user","content":"hi"}]})"
        "\n"
        R"({"id":"id","prompt_token_ids":[99999]})"
        "\n"
        R"({"id":5,"prompt":"x"})"
        "\n"
        "{not json\n"
        R"({"prompt":"no id","sampling":{"max_tokens":1}})");
    const Result<BatchProgress> done = run_batch(*engine, in_, out_, {});
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->lines_total, 12);
    EXPECT_EQ(done->lines_done, 12);
    EXPECT_EQ(done->lines_failed, 9);
    const std::map<std::string, Json> got = by_id();
    ASSERT_EQ(got.size(), 12u);

    const Json& raw = got.at("raw");
    EXPECT_TRUE(raw["error"].is_null());
    EXPECT_EQ(raw["outputs"].size(), 1u);
    EXPECT_EQ(raw["outputs"][0]["finish_reason"], "length");
    EXPECT_FALSE(raw["outputs"][0].contains("logprobs"));
    EXPECT_EQ(raw["usage"]["completion_tokens"], 3);
    const std::vector<int32_t> ids = engine->tokenizer().encode("The capital of France");
    EXPECT_EQ(raw["usage"]["prompt_tokens"], ids.size() + 1);  // BOS in front

    const Json& two = got.at("ids");
    ASSERT_EQ(two["outputs"].size(), 2u);
    EXPECT_EQ(two["usage"]["prompt_tokens"], 3);
    for (const Json& o : two["outputs"]) {
        ASSERT_EQ(o["logprobs"].size(), 4u);
        for (size_t i = 0; i < 4; ++i) {
            const double bits =
                std::strtod(o["logprobs_hex"][i].get<std::string>().c_str(), nullptr);
            EXPECT_EQ(bits, o["logprobs"][i].get<double>());
            EXPECT_EQ(o["top_logprobs"][i].size(), 1u);
        }
    }
    for (const auto& [id, code] :
         std::map<std::string, std::string>{{"typo", "invalid_argument"},
                                            {"range", "invalid_argument"},
                                            {"two", "invalid_argument"},
                                            {"none", "invalid_argument"},
                                            {"long", "out_of_range"},
                                            {"chat", "unimplemented"},
                                            {"id", "invalid_argument"},
                                            {"line-11", "invalid_argument"},
                                            {"line-12", "invalid_argument"}}) {
        const Json& j = got.at(id);
        EXPECT_TRUE(j["outputs"].empty()) << id;
        EXPECT_EQ(j["error"]["code"], code) << id;
        EXPECT_FALSE(j["error"]["message"].get<std::string>().empty());
    }
    EXPECT_EQ(got.at("range")["error"]["param"], "temperature");
    EXPECT_TRUE(got.at("line-13")["error"].is_null());
}

/// Gives everything before "|" as reasoning; stops at "#".
class SplitParser final : public OutputParser {
  public:
    bool feed(const std::string& text) override {
        text_ += text;
        return text_.find('#') == std::string::npos;
    }
    ParsedOutput finish(FinishReason) override {
        ParsedOutput p;
        p.reasoning = "seen";
        p.text = text_;
        p.extra_json = R"("calls":[])";
        p.finish_reason = "tool_calls";
        return p;
    }

  private:
    std::string text_;
};

TEST_F(BatchRunner, MessagesGoThroughTheRenderer) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(
        in_,
        R"({"id":"m","messages":[{"role":"user","content":"hi"}],"thinking":false,"sampling":{"max_tokens":5,"stop":["zz"]}})"
        "\n"
        R"({"id":"bad","messages":[]})"
        "\n");
    BatchOptions options;
    std::string seen;
    options.render = [&](const std::string& conversation,
                         SamplingParams* sampling) -> Result<RenderedPrompt> {
        const Json j = Json::parse(conversation);
        if (j["messages"].empty()) return Status(StatusCode::kInvalidArgument, "messages is empty");
        seen = conversation;
        sampling->stop.clear();
        RenderedPrompt p;
        p.prompt_token_ids = {0, 5, 6};
        p.make_parser = [] { return std::make_unique<SplitParser>(); };
        return p;
    };
    ASSERT_TRUE(run_batch(*engine, in_, out_, options).ok());
    const auto got = by_id();
    EXPECT_EQ(Json::parse(seen)["thinking"], false);
    const Json& o = got.at("m")["outputs"][0];
    EXPECT_EQ(o["reasoning"], "seen");
    EXPECT_EQ(o["finish_reason"], "tool_calls");
    EXPECT_TRUE(o.contains("calls"));
    EXPECT_EQ(got.at("bad")["error"]["param"], "messages");
}

TEST_F(BatchRunner, GoesOnWhereItStopped) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_, simple_lines(9));
    ASSERT_TRUE(run_batch(*engine, in_, out_, {}).ok());
    const std::map<std::string, Json> whole = by_id();
    std::vector<std::string> lines;
    std::ifstream in(out_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);

    // Some answers and the torn beginning of another.
    write(out_, lines[4] + "\n" + lines[0] + "\n" + lines[7].substr(0, 25));
    const Result<BatchProgress> done = run_batch(*engine, in_, out_, {});
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->lines_resumed, 2);
    EXPECT_EQ(done->lines_done, 9);
    const std::map<std::string, Json> again = by_id();
    ASSERT_EQ(again.size(), 9u);
    for (const auto& [id, j] : whole) EXPECT_EQ(again.at(id)["outputs"], j["outputs"]) << id;

    // Nothing left to do; nothing changes.
    ASSERT_TRUE(run_batch(*engine, in_, out_, {}).ok());
    EXPECT_EQ(by_id().size(), 9u);
}

TEST_F(BatchRunner, EqualIdsAreToldApart) {
    const std::unique_ptr<Engine> engine = make_engine();
    const std::string line = R"({"id":"x","prompt":"a","sampling":{"max_tokens":1}})";
    write(in_, line + "\n" + line + "\n" + line + "\n");
    write(out_,
          R"({"id":"x","outputs":[],"usage":{},"error":null})"
          "\n");
    const Result<BatchProgress> done = run_batch(*engine, in_, out_, {});
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(answers().size(), 3u);
}

TEST_F(BatchRunner, ALostAnswerToARepeatedIdIsGivenAgain) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(
        in_,
        R"({"id":"a","prompt":"one","sampling":{"temperature":0,"max_tokens":9,"ignore_eos":true}})"
        "\n"
        R"({"id":"a","prompt":"two two","sampling":{"temperature":0,"max_tokens":1}})"
        "\n");
    ASSERT_TRUE(run_batch(*engine, in_, out_, {}).ok());
    // A crash after the second line's answer, which comes first: it alone is in the file.
    std::string second;
    for (const Json& j : answers()) {
        if (j.contains("line")) second = j.dump();
    }
    ASSERT_FALSE(second.empty());
    write(out_, second + "\n");
    ASSERT_TRUE(run_batch(*engine, in_, out_, {}).ok());
    const std::vector<Json> all = answers();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0]["line"], 2);
    EXPECT_FALSE(all[1].contains("line"));
    EXPECT_EQ(all[1]["outputs"][0]["token_ids"].size(), 9u);
}

TEST_F(BatchRunner, ADeepLineFailsAlone) {
    const std::unique_ptr<Engine> engine = make_engine();
    const std::string deep = std::string(200'000, '[');
    write(in_,
          R"({"id":"d","prompt":"a","sampling":{"stop":)" + deep + "}}\n" +
              R"({"id":"e","messages":)" + deep + "}\n" +
              R"({"id":"f","prompt":"a","sampling":{"max_tokens":1}})" + "\n");
    const Result<BatchProgress> done = run_batch(*engine, in_, out_, {});
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->lines_failed, 2);
    EXPECT_TRUE(by_id().at("f")["error"].is_null());
}

TEST_F(BatchRunner, OnlyRegularFilesAreTaken) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_, simple_lines(1));
    const std::string fifo = out_ + ".fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_EQ(run_batch(*engine, fifo, out_, {}).status().code(), StatusCode::kInvalidFile);
    EXPECT_EQ(run_batch(*engine, in_, fifo, {}).status().code(), StatusCode::kInvalidFile);
    EXPECT_EQ(run_batch(*engine, in_, "/dev/full", {}).status().code(), StatusCode::kInvalidFile);
    EXPECT_FALSE(run_batch(*engine, dir_.path().string(), out_, {}).ok());
}

TEST_F(BatchRunner, ForeignTextWithoutANewlineIsLeftAlone) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_, simple_lines(1));
    write(out_, "somebody's notes");
    EXPECT_EQ(run_batch(*engine, in_, out_, {}).status().code(), StatusCode::kInvalidFile);
    std::ifstream f(out_);
    std::string text;
    std::getline(f, text);
    EXPECT_EQ(text, "somebody's notes");
}

TEST_F(BatchRunner, CancelLeavesAFileThatGoesOn) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_, simple_lines(12));
    std::atomic<bool> cancel{false};
    BatchOptions options;
    options.cancel = &cancel;
    options.max_in_flight = 4;
    options.on_progress = [&](const BatchProgress& p) { cancel = cancel || p.lines_done >= 2; };
    const Result<BatchProgress> stopped = run_batch(*engine, in_, out_, options);
    if (!stopped.ok()) {
        EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
    }
    engine->wait_idle();
    EXPECT_EQ(engine->stats().free_blocks, engine->stats().total_blocks);
    ASSERT_TRUE(run_batch(*engine, in_, out_, {}).ok());
    EXPECT_EQ(by_id().size(), 12u);
}

TEST_F(BatchRunner, OtherFilesAreLeftAlone) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_, simple_lines(1));
    write(out_, "my diary\n");
    EXPECT_EQ(run_batch(*engine, in_, out_, {}).status().code(), StatusCode::kInvalidFile);
    std::ifstream in(out_);
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(text.str(), "my diary\n");
    EXPECT_EQ(run_batch(*engine, in_, in_, {}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(run_batch(*engine, in_ + ".no", out_, {}).status().code(), StatusCode::kNotFound);
}

TEST_F(BatchRunner, ForeignFormsHaveTheirOwnReader) {
    const std::unique_ptr<Engine> engine = make_engine();
    write(in_,
          R"({"custom_id":"b1","body":{}})"
          "\n"
          R"({"custom_id":"b2","body":null})"
          "\n" +
              simple_lines(1));
    BatchReader reader;
    reader.id_member = "custom_id";
    reader.read = [](const std::string& line) -> Result<BatchJob> {
        const Json j = Json::parse(line);
        if (j["body"].is_null()) return Status(StatusCode::kInvalidArgument, "body is null");
        BatchJob job;
        job.id = j["custom_id"];
        job.request.prompt_token_ids = {0, 9};
        job.request.sampling.max_tokens = 2;
        job.format = [id = job.id](const Completion&, const std::vector<ParsedOutput>&) {
            return R"({"custom_id":")" + id + R"(","ok":true})";
        };
        return job;
    };
    reader.format_error = [](const std::string& id, const Status&) {
        return R"({"custom_id":")" + id + R"(","ok":false})";
    };
    BatchOptions options;
    options.readers.push_back(reader);
    ASSERT_TRUE(run_batch(*engine, in_, out_, options).ok());
    ASSERT_TRUE(run_batch(*engine, in_, out_, options).ok());
    EXPECT_EQ(answers().size(), 3u);
}

TEST_F(BatchRunner, KilledAtAnyMomentLosesAndRepeatsNothing) {
    constexpr int kLines = 160;
    write(in_, simple_lines(kLines));
    const auto size = [this] {
        std::ifstream in(out_, std::ios::ate | std::ios::binary);
        return in ? static_cast<int64_t>(in.tellg()) : 0;
    };
    // Children build their own engines; threads do not survive a fork.
    const auto start = [this] {
        const pid_t child = ::fork();
        if (child != 0) return child;
        const std::unique_ptr<Engine> engine = make_engine();
        std::_Exit(run_batch(*engine, in_, out_, {}).ok() ? 0 : 1);
    };
    int kills = 0;
    std::mt19937 random(20);
    for (int round = 0; round < 10; ++round) {
        const pid_t child = start();
        ASSERT_GT(child, 0);
        // Killed at a random moment after it has written something new; every fourth at any moment
        // of its life, loading included.
        const int64_t before = size();
        int status = 0;
        while (round % 4 != 3 && size() == before && ::waitpid(child, &status, WNOHANG) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        const int most_us = round % 4 == 3 ? 400'000 : 20'000;
        std::this_thread::sleep_for(
            std::chrono::microseconds(random() % static_cast<unsigned>(most_us)));
        if (::kill(child, SIGKILL) == 0) ::waitpid(child, &status, 0);
        kills += WIFSIGNALED(status) ? 1 : 0;
    }
    EXPECT_GT(kills, 5);
    int status = 0;
    ::waitpid(start(), &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(by_id().size(), static_cast<size_t>(kLines));
}

}  // namespace
}  // namespace deepinfer
