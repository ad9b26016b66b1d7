// bench spec: the same prompts with and without drafts, side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/config.h"
#include "deepinfer/status.h"

namespace deepinfer::cli {

struct SpecBenchOptions {
    EngineConfig engine;  ///< the drafting one; nextn 0 is refused
    std::vector<int64_t> batch_sizes;
    std::string prompts;      ///< JSON Lines with "messages"; "" = a dozen built-in questions
    int64_t output_len = 64;  ///< most tokens of an answer
    int64_t num_prompts = 0;  ///< of a repetition; 0 = four times the batch, at least 16
    int repeat = 3, warmup = 1;
    uint64_t seed = 1;
    double temperature = 0;
    bool fixed_lengths =
        false;  ///< beside it: 1 … nextn drafts, always verified, and as many as pay
    std::string tag, note;
    bool progress = false;
};

/// One record per batch size to `write`. Repetitions with and without drafts alternate, so that a
/// busy machine slows both; processor time stands beside the wall time.
Status bench_spec(const SpecBenchOptions& options,
                  const std::function<Status(const nlohmann::ordered_json&)>& write);

}  // namespace deepinfer::cli
