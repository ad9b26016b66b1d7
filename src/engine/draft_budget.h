// Draft budget: how many drafts a step verifies, and which. Pure arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace deepinfer {

struct DraftBudget {
    int64_t drafts = 0;
    double rate = 0;  ///< expected tokens per unit of cost
};

/// The number of drafts m, 0 … most, with the most expected tokens per time:
///   (certain_tokens + Σ of the m largest survivals) / cost(m)
/// Searched globally: real costs are jagged (padding, cache sizes), so the first m that is no
/// better than m − 1 need not be the end. Of equal ones the smallest.
DraftBudget best_draft_budget(std::vector<double> survivals,
                              double certain_tokens,
                              int64_t most,
                              const std::function<double(int64_t m)>& cost);

/// Drafts of each sequence when `budget` of them may be verified (−1: all): those with the largest
/// survival, none below `least_survival`. survivals[r] never rise in k, so every sequence gets a
/// beginning of its drafts. Equal ones: nearer to the anchor first, then the earlier sequence.
///
/// Whether draft k of a sequence is verified depends on its drafts before k alone: the confidence
/// of k is known before token k is drawn, and later ones are smaller. That, and a budget from older
/// confidences, keeps rejection sampling unbiased under any load.
std::vector<int32_t> allocate_drafts(const std::vector<std::vector<float>>& survivals,
                                     int64_t budget,
                                     float least_survival);

}  // namespace deepinfer
