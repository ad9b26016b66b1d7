#include "server/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

namespace deepinfer::server {
namespace {

// The buckets of vLLM's dashboards (online.md 5.7 names them).
constexpr double kFirstTokenBounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kTokenBounds[] = {
    .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10, 20, 40, 80};
constexpr double kOverheadBounds[] = {
    .0001, .0002, .0003, .0005, .00075, .001, .0015, .002, .003, .005, .01, .02, .05, .1, .5, 1};
constexpr double kRequestBounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kCountBounds[] = {1,
                                   2,
                                   5,
                                   10,
                                   20,
                                   50,
                                   100,
                                   200,
                                   500,
                                   1000,
                                   2000,
                                   5000,
                                   10000,
                                   20000,
                                   50000,
                                   100000,
                                   200000,
                                   500000,
                                   1000000};

std::string number(double value) {
    char text[40];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return {text, end};
}

class Writer {
  public:
    explicit Writer(std::string labels) : labels_(std::move(labels)) {}

    void counter(const char* name, const char* help, double value) {
        sample(name, help, "counter", value);
    }
    void gauge(const char* name, const char* help, double value) {
        sample(name, help, "gauge", value);
    }
    void head(std::string_view name, std::string_view help, std::string_view type) {
        out_ += "# HELP " + std::string(name) + " " + std::string(help) + "\n# TYPE " +
                std::string(name) + " " + std::string(type) + "\n";
    }
    void line(std::string_view name, std::string_view more_labels, double value) {
        out_ += std::string(name) + "{" + labels_ +
                (more_labels.empty() ? "" : "," + std::string(more_labels)) + "} " + number(value) +
                "\n";
    }
    void histogram(const char* name, const char* help, const Histogram& h) {
        head(name, help, "histogram");
        h.write(name, labels_, &out_);
    }
    std::string take() { return std::move(out_); }

  private:
    void sample(const char* name, const char* help, const char* type, double value) {
        head(name, help, type);
        line(name, "", value);
    }
    std::string labels_;
    std::string out_;
};

std::string escape_label(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\' || c == '"') out.push_back('\\');
        if (c == '\n') {
            out += "\\n";
        } else {
            out.push_back(c);
        }
    }
    return out;
}

int64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    int64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

double d(const std::atomic<int64_t>& value) {
    return static_cast<double>(value.load(std::memory_order_relaxed));
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

void Histogram::observe(double value) {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(at)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
}

int64_t Histogram::count() const {
    int64_t n = 0;
    for (const auto& c : counts_) n += c.load(std::memory_order_relaxed);
    return n;
}

double Histogram::quantile_bound(double share) const {
    const double wanted = share * static_cast<double>(count());
    double seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
        seen += static_cast<double>(counts_[i].load(std::memory_order_relaxed));
        if (seen > 0 && seen >= wanted) return i < bounds_.size() ? bounds_[i] : INFINITY;
    }
    return 0;
}

void Histogram::write(std::string_view name, std::string_view labels, std::string* out) const {
    const std::string n(name), l(labels);
    int64_t total = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
        total += counts_[i].load(std::memory_order_relaxed);
        const std::string le = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
        *out += n + "_bucket{" + l + ",le=\"" + le + "\"} " + std::to_string(total) + "\n";
    }
    *out += n + "_sum{" + l + "} " + number(sum()) + "\n";
    *out += n + "_count{" + l + "} " + std::to_string(total) + "\n";
}

const char* outcome_name(Outcome outcome) {
    static constexpr const char* kNames[] = {"stop", "length", "tool_calls", "abort", "error"};
    return kNames[static_cast<int>(outcome)];
}

