// Measurement of single ops: every op of the forward pass at a geometry's shapes, against what the
// machine can do in the same seconds.
//
//   OpBenchOptions options;                     // released dimensions, every op
//   run_op_bench(options, [](const OpMeasurement& m) { …; return true; });
//
// A window of an op alternates with a window of its roof (sequential reading, or the widest dot
// products of the chosen instruction set), both on all threads, so that a busy machine slows both.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct OpBenchOptions {
    std::string backend = "cpu";  ///< one that can measure its roofs ("cpu")
    int threads = 0;              ///< 0 = what the container allows
    std::string isa;              ///< "" = the best there is
    std::string model_dir;  ///< shapes of this checkpoint's config.json (weights are generated)
    std::string synthetic;  ///< or of this geometry ("NAME[:SEED]"); both empty: cpu-slice
    std::vector<std::string> ops;  ///< names of the op table; empty = all
    std::vector<int64_t> rows;     ///< rows of a step; empty = 1, 2, 4, 8, 16, 64, 512
    int windows = 5;               ///< pairs of windows; medians are reported
    double window_ms = 10;         ///< least length of a window
    uint64_t seed = 1;
};

struct OpMeasurement {
    std::string op;     ///< name in the op table
    std::string shape;  ///< "32768x1280 wq_b", "64 heads x 512, 640 keys", …
    std::string dtype;  ///< of the weights: fp4, fp8, bf16, fp32; "" without weights
    int64_t rows = 0;
    double min_us = 0, med_us = 0, p90_us = 0;  ///< one call
    double bytes = 0, flops = 0;                ///< that one call must move and compute
    std::string roof;                           ///< "read" or "dot": the one that is slower
    double roof_value = 0;                      ///< measured beside it: GB/s or GFLOP/s
    double share = 0;                           ///< time that the roof allows ÷ med_us
    std::string backend_line;                   ///< backend, kernels, threads
};

/// Calls `on_result` for every measurement; stops early when it returns false. kInvalidArgument: an
/// unknown op or geometry, or a backend that cannot measure its roofs.
Status run_op_bench(const OpBenchOptions& options,
                    const std::function<bool(const OpMeasurement&)>& on_result);

}  // namespace deepinfer
