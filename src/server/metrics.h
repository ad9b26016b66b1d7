// Counters and histograms of the server, and the text that Prometheus reads.
//
// Recording is a few relaxed atomic additions, from any thread; a scrape reads them and the
// engine's last published statistics, so it never waits for the engine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer::server {

class Histogram {
  public:
    /// Upper bounds, ascending; +Inf is added.
    explicit Histogram(std::span<const double> bounds);
    void observe(double value);
    /// Appends the sample lines `name_bucket{labels,le=…}`, `name_sum`, `name_count`.
    void write(std::string_view name, std::string_view labels, std::string* out) const;
    int64_t count() const;
    /// Upper bound of the bucket that holds this share of the values; 0 without any.
    double quantile_bound(double share) const;
    double sum() const { return sum_.load(std::memory_order_relaxed); }

  private:
    std::vector<double> bounds_;
    std::vector<std::atomic<int64_t>> counts_;  // per bucket, not cumulative
    std::atomic<double> sum_{0};
};

/// How a request to the model ended, for the counter.
enum class Outcome { kStop, kLength, kToolCalls, kAbort, kError };
inline constexpr int kNumOutcomes = 5;
const char* outcome_name(Outcome outcome);

struct Metrics {
    Metrics();

    // HTTP
    std::atomic<int64_t> connections_open{0};
    std::atomic<int64_t> connections_total{0};
    std::atomic<int64_t> connections_refused{0};
    std::atomic<int64_t> requests_open{0};
    std::atomic<int64_t> held_body_bytes{0};  ///< as of the last scrape
    std::atomic<int64_t> bytes_received{0};
    std::atomic<int64_t> bytes_sent{0};
    std::atomic<int64_t> stream_events{0};  ///< frames of event streams
    void count_request(std::string_view route, int status);

    // Requests to the model
    std::atomic<int64_t> generations_open{0};
    std::atomic<int64_t> prompt_tokens{0};
    std::atomic<int64_t> cached_tokens{0};
    std::atomic<int64_t> generation_tokens{0};
    std::atomic<int64_t> aborts{0};        ///< requests taken back from the engine
    std::atomic<int64_t> slow_clients{0};  ///< of which because nobody read the answer
    std::atomic<int64_t> invalid_markers{0};
    std::atomic<int64_t> repaired_calls{0};
    std::atomic<int64_t> undeclared_calls{0};
    std::array<std::atomic<int64_t>, kNumOutcomes> outcomes{};

    Histogram time_to_first_token_s;
    Histogram inter_token_s;
    Histogram per_output_token_s;
    Histogram e2e_s;
    Histogram queue_s;
    Histogram prefill_s;
    Histogram decode_s;
    Histogram inference_s;
    /// From a request's head to its first token's frame, less the engine's own time.
    Histogram first_token_overhead_s;
    Histogram request_prompt_tokens;
    Histogram request_generation_tokens;

    /// The exposition text. `stats` and `config` are the engine's, null while it loads.
    std::string exposition(const EngineStats* stats,
                           const EngineConfig* config,
                           std::string_view model_name,
                           bool vllm_names,
                           double cpu_seconds) const;

  private:
    mutable std::mutex mutex_;
    std::map<std::pair<std::string, int>, int64_t> requests_;  // routes are ours: a bounded set
};

}  // namespace deepinfer::server
