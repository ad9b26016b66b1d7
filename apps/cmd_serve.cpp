// serve: the HTTP server in front of the engine.
#include <cstdio>
#include <memory>

#include "command.h"
#include "deepinfer/engine.h"
#include "deepinfer/server.h"

namespace deepinfer::cli {
namespace {

struct Options {
    CommonOptions common;
    ServerConfig server;
    std::string config_file;
    CLI::App* app = nullptr;
};

/// Options of the file that the command line does not give. Unknown names are errors.
Status apply_file(Options& o) {
    if (o.config_file.empty()) return {};
    auto entries = read_option_file(o.config_file);
    if (!entries.ok()) return entries.status();
    for (const auto& [name, values] : entries.value()) {
        CLI::Option* option = o.app->get_option_no_throw("--" + name);
        if (option == nullptr || name == "config" || name == "help")
            return {StatusCode::kInvalidArgument,
                    o.config_file + ": serve has no option '" + name + "'"};
        if (option->count() > 0) continue;  // the command line wins
        try {
            const bool flag = option->get_expected_max() == 0;
            for (const std::string& value : values) {
                if (flag && value != "true" && value != "false")
                    return {
                        StatusCode::kInvalidArgument,
                        o.config_file + ": " + name + " is " + value + ", expected true or false"};
                if (!flag || value == "true") option->add_result(value);
            }
            if (option->count() > 0) option->run_callback();
        } catch (const CLI::Error& e) {
            return {StatusCode::kInvalidArgument, o.config_file + ": " + e.what()};
        }
    }
    return {};
}

int run(Options& o) {
    if (Status s = apply_file(o); !s.ok()) return fail(s);
    Result<std::string> dir = resolve_model(o.common);
    if (!dir.ok()) return fail(dir.status());
    o.common.engine.model_dir = dir.value();
    if (Status s = o.common.engine.validate(); !s.ok()) return fail(s);
    o.server.handle_signals = true;

    Result<std::unique_ptr<Server>> server = Server::start(o.server);
    if (!server.ok()) return fail(server.status());
    Result<std::unique_ptr<Engine>> engine = Engine::create(o.common.engine);
    if (!engine.ok()) return fail(engine.status());
    std::fprintf(stderr, "%s\n", engine.value()->description().c_str());
    server.value()->attach(engine_backend(std::move(engine).value()));
    std::printf("listening on %s\n", server.value()->url().c_str());
    std::printf(
        "admin on http://%s:%d\n", o.server.admin_host.c_str(), server.value()->admin_port());
    std::fflush(stdout);
    return server.value()->wait();
}

}  // namespace

Run add_serve(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app = root.add_subcommand("serve", "Serves OpenAI's and Anthropic's HTTP protocols");
    o->app = app;
    ServerConfig& s = o->server;
    app->add_option(
        "--config", o->config_file, "YAML file of these options (the command line wins)");
    app->add_option("--host", s.host, "Address to listen on")->capture_default_str();
    app->add_option("--port", s.port, "Port (0 = any free one)")->capture_default_str();
    app->add_option("--admin-host", s.admin_host, "Address of the admin listener")
        ->capture_default_str();
    app->add_option("--admin-port", s.admin_port, "Its port (default: port + 1)");
    app->add_option("--served-model-name",
                    s.served_model_names,
                    "Name that clients use (repeatable; default deepseek-flash)")
        ->allow_extra_args(false);
    app->add_option("--api-keys", s.api_keys, "Keys file (docs/server.md); SIGHUP reads it again");
    app->add_flag("--insecure", s.insecure, "Listen beyond loopback without keys");
    app->add_option("--tls-cert", s.tls_cert, "Certificate chain (PEM); SIGHUP reads it again");
    app->add_option("--tls-key", s.tls_key, "Its private key (PEM)");
    app->add_option("--tls-client-ca", s.tls_client_ca, "Clients must show a certificate of these");
    app->add_option("--cors-origin", s.cors_origins, "Site whose pages may call (repeatable)")
        ->allow_extra_args(false);
    app->add_option("--allowed-host", s.allowed_hosts, "Host name to answer to (repeatable)")
        ->allow_extra_args(false);
    app->add_flag("--allow-image-urls",
                  s.image_urls,
                  "Fetch pictures that requests name by http(s) URLs, from public addresses");
    app->add_option("--image-url-host", s.image_url_hosts, "From these hosts only (repeatable)")
        ->allow_extra_args(false);
    app->add_option("--image-url-private-host",
                    s.image_url_private_hosts,
                    "Host, or host:port, whose addresses need not be public (repeatable)")
        ->allow_extra_args(false);
    app->add_flag("--compat", s.compat, "Refuse, ignore and clamp as deepseek-recipe does");
    app->add_flag("--deepseek-sampling",
                  s.deepseek_sampling,
                  "Temperature 1 while thinking, top_p as DeepSeek's service has it");
    app->add_flag("--openai-usage-chunk",
                  s.openai_usage_chunk,
                  "Usage in a last chunk without choices, as OpenAI sends it");
    app->add_flag("--ignore-web-search",
                  s.ignore_web_search,
                  "Messages: leave web search declarations out instead of refusing them");
    app->add_option("--thinking-default", s.thinking_default, "0 or 1: think unless told otherwise")
        ->capture_default_str();
    app->add_option("--io-threads", s.io_threads, "Threads for sockets (0 = choose)")
        ->capture_default_str();
    app->add_option(
           "--cpu-threads", s.cpu_threads, "Threads for rendering and tokenizing (0 = choose)")
        ->capture_default_str();
    app->add_option(
           "--drain-settle-ms", s.drain_settle_ms, "After SIGTERM: time to go on accepting")
        ->capture_default_str();
    app->add_option("--shutdown-timeout-ms", s.shutdown_timeout_ms, "Then: time for open requests")
        ->capture_default_str();
    app->add_option(
           "--watchdog-ms", s.watchdog_ms, "A step that takes longer ends the process (0: never)")
        ->capture_default_str();
    app->add_option("--vllm-metrics", s.vllm_metrics, "0 or 1: metrics under vLLM's names too")
        ->capture_default_str();
    app->add_option("--access-log", s.access_log, "0 or 1: one line a request")
        ->capture_default_str();
    app->add_option("--log-file", s.log_file, "Log as JSON lines (default: standard error)");
    app->add_option("--log-level", s.log_level, "debug, info, warning or error")
        ->capture_default_str();
    for (const LimitOption& option : limit_options())
        app->add_option("--" + std::string(option.name), s.limits.*option.field, option.help)
            ->capture_default_str();
    add_model_options(*app, o->common);
    o->common.engine.max_queue = 1024;  // a server says "later" instead of queueing without end
    app->add_option(
           "--max-queue", o->common.engine.max_queue, "Waiting requests before 429 (0 = no limit)")
        ->capture_default_str();
    add_engine_options(*app, o->common);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
