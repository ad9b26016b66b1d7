// bench ops: single ops against the machine's roofs.
#pragma once

#include <string>

#include "command.h"
#include "deepinfer/op_bench.h"

namespace deepinfer::cli {

/// Prints one record a measurement on stdout (and appends it to `append` unless empty), and on
/// stderr, where there is a terminal or --progress, the ten smallest shares.
Status bench_ops(const CommonOptions& common,
                 OpBenchOptions options,
                 const std::string& tag,
                 const std::string& note,
                 const std::string& append);

}  // namespace deepinfer::cli
