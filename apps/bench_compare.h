// bench compare: two files of measurement records, like with like.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::cli {

struct CompareOptions {
    std::string old_path, new_path;
    double limit = 0.15;               ///< a change beyond it is flagged
    std::vector<std::string> metrics;  ///< empty: the main figure of each bench
};

struct Comparison {
    std::string text;    ///< a line a figure, for people
    bool worse = false;  ///< a figure became worse than the limit
};

/// Records are compared when bench, host, cpu, model, backend, isa, threads, batch, op, shape,
/// rows, dtype and settings agree; where one file has several of a kind, their median counts.
/// Records of one tag that differ in model, layout, context or accounting are refused
/// (kInvalidFile): such a series must not be drawn as one. kNotFound if no record of one file has
/// its like in the other.
Result<Comparison> compare_records(const CompareOptions& options);

}  // namespace deepinfer::cli
