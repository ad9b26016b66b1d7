#include "bench_serve.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench_record.h"
#include "deepinfer/engine.h"
#include "deepinfer/http_client.h"
#include "deepinfer/server.h"

namespace deepinfer::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The stand-in's answer of `tokens` tokens ("w0 w1 w2 …"), rebuilt to compare with.
class ScriptedText {
  public:
    /// Null if the whole text of an answer's events is what was asked for, with nothing lost or
    /// doubled; else what is wrong.
    std::string check(const std::string& events, int64_t tokens, const Tokenizer* tokenizer) const {
        std::string text;
        int64_t counted = -1;
        bool done = false;
        size_t at = 0;
        while (at < events.size()) {
            const size_t end = std::min(events.find('\n', at), events.size());
            const std::string line = events.substr(at, end - at);
            at = end + 1;
            if (line == "[DONE]") {
                done = true;
                continue;
            }
            const json event = json::parse(line, nullptr, false);
            if (!event.is_object()) return "an event is no JSON";
            if (event.contains("error")) return event["error"].value("message", "an error");
            for (const json& choice : event["choices"]) {
                const json& delta = choice["delta"];
                for (const char* key : {"content", "reasoning_content"})
                    if (delta.contains(key) && delta[key].is_string())
                        text += delta[key].get<std::string>();
            }
            if (event.contains("usage") && event["usage"].is_object())
                counted = event["usage"].value("completion_tokens", int64_t{-1});
        }
        if (!done) return "the stream has no end";
        if (counted != tokens)
            return "usage counts " + std::to_string(counted) + " tokens, expected " +
                   std::to_string(tokens);
        if (tokenizer == nullptr) return {};
        std::string expected;
        std::vector<int32_t> ids;
        for (int64_t word = 0; static_cast<int64_t>(ids.size()) < tokens; ++word) {
            for (const int32_t id : tokenizer->encode("w" + std::to_string(word) + " "))
                if (static_cast<int64_t>(ids.size()) < tokens) ids.push_back(id);
        }
        expected = tokenizer->decode(ids).value();
        return text == expected ? "" : "the text is not what the stand-in wrote";
    }
};

double quantile_of(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

double process_cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto s = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return s(usage.ru_utime) + s(usage.ru_stime);
}

int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * 4096;
}

}  // namespace

void add_bench_serve_options(CLI::App& app, BenchServeOptions& o) {
    app.add_option("--url", o.url, "serve: a running server (default: one in this process)");
    app.add_option("--api-key", o.api_key, "serve: its API key")->envname("OPENAI_API_KEY");
    app.add_flag("--engine", o.engine, "serve: the model instead of the stand-in for it");
    app.add_option("--streams", o.streams, "serve: requests at once")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--requests", o.requests, "serve: requests in all")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--answer-tokens", o.tokens, "serve: tokens of an answer")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--step-us", o.step_us, "serve: pause of the stand-in's step, microseconds")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
}

