// What the engine costs beside the model: planning, bookkeeping, text and sampling of decoding
// steps, with an executor that computes nothing.
//
//   run_scheduler_bench({}, [](const SchedulerMeasurement& m) { …; return true; });
//
// Scheduler, block pool with prefix keys, both loops, delivery of deltas to callbacks and sampler
// are the engine's own; only the forward pass is left out. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct SchedulerBenchOptions {
    std::vector<int64_t> running = {16, 64};  ///< sequences that decode
    int64_t prompt_tokens = 128;
    int64_t vocab_size = 4096;  ///< of the rows that are sampled, and of the ids
    int windows = 9;            ///< medians over them are reported
    int64_t window_steps = 200;
    uint64_t seed = 1;
};

struct SchedulerMeasurement {
    int64_t running = 0;
    std::string loop;      ///< "plain", "async"
    std::string sampling;  ///< "none" (the executor names tokens), "greedy", "temperature"
    /// Mean of one step in the window of median processor time; step_us is everything, the executor
    /// included.
    double step_us = 0, plan_us = 0, commit_us = 0, sample_us = 0;
    double min_step_us = 0;  ///< best window
    double step_cpu_us = 0;  ///< the thread's processor time: what counts on a busy machine
};

/// Calls `on_result` for every combination; stops early when it returns false. kInvalidArgument: a
/// number out of range.
Status run_scheduler_bench(const SchedulerBenchOptions& options,
                           const std::function<bool(const SchedulerMeasurement&)>& on_result);

}  // namespace deepinfer
