// The HTTP server: OpenAI Chat Completions, Completions and Responses, and Anthropic Messages, in
// front of an engine.
//
//   auto server = Server::start(config);            // binds; /health answers, /ready says
//   "loading" if (!server.ok()) … auto engine = Engine::create(engine_config);
//   server.value()->attach(engine_backend(std::move(engine).value()));   // /ready answers 200
//   return server.value()->wait();                  // until SIGTERM or SIGINT; drains, exit code
//
// Two listeners: the public one, and an admin one (metrics, drain, live requests). Everything that
// arrives is untrusted; a wrong request is answered with a typed error and harms no other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer {

/// Bounds of what one client may ask. Sizes in bytes, times in milliseconds. Reaching a bound is
/// fine, one more is refused.
struct ServerLimits {
    int64_t request_line_bytes = 8 << 10;
    int64_t header_bytes = 16 << 10;  ///< request line and all fields
    int64_t header_fields = 64;
    int64_t body_bytes = 48 << 20;
    int64_t held_body_bytes = 1 << 30;  ///< of all requests together, until they are answered
    int64_t json_depth = 64;
    int64_t json_keys = 10'000;  ///< of one object
    int64_t json_string_bytes = 16 << 20;
    int64_t messages = 4096;  ///< entries of `messages` or `input`
    int64_t tools = 128;
    int64_t schema_bytes = 256 << 10;  ///< of one schema, regular expression or grammar
    int64_t prompt_text_bytes = 8 << 20;
    int64_t batch_prompts = 128;  ///< prompts of one Completions request, times n

    int64_t connections = 4096;
    int64_t connections_per_ip = 256;
    int64_t admin_connections = 64;  ///< of the admin listener, apart from the public one's
    int64_t live_requests = 4096;    ///< requests with a body being read or answered
    int64_t header_timeout_ms = 10'000;
    int64_t body_timeout_ms = 60'000;
    int64_t body_min_bytes_per_s = 1024;  ///< after the first 5 s of a body
    int64_t idle_timeout_ms = 75'000;     ///< between requests of one connection
    int64_t queue_timeout_ms = 60'000;    ///< until the engine begins with a prompt
    int64_t first_token_timeout_ms = 300'000;
    int64_t inter_token_timeout_ms = 120'000;
    int64_t total_timeout_ms = 3'600'000;
    int64_t send_timeout_ms = 35'000;  ///< a write that a slow reader holds up
    /// Time that a reader holds writes up beyond send_timeout_ms in all must have moved this much.
    int64_t send_min_bytes_per_s = 1024;
    int64_t keep_alive_ms = 10'000;  ///< comment in a silent event stream; 0: none

    int64_t images = 600;                    ///< pictures of one request
    int64_t image_bytes = 32 << 20;          ///< of one picture as encoded
    int64_t request_image_bytes = 64 << 20;  ///< of all pictures of a request as encoded
    int64_t image_url_timeout_ms = 60'000;   ///< to fetch all pictures of a request

    int64_t stored_turns = 1024;  ///< Responses kept for previous_response_id; 0: none
    int64_t stored_turns_per_key = 256;
    int64_t stored_bytes = 64 << 20;
    int64_t stored_age_ms = 3'600'000;
};

/// One row a bound: its option (kebab-case), what it is, and the least and largest value.
struct LimitOption {
    const char* name;  ///< "max-body-bytes"
    int64_t ServerLimits::*field;
    const char* help;
    int64_t low;
    int64_t high;
};
std::span<const LimitOption> limit_options();

struct ServerConfig {
    std::string host = "127.0.0.1";  ///< address to listen on, numeric
    int port = 8000;                 ///< 0: any free one (Server::port says which)
    std::string admin_host = "127.0.0.1";
    int admin_port = -1;  ///< −1: port + 1 (or any free one if port is 0)
    std::vector<std::string> served_model_names = {"deepseek-flash"};

    std::string api_keys;   ///< keys file; "": no keys, loopback only
    bool insecure = false;  ///< listen beyond loopback without keys
    std::string tls_cert;   ///< PEM chain; with tls_key: the public listener speaks TLS
    std::string tls_key;
    std::string tls_client_ca;  ///< PEM: clients must show a certificate of one of these
    std::vector<std::string> cors_origins;   ///< origins of other sites that may call; "*": any
    std::vector<std::string> allowed_hosts;  ///< Host names besides the loopback ones

    /// Pictures may be named by http and https URLs, which the server then fetches: from public
    /// addresses only (docs/server.md). Off: such requests are refused.
    bool image_urls = false;
    std::vector<std::string> image_url_hosts;  ///< set: from these hosts only
    /// Hosts ("name" or "name:port") whose addresses need not be public.
    std::vector<std::string> image_url_private_hosts;