int run_bench_serve(const BenchServeOptions& o, CommonOptions& common) {
    ServerConfig config;
    config.port = config.admin_port = 0;
    config.log_file = "/dev/null";
    config.served_model_names = {"bench"};
    config.limits.connections_per_ip = config.limits.connections;
    std::unique_ptr<Server> server;
    LoadOptions load;
    std::string model = "bench";
    std::optional<Tokenizer> tokenizer;
    if (o.url.empty()) {
        Result<std::string> dir = resolve_model(common);
        if (!dir.ok()) return fail(dir.status());
        Result<std::unique_ptr<Server>> started = Server::start(config);
        if (!started.ok()) return fail(started.status());
        server = std::move(started).value();
        if (o.engine) {
            common.engine.model_dir = dir.value();
            Result<std::unique_ptr<Engine>> engine = Engine::create(common.engine);
            if (!engine.ok()) return fail(engine.status());
            server->attach(engine_backend(std::move(engine).value()));
        } else {
            ScriptedBackendOptions script;
            script.tokenizer_dir = dir.value();
            script.finish_with_eos = false;
            script.step_us = o.step_us;
            script.max_num_seqs = o.streams;
            script.max_model_len = o.tokens + 4096;
            Result<std::unique_ptr<InferenceBackend>> backend = scripted_backend(script);
            if (!backend.ok()) return fail(backend.status());
            tokenizer = backend.value()->tokenizer();
            server->attach(std::move(backend).value());
        }
        load.url = parse_http_url(server->url()).value();
    } else {
        Result<HttpUrl> url = parse_http_url(o.url);
        if (!url.ok()) return fail(url.status());
        load.url = std::move(url).value();
        HttpCall call;
        call.url = load.url;
        call.url.path += "/v1/models";
        call.method = "GET";
        if (!o.api_key.empty()) call.fields = {{"authorization", "Bearer " + o.api_key}};
        std::string body;
        call.on_data = [&body](int, std::string_view piece) {
            body += piece;
            return body.size() < 100'000;
        };
        const Result<int> status = http_call(call);
        if (!status.ok()) return fail(status.status());
        const json list = json::parse(body, nullptr, false);
        if (!list.is_object() || !list.contains("data") || list["data"].empty())
            return fail({StatusCode::kInvalidArgument, "the server lists no model: " + body});
        model = list["data"][0].value("id", "");
    }
    if (!o.api_key.empty()) load.fields = {{"authorization", "Bearer " + o.api_key}};
    load.streams = o.streams;
    load.requests = o.requests;
    for (int i = 0; i < 16; ++i) {
        std::string text = "Question " + std::to_string(i);
        for (int64_t k = 0; k < o.prompt_words; ++k) text += " word" + std::to_string(k);
        load.bodies.push_back(json{
            {"model", model},
            {"messages", json::array({{{"role", "user"}, {"content", text}}})},
            {"max_tokens", o.tokens},
            {"ignore_eos", true},
            {"temperature", 0},
            {"seed", i},
            {"thinking", {{"type", "disabled"}}},
            {"stream", true}}.dump());
    }
    const ScriptedText scripted;
    load.check = [&](int64_t, int status, const std::string& body) -> std::string {
        if (status != 200) return "status " + std::to_string(status) + ": " + body.substr(0, 200);
        return scripted.check(body, o.tokens, tokenizer ? &*tokenizer : nullptr);
    };

    // A short run first: connections, caches and the allocator settle.
    LoadOptions warm = load;
    warm.requests = std::min<int64_t>(o.requests, o.streams);
    const Result<LoadReport> warmed = run_load(warm);
    if (!warmed.ok()) return fail(warmed.status());
    const int64_t rss_before = resident_bytes();
    const double server_cpu = server ? server->cpu_seconds() : 0;
    const double cpu = process_cpu_seconds();
    const Result<LoadReport> done = run_load(load);
    if (!done.ok()) return fail(done.status());
    const LoadReport& r = done.value();
    const double tokens = static_cast<double>(r.ok * o.tokens);

    ordered_json settings{
        {"url", o.url},
        {"backend", o.url.empty() ? (o.engine ? "engine" : "stand-in") : "remote"},
        {"streams", o.streams},
        {"requests", o.requests},
        {"answer_tokens", o.tokens},
        {"step_us", o.step_us}};
    ordered_json record = start_plain_record("serve", o.tag, o.note, settings);
    record["ok"] = r.ok;
    record["failed"] = r.failed;
    record["faults"] = r.faults;
    record["seconds"] = r.seconds;
    record["requests_per_s"] = static_cast<double>(r.ok) / r.seconds;
    record["tokens_per_s"] = tokens / r.seconds;
    record["events"] = r.events;
    record["bytes"] = r.bytes;
    for (const double share : {0.5, 0.9, 0.99}) {
        const std::string p = "_p" + std::to_string(static_cast<int>(share * 100 + 0.5));
        record["first_byte" + p + "_ms"] = quantile_of(r.first_byte_ms, share);
        record["first_token" + p + "_ms"] = quantile_of(r.first_token_ms, share);
        record["total" + p + "_ms"] = quantile_of(r.total_ms, share);
    }
    if (server) {
        HttpCall call;
        call.url =
            parse_http_url("http://127.0.0.1:" + std::to_string(server->admin_port())).value();
        call.url.path = "/admin/status";
        call.method = "GET";
        std::string body;
        call.on_data = [&body](int, std::string_view piece) {
            body += piece;
            return true;
        };
        if (http_call(call).ok()) {
            const json status = json::parse(body, nullptr, false);
            // Both runs: head of the request to its first token's frame, less the engine's time.
            record["first_token_overhead_s"] = status["generation"]["first_token_overhead_s"];
        }
        record["server_cpu_us_per_token"] = (server->cpu_seconds() - server_cpu) * 1e6 / tokens;
        record["process_cpu_us_per_token"] = (process_cpu_seconds() - cpu) * 1e6 / tokens;
        record["rss_growth_bytes"] = resident_bytes() - rss_before;
    }
    std::printf("%s\n", record.dump().c_str());
    if (!o.append.empty()) std::ofstream(o.append, std::ios::app) << record.dump() << "\n";
    return r.failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace deepinfer::cli
