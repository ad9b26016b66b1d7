// bench steps: a decode step and a prompt chunk beside the sum of their floors, op by op.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench_record.h"
#include "command.h"
#include "deepinfer/config.h"

namespace deepinfer::cli {

struct StepsOptions {
    std::vector<int64_t> batch_sizes;  ///< of the decode steps
    int64_t context = 512;             ///< the chunk's tokens, and the decode steps' prompts
    int64_t steps = 48;                ///< decode steps of a window
    int windows = 5;
    uint64_t seed = 1;
    std::string tag, note;
    bool table = false;  ///< ops of each step on stderr
};

/// One record a phase, without drafts. `config.backend` must be one that can measure its roofs
/// (cpu).
Status run_bench_steps(EngineConfig config,
                       const StepsOptions& options,
                       const std::function<Status(const nlohmann::ordered_json&)>& emit);

}  // namespace deepinfer::cli
