// bench ve: the vision tower over sizes and batches, or pictures from bytes to patches.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench_record.h"
#include "command.h"

namespace deepinfer::cli {

struct BenchVeOptions {
    std::vector<std::string> sizes;   ///< "640x480", or "546" for a square
    std::vector<std::string> images;  ///< files instead of the tower
    std::vector<int64_t> batch_sizes;
    int warmup = 1, repeat = 3;
};

void add_bench_ve_options(CLI::App& app, BenchVeOptions& options);

/// One record a size and batch, or a file. Stops at the first that `emit` cannot take.
Status run_bench_ve(const CommonOptions& common,
                    const BenchVeOptions& options,
                    const std::function<Status(nlohmann::ordered_json)>& emit);

}  // namespace deepinfer::cli