    bool compat = false;              ///< refuse, ignore and clamp as deepseek-recipe does
    bool deepseek_sampling = false;   ///< temperature 1 while thinking, top_p as the service has it
    bool openai_usage_chunk = false;  ///< usage in a last chunk of its own, as OpenAI sends it
    bool ignore_web_search = false;   ///< Messages: web search declarations are left out
    bool thinking_default = true;

    int io_threads = 0;   ///< 0: a quarter of the cores, 1 to 4
    int cpu_threads = 0;  ///< rendering and tokenizing; 0: half the cores, at least 1
    int64_t drain_settle_ms = 5'000;
    int64_t shutdown_timeout_ms = 120'000;
    /// An engine whose step takes longer is dead: exit code 70. 0: never.
    int64_t watchdog_ms = 600'000;

    bool vllm_metrics = true;  ///< also export metrics under vLLM's names
    bool access_log = true;
    std::string log_file;            ///< "": standard error
    std::string log_level = "info";  ///< debug, info, warning, error
    bool handle_signals = false;     ///< SIGTERM, SIGINT, SIGHUP act on this server

    ServerLimits limits;

    /// kInvalidArgument names the option and what it may be.
    Status validate() const;
};

/// What answers requests: an engine, or a stand-in with the same manners (see Engine for each
/// function's contract). Any thread calls it.
class InferenceBackend {
  public:
    virtual ~InferenceBackend() = default;
    virtual Result<uint64_t> submit(Request request, RequestCallbacks callbacks) = 0;
    virtual void abort(uint64_t request) = 0;
    virtual Result<std::vector<int32_t>> expand_prompt(const Request& request) const = 0;
    virtual const Tokenizer& tokenizer() const = 0;
    virtual const EngineConfig& config() const = 0;
    virtual const ModelInfo& model_info() const = 0;
    virtual EngineStats stats() const = 0;
    virtual Result<int64_t> flush_prefix_cache() = 0;
    /// Whether submit() need not compile this constraint first.
    virtual bool constraint_is_ready(const StructuredOutputArgs&) const { return true; }
};

std::unique_ptr<InferenceBackend> engine_backend(std::unique_ptr<Engine> engine);

/// A stand-in without a model, to measure and test the server alone: every request gets the same
/// text, one token a step.
struct ScriptedBackendOptions {
    std::string tokenizer_dir;    ///< whose tokenizer.json is used; required
    std::string text = {};        ///< the answer; "": numbered words, "w0 w1 w2 …"
    bool finish_with_eos = true;  ///< after `text`; else the answer goes on with numbered words
    int64_t max_model_len = 4096;
    int64_t max_queue = 0;
    int64_t max_num_seqs = 256;
    int64_t step_us = 0;        ///< pause of a step
    int64_t cached_tokens = 0;  ///< reported with every request
    /// Length of a picture's span; unset: it takes no pictures.
    std::function<Result<int64_t>(const ImageInput&)> image_tokens = {};
};
Result<std::unique_ptr<InferenceBackend>> scripted_backend(const ScriptedBackendOptions& options);

/// All functions may be called from any thread.
class Server {
  public:
    /// Binds both listeners and answers /health. kInvalidArgument: configuration (also a keys or
    /// certificate file that cannot be used, and an address beyond loopback without keys);
    /// kUnavailable: the address is taken.
    static Result<std::unique_ptr<Server>> start(const ServerConfig& config);
    /// Stops at once: open requests are aborted.
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// From now on requests are served. Once. The server keeps the backend until it has stopped.
    void attach(std::unique_ptr<InferenceBackend> backend);

    int port() const;
    int admin_port() const;
    /// "http://127.0.0.1:8000"
    std::string url() const;

    /// Says "draining" on /ready, waits for `settle_ms`, stops to accept, lets what runs finish for
    /// up to `timeout_ms`, ends the rest with an error event. Returns when nothing is left.
    void drain(int64_t settle_ms, int64_t timeout_ms);
    /// With handle_signals: returns after a signal and the drain that it asked for. The exit code:
    /// 0 after SIGTERM, 130 after SIGINT, 70 if the engine died.
    int wait();
    /// Reads keys and certificates again (what SIGHUP does). On an error the old ones stay.
    Status reload();
    /// Processor time of the server's own threads so far (the backend's are not among them).
    double cpu_seconds() const;

  private:
    struct Impl;
    explicit Server(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

/// Reads a file of options: YAML (or JSON), a map from option names without dashes ("max-num-seqs")
/// to a value or a list of values. In order of the file. kNotFound, kInvalidArgument with the line.
Result<std::vector<std::pair<std::string, std::vector<std::string>>>> read_option_file(
    const std::string& path);

}  // namespace deepinfer
