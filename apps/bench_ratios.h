// bench ratios: truncation, prefix hits, loops, invariance and batching as ratios of two settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench_record.h"
#include "deepinfer/config.h"

namespace deepinfer::cli {

struct RatioOptions {
    int64_t context = 4000;   ///< prompt of the truncation ratio
    int64_t hit = 1024;       ///< tokens of the prefix hit
    int64_t output_len = 64;  ///< tokens of the decoding ratios
    int repeat = 3;
    uint64_t seed = 1;
    std::string tag, note;
};

/// Makes its own engines from `config`; calls `emit` with every record.
Status run_ratios(const EngineConfig& config,
                  const RatioOptions& options,
                  const std::function<Status(const nlohmann::ordered_json&)>& emit);

}  // namespace deepinfer::cli
