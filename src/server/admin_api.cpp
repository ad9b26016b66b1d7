// The admin listener's routes, and the dispatch of all routes that work.
#include <cmath>

#include "recipe/fields.h"
#include "server/api.h"

namespace deepinfer::server {
namespace {

using recipe::Json;

Json requests_json(const ServerState& state) {
    const SteadyTime now = std::chrono::steady_clock::now();
    Json list = Json::array();
    for (const auto& [id, entry] : state.live.list()) {
        Json row = Json::object({{"id", id},
                                 {"route", entry.route},
                                 {"key", entry.key_id},
                                 {"tenant", entry.tenant},
                                 {"prompt_tokens", entry.prompt_tokens},
                                 {"completion_tokens", entry.completion_tokens->load()}});
        row.set("seconds", ms_between(entry.begun, now) / 1000);
        list.push_back(std::move(row));
    }
    return list;
}

Json engine_json(const InferenceBackend& backend) {
    const EngineStats s = backend.stats();
    return Json::object({{"running", s.running},
                         {"waiting", s.waiting},
                         {"total_blocks", s.total_blocks},
                         {"free_blocks", s.free_blocks},
                         {"steps", s.steps},
                         {"prefill_tokens", s.prefill_tokens},
                         {"decode_tokens", s.decode_tokens},
                         {"output_tokens", s.output_tokens},
                         {"prefix_query_tokens", s.prefix_query_tokens},
                         {"prefix_hit_tokens", s.prefix_hit_tokens},
                         {"replayed_tokens", s.replayed_tokens},
                         {"preemptions", s.preemptions},
                         {"prepared_images", s.prepared_images},
                         {"encoded_images", s.encoded_images},
                         {"finished_requests", s.finished_requests},
                         {"plan_us", s.plan_us},
                         {"commit_us", s.commit_us},
                         {"step_us", s.step_us},
                         {"max_num_seqs", backend.config().max_num_seqs},
                         {"max_model_len", backend.config().max_model_len}});
}

/// Mean and count of a histogram, for people; dashboards read /metrics.
Json summary(const Histogram& h) {
    const int64_t n = h.count();
    Json out = Json::object({{"count", n}});
    out.set("mean", n > 0 ? Json(h.sum() / static_cast<double>(n)) : Json());
    for (const auto& [name, share] :
         {std::pair<const char*, double>("p50_at_most", 0.5), {"p99_at_most", 0.99}}) {
        const double bound = h.quantile_bound(share);
        out.set(name, n > 0 && std::isfinite(bound) ? Json(bound) : Json());
    }
    return out;
}

Json status_json(const ServerState& state) {
    const Metrics& m = state.metrics;
    Json out = Json::object({{"version", DEEPINFER_VERSION},
                             {"phase", phase_name(state.phase)},
                             {"started", state.started_s},
                             {"now", unix_seconds()}});
    Json models = Json::array();
    for (const std::string& name : state.config.served_model_names) models.push_back(name);
    out.set("models", std::move(models));
    out.set("http",
            Json::object({{"connections", m.connections_open.load()},
                          {"connections_total", m.connections_total.load()},
                          {"connections_refused", m.connections_refused.load()},
                          {"requests", m.requests_open.load()},
                          {"received_bytes", m.bytes_received.load()},
                          {"sent_bytes", m.bytes_sent.load()},
                          {"held_body_bytes", state.bodies.held()},
                          {"log_lines_dropped", state.log->dropped()}}));
    Json outcomes = Json::object();
    for (int i = 0; i < kNumOutcomes; ++i)
        outcomes.set(outcome_name(static_cast<Outcome>(i)),
                     m.outcomes[static_cast<size_t>(i)].load());
    Json generation = Json::object({{"open", m.generations_open.load()},
                                    {"prompt_tokens", m.prompt_tokens.load()},
                                    {"cached_tokens", m.cached_tokens.load()},
                                    {"generation_tokens", m.generation_tokens.load()},
                                    {"aborts", m.aborts.load()},
                                    {"slow_clients", m.slow_clients.load()}});
    generation.set("outcomes", std::move(outcomes));
    generation.set("time_to_first_token_s", summary(m.time_to_first_token_s));
    generation.set("first_token_overhead_s", summary(m.first_token_overhead_s));
    generation.set("inter_token_s", summary(m.inter_token_s));
    generation.set("e2e_s", summary(m.e2e_s));
    out.set("generation", std::move(generation));
    out.set("stored_responses",
            Json::object({{"turns", static_cast<int64_t>(state.store.turns())},
                          {"bytes", state.store.bytes()}}));
    const InferenceBackend* backend = state.backend();
    out.set("engine", backend != nullptr ? engine_json(*backend) : Json());
    out.set("requests", requests_json(state));
    return out;
}

Json config_json(const ServerState& state) {
    const ServerConfig& c = state.config;
    const auto list = [](const std::vector<std::string>& texts) {
        Json out = Json::array();
        for (const std::string& text : texts) out.push_back(text);
        return out;
    };
    Json out = Json::object({{"host", c.host},
                             {"port", c.port},
                             {"admin-host", c.admin_host},
                             {"admin-port", c.admin_port},
                             {"api-keys", c.api_keys},
                             {"insecure", c.insecure},
                             {"tls-cert", c.tls_cert},
                             {"tls-client-ca", c.tls_client_ca},
                             {"allow-image-urls", c.image_urls},
                             {"compat", c.compat},
                             {"deepseek-sampling", c.deepseek_sampling},
                             {"openai-usage-chunk", c.openai_usage_chunk},
                             {"ignore-web-search", c.ignore_web_search},
                             {"thinking-default", c.thinking_default},
                             {"io-threads", c.io_threads},
                             {"cpu-threads", c.cpu_threads},
                             {"drain-settle-ms", c.drain_settle_ms},
                             {"shutdown-timeout-ms", c.shutdown_timeout_ms},
                             {"watchdog-ms", c.watchdog_ms},
                             {"vllm-metrics", c.vllm_metrics},
                             {"access-log", c.access_log},
                             {"log-file", c.log_file}});
    out.set("served-model-name", list(c.served_model_names));
    out.set("cors-origin", list(c.cors_origins));
    out.set("allowed-host", list(c.allowed_hosts));
    out.set("image-url-host", list(c.image_url_hosts));
    out.set("image-url-private-host", list(c.image_url_private_hosts));
    for (const LimitOption& option : limit_options()) out.set(option.name, c.limits.*option.field);
    const InferenceBackend* backend = state.backend();
    out.set("engine", backend != nullptr ? Json::raw(backend->config().to_json()) : Json());
    return out;
}

Answer json_answer(const Json& json) {
    Answer answer;
    answer.reply.body = recipe::dump_python(json);
    return answer;
}

Answer set_log_level(ServerState& state, const std::string& text) {
    recipe::ApiError error;
    const std::optional<Json> body = read_body(state, text, &error);
    if (!body) return error_answer(ErrorShape::kOpenAi, error);
    const Json* level = body->find("level");
    const Result<LogLevel> parsed = log_level_from_name(
        level != nullptr && level->is_string() ? std::string_view(level->as_string()) : "");
    if (!parsed.ok())
        return error_answer(ErrorShape::kOpenAi, bad_request(parsed.status().message(), "level"));
    state.log->set_level(parsed.value());
    return json_answer(Json::object({{"level", level->as_string()}}));
}

Answer set_draining(ServerState& state, bool draining) {
    Phase from = draining ? Phase::kReady : Phase::kDraining;
    const Phase to = draining ? Phase::kDraining : Phase::kReady;
    if (!draining && !state.undrain_allowed)
        return error_answer(ErrorShape::kOpenAi,
                            api_error(503, "overloaded_error", "the server is on its way out"));
    state.phase.compare_exchange_strong(from, to);
    state.log->write(LogLevel::kInfo, draining ? "drain" : "undrain");
    return json_answer(Json::object({{"phase", phase_name(state.phase)}}));
}

Answer flush_cache(ServerState& state) {
    InferenceBackend* backend = state.backend();
    if (backend == nullptr)
        return error_answer(ErrorShape::kOpenAi,
                            api_error(503, "overloaded_error", "the model is being loaded"));
    const Result<int64_t> blocks = backend->flush_prefix_cache();
    if (!blocks.ok()) return error_answer(ErrorShape::kOpenAi, from_status(blocks.status()));
    state.log->write(LogLevel::kInfo, "cache_flush", LogFields().integer("blocks", blocks.value()));
    return json_answer(Json::object({{"flushed_blocks", blocks.value()}}));
}

}  // namespace

Answer handle_admin(ServerState& state, Exchange& exchange) {
    switch (exchange.route->endpoint) {
        case Endpoint::kMetrics: {
            const InferenceBackend* backend = state.backend();
            EngineStats stats;
            if (backend != nullptr) stats = backend->stats();
            state.metrics.held_body_bytes = state.bodies.held();
            Answer answer;
            answer.reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
            answer.reply.body =
                state.metrics.exposition(backend != nullptr ? &stats : nullptr,
                                         backend != nullptr ? &backend->config() : nullptr,
                                         state.config.served_model_names.front(),
                                         state.config.vllm_metrics,
                                         state.cpu_seconds ? state.cpu_seconds() : 0);
            return answer;
        }
        case Endpoint::kAdminStatus:
            return json_answer(status_json(state));
        case Endpoint::kAdminRequests:
            return json_answer(Json::object({{"requests", requests_json(state)}}));
        case Endpoint::kAdminConfig:
            return json_answer(config_json(state));
        case Endpoint::kAdminDrain:
            return set_draining(state, true);
        case Endpoint::kAdminUndrain:
            return set_draining(state, false);
        case Endpoint::kAdminLogLevel:
            return set_log_level(state, exchange.request.body);
        case Endpoint::kAdminReload: {
            const Status s = state.reload();
            if (!s.ok()) return error_answer(ErrorShape::kOpenAi, bad_request(s.message()));
            return json_answer(Json::object({{"reloaded", true}}));
        }
        case Endpoint::kAdminFlushCache:
            return flush_cache(state);
        default:
            break;
    }
    return error_answer(ErrorShape::kOpenAi, api_error(500, "internal_error", "no such endpoint"));
}

Answer handle(ServerState& state, Exchange& exchange) {
    switch (exchange.route->endpoint) {
        case Endpoint::kChatCompletions:
            return handle_conversation(state, exchange, recipe::Protocol::kChatCompletions);
        case Endpoint::kMessages:
            return handle_conversation(state, exchange, recipe::Protocol::kMessages);
        case Endpoint::kResponses:
            return handle_conversation(state, exchange, recipe::Protocol::kResponses);
        case Endpoint::kCompletions:
            return handle_completions(state, exchange);
        case Endpoint::kCountTokens:
            return handle_count_tokens(state, exchange);
        case Endpoint::kTokenize:
            return handle_tokenize(state, exchange);
        case Endpoint::kDetokenize:
            return handle_detokenize(state, exchange);
        case Endpoint::kModels:
            return handle_models(state, exchange);
        case Endpoint::kModel:
            return handle_model(state, exchange);
        case Endpoint::kGetResponse:
            return handle_stored_response(state, exchange, false);
        case Endpoint::kDeleteResponse:
            return handle_stored_response(state, exchange, true);
        case Endpoint::kCancelRequest:
            return handle_cancel(state, exchange);
        case Endpoint::kHealthGenerate:
            return handle_health_generate(state, exchange);
        case Endpoint::kEmbeddings:
            return error_answer(
                ErrorShape::kOpenAi,
                api_error(501, "not_implemented", "this model gives no embeddings"));
        default:
            return handle_admin(state, exchange);
    }
}

// ------------------------------------------------------------------ probe

namespace {

/// One greedy token, to see that the engine is alive.
class ProbeWriter final : public AnswerWriter {
  public:
    void begin(const Output&, std::string*) override {}
    bool output(int, const Output& o, std::string*) override {
        num_tokens_ += static_cast<int64_t>(o.token_ids.size());
        return !o.finished();
    }
    void fail(const recipe::ApiError&, std::string*) override {}
    void end(std::string*) override {}
    std::string whole() override { return "{\"status\": \"ok\"}"; }
    ErrorShape error_shape() const override { return ErrorShape::kOpenAi; }
    int64_t completion_tokens() const override { return num_tokens_; }
    std::string finish_reason() const override { return "length"; }
    int64_t events() const override { return 0; }

  private:
    int64_t num_tokens_ = 0;
};

}  // namespace

Answer handle_health_generate(ServerState& state, Exchange& exchange) {
    Request request;
    request.id = exchange.id;
    request.prompt_token_ids = {state.backend()->model_info().bos_token_id};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    GenerationPlan plan;
    plan.prompt_tokens = 1;
    plan.requests.push_back(std::move(request));
    plan.writer = std::make_unique<ProbeWriter>();
    return start_generation(state, exchange, std::move(plan));
}

}  // namespace deepinfer::server
