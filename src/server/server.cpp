// Server: configuration, start, drain and end.
#include "deepinfer/server.h"

#include <csignal>
#include <cstdlib>
#include <thread>

#include "server/admission.h"
#include "server/listener.h"

namespace deepinfer {

using server::LogFields;
using server::LogLevel;
using server::Phase;

namespace {

class EngineBackend final : public InferenceBackend {
  public:
    explicit EngineBackend(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
    Result<uint64_t> submit(Request request, RequestCallbacks callbacks) override {
        return engine_->submit(std::move(request), std::move(callbacks));
    }
    void abort(uint64_t request) override { engine_->abort(request); }
    Result<std::vector<int32_t>> expand_prompt(const Request& request) const override {
        return engine_->expand_prompt(request);
    }
    const Tokenizer& tokenizer() const override { return engine_->tokenizer(); }
    const EngineConfig& config() const override { return engine_->config(); }
    const ModelInfo& model_info() const override { return engine_->model_info(); }
    EngineStats stats() const override { return engine_->stats(); }
    Result<int64_t> flush_prefix_cache() override { return engine_->flush_prefix_cache(); }
    bool constraint_is_ready(const StructuredOutputArgs& args) const override {
        return engine_->constraint_is_ready(args);
    }

  private:
    std::unique_ptr<Engine> engine_;
};

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidArgument, what};
}

}  // namespace

std::unique_ptr<InferenceBackend> engine_backend(std::unique_ptr<Engine> engine) {
    return std::make_unique<EngineBackend>(std::move(engine));
}