Metrics::Metrics()
    : time_to_first_token_s(kFirstTokenBounds),
      inter_token_s(kTokenBounds),
      per_output_token_s(kTokenBounds),
      e2e_s(kRequestBounds),
      queue_s(kRequestBounds),
      prefill_s(kRequestBounds),
      decode_s(kRequestBounds),
      inference_s(kRequestBounds),
      first_token_overhead_s(kOverheadBounds),
      request_prompt_tokens(kCountBounds),
      request_generation_tokens(kCountBounds) {}

void Metrics::count_request(std::string_view route, int status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++requests_[{std::string(route), status}];
}

std::string Metrics::exposition(const EngineStats* stats,
                                const EngineConfig* config,
                                std::string_view model_name,
                                bool vllm_names,
                                double cpu_seconds) const {
    Writer w("model_name=\"" + escape_label(model_name) + "\",engine=\"0\"");
    w.gauge("deepinfer_up", "1 once the engine is loaded", stats != nullptr ? 1 : 0);
    w.gauge("deepinfer_http_connections", "Open connections", d(connections_open));
    w.counter("deepinfer_http_connections_total", "Accepted connections", d(connections_total));
    w.counter("deepinfer_http_connections_refused_total",
              "Connections beyond a limit",
              d(connections_refused));
    w.gauge("deepinfer_http_requests", "Requests being read or answered", d(requests_open));
    w.gauge("deepinfer_http_held_body_bytes",
            "Request bodies that are being read or not yet answered",
            d(held_body_bytes));
    w.head("deepinfer_http_requests_total", "Answered requests", "counter");
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& [key, value] : requests_) {
            w.line("deepinfer_http_requests_total",
                   "route=\"" + key.first + "\",status=\"" + std::to_string(key.second) + "\"",
                   static_cast<double>(value));
        }
    }
    w.counter("deepinfer_http_received_bytes_total", "Bytes of requests", d(bytes_received));
    w.counter("deepinfer_http_sent_bytes_total", "Bytes of answers", d(bytes_sent));
    w.counter("deepinfer_stream_events_total", "Frames of event streams", d(stream_events));
    w.counter("deepinfer_server_cpu_seconds_total",
              "Processor time of the server's threads",
              cpu_seconds);
    w.gauge("deepinfer_requests", "Requests to the model in progress", d(generations_open));
    w.counter("deepinfer_aborts_total", "Requests taken back from the engine", d(aborts));
    w.counter("deepinfer_slow_clients_total",
              "Requests ended because nobody read the answer",
              d(slow_clients));
    w.counter(
        "deepinfer_cached_tokens_total", "Prompt tokens found in the cache", d(cached_tokens));
    w.counter(
        "deepinfer_invalid_markers_total", "Stray markers in model output", d(invalid_markers));
    w.counter("deepinfer_repaired_calls_total",
              "Tool calls whose arguments were repaired",
              d(repaired_calls));
    w.counter("deepinfer_undeclared_calls_total",
              "Calls of tools that were not declared",
              d(undeclared_calls));
    w.gauge(
        "process_resident_memory_bytes", "Resident memory", static_cast<double>(resident_bytes()));
    if (stats != nullptr) {
        const EngineStats& s = *stats;
        const auto c = [&w](const char* name, const char* help, int64_t value) {
            w.counter(name, help, static_cast<double>(value));
        };
        c("deepinfer_engine_steps_total", "Steps of the engine", s.steps);
        c("deepinfer_engine_prefill_tokens_total", "Prompt rows computed", s.prefill_tokens);
        c("deepinfer_engine_decode_tokens_total", "Rows of decode steps computed", s.decode_tokens);
        c("deepinfer_engine_output_tokens_total", "Tokens delivered", s.output_tokens);
        c("deepinfer_engine_replayed_tokens_total", "Hit tokens computed again", s.replayed_tokens);
        c("deepinfer_engine_zombie_tokens_total",
          "Tokens computed after their sequence had ended",
          s.zombie_tokens);
        c("deepinfer_engine_step_us_total", "Microseconds in steps", s.step_us);
        c("deepinfer_engine_plan_us_total", "Microseconds in planning", s.plan_us);
        c("deepinfer_engine_commit_us_total", "Microseconds in delivery", s.commit_us);
        w.gauge("deepinfer_engine_blocks", "Cache blocks", static_cast<double>(s.total_blocks));
        w.gauge("deepinfer_engine_free_blocks",
                "Cache blocks without a user",
                static_cast<double>(s.free_blocks));
        w.gauge("deepinfer_engine_running",
                "Sequences that hold a slot",
                static_cast<double>(s.running));
        w.gauge(
            "deepinfer_engine_waiting", "Sequences in the queue", static_cast<double>(s.waiting));
    }
    if (!vllm_names) return w.take();

    if (stats != nullptr && config != nullptr) {
        const EngineStats& s = *stats;
        const double used = s.total_blocks > 0 ? 1.0 - static_cast<double>(s.free_blocks) /
                                                           static_cast<double>(s.total_blocks)
                                               : 0.0;
        w.gauge("vllm:num_requests_running", "Running", static_cast<double>(s.running));
        w.gauge("vllm:num_requests_waiting", "Waiting", static_cast<double>(s.waiting));
        w.gauge("vllm:kv_cache_usage_perc", "Share of cache blocks in use, 0 to 1", used);
        w.head("vllm:cache_config_info", "Cache configuration", "gauge");
        w.line("vllm:cache_config_info",
               "block_size=\"" + std::to_string(config->block_tokens) + "\",num_gpu_blocks=\"" +
                   std::to_string(s.total_blocks) + "\"",
               1);
        w.counter("vllm:prefix_cache_queries_total",
                  "Tokens looked up",
                  static_cast<double>(s.prefix_query_tokens));
        w.counter("vllm:prefix_cache_hits_total",
                  "Tokens found",
                  static_cast<double>(s.prefix_hit_tokens));
        w.counter("vllm:num_preemptions_total", "Preemptions", static_cast<double>(s.preemptions));
        if (!s.spec.temperature.empty() || s.spec.proposed > 0) {  // the engine drafts
            w.counter("vllm:spec_decode_num_drafts_total",
                      "Rounds of verification",
                      static_cast<double>(s.spec.rounds));
            w.counter("vllm:spec_decode_num_draft_tokens_total",
                      "Drafts verified",
                      static_cast<double>(s.spec.verified));
            w.counter("vllm:spec_decode_num_accepted_tokens_total",
                      "Drafts accepted",
                      static_cast<double>(s.spec.accepted));
        }
    }
    w.counter("vllm:prompt_tokens_total", "Prompt tokens", d(prompt_tokens));
    w.counter("vllm:generation_tokens_total", "Generated tokens", d(generation_tokens));
    w.head("vllm:request_success_total", "Finished requests", "counter");
    for (int i = 0; i < kNumOutcomes; ++i) {
        w.line("vllm:request_success_total",
               std::string("finished_reason=\"") + outcome_name(static_cast<Outcome>(i)) + "\"",
               d(outcomes[static_cast<size_t>(i)]));
    }
    const auto h = [&w](const char* name, const Histogram& histogram) {
        w.histogram(name, "As vLLM measures it", histogram);
    };
    h("vllm:time_to_first_token_seconds", time_to_first_token_s);
    h("vllm:inter_token_latency_seconds", inter_token_s);
    h("vllm:request_time_per_output_token_seconds", per_output_token_s);
    h("vllm:e2e_request_latency_seconds", e2e_s);
    h("vllm:request_queue_time_seconds", queue_s);
    h("vllm:request_prefill_time_seconds", prefill_s);
    h("vllm:request_decode_time_seconds", decode_s);
    h("vllm:request_inference_time_seconds", inference_s);
    h("vllm:request_prompt_tokens", request_prompt_tokens);
    h("vllm:request_generation_tokens", request_generation_tokens);
    return w.take();
}

}  // namespace deepinfer::server
