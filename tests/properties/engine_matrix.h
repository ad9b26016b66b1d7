// The determinism matrix: one set of requests under many circumstances, one digest each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "properties/engine_lab.h"

namespace deepinfer::testing {

struct MatrixCase {
    int64_t batch = 16;    ///< sequences that may run at once
    int64_t budget = 256;  ///< rows of a step
    int threads = 2;
    bool async = true;
    bool caching = true;
    double preempt = 0;          ///< share of (step, sequence) pairs
    int64_t kv_cache_bytes = 0;  ///< 0 = ample
    int nextn = 0;               ///< drafts that a decode verifies
    bool varlen = false;
    std::string spec_budget = "model";
    uint64_t no_drafts = 0;  ///< so many steps with drafts and windows, so many without
    std::string truncation;
    std::string replay;         ///< "" = the default
    bool repeat = false;        ///< run the set twice: the second time prefixes are cached
    std::vector<size_t> again;  ///< requests of the set to run once more behind it

    std::string name() const;
};

/// Greedy and sampled requests over short and long prompts, all asking for log-probabilities.
std::vector<Request> matrix_requests(int64_t vocab,
                                     int64_t count,
                                     int64_t long_prompt,
                                     int64_t new_tokens);

struct MatrixResult {
    std::vector<std::string> digests;  ///< per request; of the second run with `repeat`
    std::vector<std::string> again;    ///< of MatrixCase::again, in that order
    int64_t again_hits = 0;            ///< tokens that those found in the cache
    int64_t preemptions = 0;
    int64_t hit_tokens = 0;
    int64_t draft_rows = 0;
};
MatrixResult run_matrix_case(const std::string& checkpoint,
                             const MatrixCase& c,
                             const std::vector<Request>& requests);

}  // namespace deepinfer::testing