std::span<const LimitOption> limit_options() {
    using L = ServerLimits;
    constexpr int64_t kMany = 1'000'000'000;
    constexpr int64_t kBytes = int64_t{1} << 40;
    // clang-format off
    static constexpr LimitOption kOptions[] = {
        {"max-request-line-bytes", &L::request_line_bytes, "Longest request line", 64, 1 << 20},
        {"max-header-bytes", &L::header_bytes, "Longest request head", 256, 1 << 20},
        {"max-header-fields", &L::header_fields, "Most header fields", 4, 10'000},
        {"max-body-bytes", &L::body_bytes, "Largest request body", 1024, kBytes},
        {"max-held-body-bytes",
         &L::held_body_bytes,
         "Bytes of all request bodies together, until they are answered",
         1024,
         kBytes},
        {"max-json-depth", &L::json_depth, "Deepest nesting of a body", 4, 128},
        {"max-json-keys", &L::json_keys, "Most keys of one object", 16, kMany},
        {"max-json-string-bytes", &L::json_string_bytes, "Longest string of a body", 1024, kBytes},
        {"max-messages", &L::messages, "Most messages (or input items)", 1, kMany},
        {"max-tools", &L::tools, "Most tools", 1, 128},
        {"max-schema-bytes", &L::schema_bytes, "Largest schema, regular expression or grammar", 64, kBytes},
        {"max-prompt-bytes", &L::prompt_text_bytes, "Longest text to tokenize", 1024, int64_t{1} << 31},
        {"max-batch-prompts", &L::batch_prompts, "Most answers of one Completions request", 1, 100'000},
        {"max-connections", &L::connections, "Most open connections", 1, 1'000'000},
        {"max-connections-per-ip", &L::connections_per_ip, "Most open connections of one address", 1, 1'000'000},
        {"max-admin-connections", &L::admin_connections, "Most open connections of the admin listener", 1, 1'000'000},
        {"max-live-requests", &L::live_requests, "Most requests at once", 1, 1'000'000},
        {"header-timeout-ms", &L::header_timeout_ms, "Time for a request's head", 10, kMany},
        {"body-timeout-ms", &L::body_timeout_ms, "Time for a request's body", 10, kMany},
        {"body-min-rate", &L::body_min_bytes_per_s, "Slowest body, bytes a second after 5 s", 0, kMany},
        {"idle-timeout-ms", &L::idle_timeout_ms, "Time between a connection's requests", 10, kMany},
        {"queue-timeout-ms", &L::queue_timeout_ms, "Time until a request's turn", 10, kMany},
        {"first-token-timeout-ms", &L::first_token_timeout_ms, "Time from there to the first token", 10, kMany},
        {"inter-token-timeout-ms", &L::inter_token_timeout_ms, "Time between tokens", 10, kMany},
        {"total-timeout-ms", &L::total_timeout_ms, "Time of a whole request", 10, kMany},
        {"send-timeout-ms", &L::send_timeout_ms, "Time that a reader may read nothing", 10, kMany},
        {"send-min-rate", &L::send_min_bytes_per_s, "Slowest reader, bytes a second of the time it holds writes up", 0, kMany},
        {"keep-alive-ms", &L::keep_alive_ms, "Time between comments in a silent stream (0: none)", 0, kMany},
        {"max-images", &L::images, "Most pictures of one request", 0, 600},
        {"max-image-bytes", &L::image_bytes, "Largest picture as encoded", 1, 32 << 20},
        {"max-request-image-bytes", &L::request_image_bytes, "Bytes of a request's pictures as encoded", 1, 64 << 20},
        {"image-url-timeout-ms", &L::image_url_timeout_ms, "Time to fetch a request's pictures", 10, kMany},
        {"max-stored-responses", &L::stored_turns, "Stored Responses (0: none are stored)", 0, kMany},
        {"max-stored-responses-per-key", &L::stored_turns_per_key, "Of which of one tenant", 1, kMany},
        {"max-stored-bytes", &L::stored_bytes, "Bytes of stored Responses", 1024, kBytes},
        {"max-stored-age-ms", &L::stored_age_ms, "Time that a Response is stored", 1000, int64_t{1} << 40},
    };
    // clang-format on
    return kOptions;
}

Status ServerConfig::validate() const {
    const auto port_fits = [](int value, int low) { return value >= low && value <= 65535; };
    if (!port_fits(port, 0))
        return invalid("--port " + std::to_string(port) + ", expected 0 to 65535");
    if (!port_fits(admin_port, -1))
        return invalid("--admin-port " + std::to_string(admin_port) + ", expected 0 to 65535");
    if (admin_port < 0 && port == 65535)
        return invalid("--port 65535 leaves no port for the admin listener; give --admin-port");
    if (served_model_names.empty()) return invalid("--served-model-name: expected a name");
    for (const std::string& name : served_model_names)
        if (name.empty() || name.size() > 256)
            return invalid("--served-model-name: expected 1 to 256 bytes");
    if (tls_cert.empty() != tls_key.empty()) return invalid("--tls-cert and --tls-key go together");
    if (!tls_client_ca.empty() && tls_cert.empty())
        return invalid("--tls-client-ca needs --tls-cert");
    for (const LimitOption& option : limit_options()) {
        const int64_t value = limits.*option.field;
        if (value < option.low || value > option.high)
            return invalid("--" + std::string(option.name) + " " + std::to_string(value) +
                           ", expected " + std::to_string(option.low) + " to " +
                           std::to_string(option.high));
    }
    if (!image_urls && !(image_url_hosts.empty() && image_url_private_hosts.empty()))
        return invalid(
            "--image-url-host and --image-url-private-host need --allow-image-urls: pictures are "
            "not fetched without it");
    if (io_threads < 0 || io_threads > 64)
        return invalid("--io-threads " + std::to_string(io_threads) + ", expected 0 to 64");
    if (cpu_threads < 0 || cpu_threads > 256)
        return invalid("--cpu-threads " + std::to_string(cpu_threads) + ", expected 0 to 256");
    if (drain_settle_ms < 0 || shutdown_timeout_ms < 0 || watchdog_ms < 0)
        return invalid(
            "--drain-settle-ms, --shutdown-timeout-ms and --watchdog-ms: expected at "
            "least 0");
    if (const auto level = server::log_level_from_name(log_level); !level.ok())
        return level.status();
    for (const auto& [address, option] :
         {std::pair<const std::string&, const char*>(host, "--host"),
          {admin_host, "--admin-host"}}) {
        if (!server::is_loopback(address) && api_keys.empty() && !insecure)
            return invalid(std::string(option) + " " + address +
                           " is reachable from outside: give --api-keys, or --insecure to serve "
                           "everyone");
    }
    return {};
}

struct Server::Impl {
    explicit Impl(ServerConfig config, std::unique_ptr<server::Log> log)
        : state(std::move(config), std::move(log)) {}

    std::unique_ptr<InferenceBackend> backend;  // the listener's tasks use it: destroyed after them
    server::ServerState state;
    std::unique_ptr<server::WorkPool> fetchers, compilers;
    std::unique_ptr<server::Listener> listener;

    std::mutex mutex;
    std::condition_variable changed;
    int signal = 0;  // the first one that ends the server

    // Watchdog, one I/O thread only.
    int64_t last_steps = -1;
    server::SteadyTime last_progress;

    void on_signal(int number);
    void watch();
    Status reload();
};

void Server::Impl::on_signal(int number) {
    if (number == SIGHUP) {
        const Status s = reload();
        state.log->write(s.ok() ? LogLevel::kInfo : LogLevel::kError,
                         "reload",
                         LogFields().text("result", s.ok() ? "ok" : s.message()));
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    state.log->write(LogLevel::kInfo, "signal", LogFields().integer("number", number));
    // While loading nothing is owed to anybody; a second signal means it.
    const bool again = signal != 0;
    if (again || state.phase == Phase::kLoading) std::_Exit(again || number == SIGINT ? 130 : 0);
    signal = number;
    state.undrain_allowed = false;
    state.phase = Phase::kDraining;
    changed.notify_all();
}

void Server::Impl::watch() {
    const InferenceBackend* engine = state.backend();
    if (engine == nullptr || state.config.watchdog_ms == 0) return;
    const EngineStats stats = engine->stats();
    const auto now = std::chrono::steady_clock::now();
    const bool busy = state.metrics.generations_open > 0;
    if (!busy || stats.steps != last_steps) {
        last_steps = stats.steps;
        last_progress = now;
        return;
    }
    if (now - last_progress < server::Milliseconds(state.config.watchdog_ms)) return;
    state.phase = Phase::kDead;
    state.log->write(
        LogLevel::kError,
        "engine_dead",
        LogFields().integer("step", stats.steps).integer("waited_ms", state.config.watchdog_ms));
    // Its thread cannot be joined: the supervisor starts another process.
    std::this_thread::sleep_for(server::Milliseconds(200));  // the log's last line
    std::_Exit(70);
}

Status Server::Impl::reload() {
    state.log->reopen();
    if (!state.config.api_keys.empty()) {
        auto keys = server::KeyRing::load(state.config.api_keys);
        if (!keys.ok()) return keys.status();
        state.set_keys(std::move(keys).value());
    }
    return listener->reload_tls();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::start(const ServerConfig& config) {
    DI_RETURN_IF_ERROR(config.validate());
    std::signal(SIGPIPE, SIG_IGN);
    auto log =
        server::Log::open(config.log_file, server::log_level_from_name(config.log_level).value());
    if (!log.ok()) return log.status();
    auto impl = std::make_unique<Impl>(config, std::move(log).value());
    server::ServerState& state = impl->state;
    state.started_s = server::unix_seconds();
    if (!config.api_keys.empty()) {
        auto keys = server::KeyRing::load(config.api_keys);
        if (!keys.ok())
            return Status(StatusCode::kInvalidArgument, "--api-keys " + keys.status().message());
        state.set_keys(std::move(keys).value());
    }
    Impl* raw = impl.get();
    state.reload = [raw] { return raw->reload(); };
    state.cpu_seconds = [raw] { return raw->listener->cpu_seconds(); };
    if (config.image_urls) {
        // They wait more than they work. Each may hold a request's pictures, 64 MiB.
        constexpr int kThreads = 8;
        constexpr size_t kWaiting = 256;
        impl->fetchers = std::make_unique<server::WorkPool>(kThreads, kWaiting);
        state.fetchers = impl->fetchers.get();
    }
    {
        // Two compilations run at a time; the rest of the threads wait for their turn. A tenant's
        // further ones wait in the pool, where they hold up only each other.
        constexpr int kThreads = 6;
        constexpr size_t kWaiting = 256;
        impl->compilers =
            std::make_unique<server::WorkPool>(kThreads, kWaiting, server::WorkPool::Lanes{2, 16});
        state.compilers = impl->compilers.get();
    }
    auto listener = server::Listener::start(state);
    if (!listener.ok()) return listener.status();
    impl->listener = std::move(listener).value();
    if (config.handle_signals)
        impl->listener->watch_signals([raw](int number) { raw->on_signal(number); });
    impl->listener->every_second([raw] { raw->watch(); });
    std::unique_ptr<Server> out(new Server(std::move(impl)));
    state.log->write(LogLevel::kInfo,
                     "listening",
                     LogFields()
                         .text("url", out->url())
                         .integer("admin_port", out->admin_port())
                         .text("keys", config.api_keys.empty() ? "none" : "file"));
    return out;
}

Server::~Server() {
    impl_->state.undrain_allowed = false;
    impl_->listener.reset();
}

void Server::attach(std::unique_ptr<InferenceBackend> backend) {
    impl_->backend = std::move(backend);
    impl_->state.set_backend(impl_->backend.get());
    Phase from = Phase::kLoading;
    impl_->state.phase.compare_exchange_strong(from, Phase::kReady);
    impl_->state.log->write(LogLevel::kInfo, "ready");
}

int Server::port() const {
    return impl_->listener->port();
}
int Server::admin_port() const {
    return impl_->listener->admin_port();
}
std::string Server::url() const {
    std::string host = impl_->state.config.host;
    if (host.find(':') != std::string::npos) host = "[" + host + "]";
    return std::string(impl_->listener->tls() ? "https://" : "http://") + host + ":" +
           std::to_string(port());
}

void Server::drain(int64_t settle_ms, int64_t timeout_ms) {
    server::ServerState& state = impl_->state;
    state.undrain_allowed = false;
    state.phase = Phase::kDraining;
    const auto pause = [](int64_t ms) { std::this_thread::sleep_for(server::Milliseconds(ms)); };
    pause(settle_ms);
    impl_->listener->stop_accepting();
    const auto wait_until_quiet = [&](int64_t ms) {
        const auto end = std::chrono::steady_clock::now() + server::Milliseconds(ms);
        while (state.metrics.requests_open > 0 && std::chrono::steady_clock::now() < end) pause(10);
        return state.metrics.requests_open == 0;
    };
    const bool quiet = wait_until_quiet(timeout_ms);
    if (!quiet) {
        state.log->write(LogLevel::kWarning,
                         "shutdown_timeout",
                         LogFields().integer("open", state.metrics.requests_open));
        impl_->listener->shut_down_requests();
        wait_until_quiet(3000);
    }
    state.log->write(LogLevel::kInfo, "drained");
}

int Server::wait() {
    Impl& s = *impl_;
    int number = 0;
    {
        std::unique_lock<std::mutex> lock(s.mutex);
        s.changed.wait(lock, [&s] { return s.signal != 0; });
        number = s.signal;
    }
    drain(number == SIGINT ? 0 : s.state.config.drain_settle_ms,
          s.state.config.shutdown_timeout_ms);
    return number == SIGINT ? 130 : 0;
}

Status Server::reload() {
    return impl_->reload();
}
double Server::cpu_seconds() const {
    return impl_->listener->cpu_seconds();
}

}  // namespace deepinfer
