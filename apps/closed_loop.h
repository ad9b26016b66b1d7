// Load for benchmarks: prompts of random ordinary tokens, and a closed loop that keeps a number of
// requests in flight.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>
#include <vector>

#include "bench_record.h"
#include "deepinfer/engine.h"

namespace deepinfer::cli {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime now() {
    return std::chrono::steady_clock::now();
}
inline double ms_between(SteadyTime a, SteadyTime b) {
    return std::chrono::duration<double, std::milli>(b - a).count();
}
inline double s_between(SteadyTime a, SteadyTime b) {
    return ms_between(a, b) / 1000;
}

/// Random prompts of ordinary tokens.
class PromptMaker {
  public:
    PromptMaker(const Engine& engine, uint64_t seed);
    bool usable() const { return !ids_.empty(); }
    /// BOS and len - 1 tokens.
    std::vector<int32_t> make(int64_t len);
    void extend(std::vector<int32_t>* prompt, int64_t len);

  private:
    int32_t bos_;
    std::mt19937_64 random_;
    std::vector<int32_t> ids_;
};

/// What the requests of one repetition told.
struct Tally {
    Sample ttft_ms, itl_ms, e2e_ms;
    int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
    SteadyTime begin, end;
    Status error;

    double elapsed_s() const { return s_between(begin, end); }
};

/// Runs prompts with at most `batch` of them in flight and waits for all. An interrupt ends it.
class ClosedLoop {
  public:
    ClosedLoop(Engine& engine, int64_t batch, SamplingParams sampling)
        : engine_(engine), batch_(batch), sampling_(std::move(sampling)) {}

    Tally run(std::vector<std::vector<int32_t>> prompts);

  private:
    struct One {
        SteadyTime submitted, last;
        bool any = false;
    };

    bool submit(std::vector<int32_t> prompt);
    bool on_output(One* one, const Output& o);
    bool wait_until_below(int64_t limit);

    Engine& engine_;
    const int64_t batch_;
    const SamplingParams sampling_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t in_flight_ = 0;
    Tally tally_;
};

}  // namespace deepinfer::cli
