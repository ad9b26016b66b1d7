// bench scheduler: what a decoding step costs beside the model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench_record.h"

namespace deepinfer::cli {

/// Calls `emit` with one record a combination of requests in flight, loop and sampling.
Status run_bench_scheduler(const std::vector<int64_t>& running,
                           int windows,
                           uint64_t seed,
                           const std::string& tag,
                           const std::string& note,
                           const std::function<Status(const nlohmann::ordered_json&)>& emit);

}  // namespace deepinfer::cli
