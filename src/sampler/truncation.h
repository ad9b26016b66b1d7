// min_p, top_k and top_p: which tokens of a row stay, exactly.
//
// Order of tokens everywhere: logit descending, id ascending (so ties are cut by id). Weights are
// integers (sampling_math.h), hence every sum is exact and independent of order, and the sets are
// the same however they are searched for.
//   min_p   keeps w >= floor(min_p · 2^40)
//   top_k   of those, the first k
//   top_p   of those, the shortest prefix whose weight reaches ceil(top_p · their weight); at least
//   one
#pragma once

#include <cstdint>
#include <vector>

#include "sampler/row_kernels.h"

namespace deepinfer {

struct Truncation {
    uint64_t min_weight = 0;  ///< floor(min_p · 2^40); 0: off
    int64_t top_k = 0;        ///< 0: off
    double top_p = 1;         ///< >= 1: off; <= 0: one token

    bool off(int64_t vocab) const {
        return min_weight == 0 && (top_k == 0 || top_k >= vocab) && top_p >= 1;
    }
};

struct TruncationWorkspace {
    std::vector<int32_t> ids;  ///< the kept ids, in no particular order
    std::vector<uint64_t> weights;
    std::vector<uint64_t> keys;
    std::vector<float> sample;
};

/// Fills workspace.ids with the kept ids and returns the sum of their weights. `scan` is of `row`
/// and its max must be finite; !truncation.off(n).
uint64_t truncate_row(const RowKernels& kernels,
                      const float* row,
                      int64_t n,
                      const RowScan& scan,
                      double inv_temperature,
                      const Truncation& truncation,
                      TruncationWorkspace& workspace);

/// The first k ids of the row in token order, in that order (fewer if fewer are above -inf).
std::vector<int32_t> top_ids(const RowKernels& kernels,
                             const float* row,
                             int64_t n,
                             int64_t k,
                             TruncationWorkspace& workspace);

/// The first k of `ids` (a multiset-free list) in token order.
void keep_top(const float* row, int64_t k, bool sorted, TruncationWorkspace& workspace);

/// ceil(p · sum) without rounding, at least 1. 0 < p < 1, sum > 0.
uint64_t ceil_share(double p, uint64_t sum);

}  // namespace deepinfer
