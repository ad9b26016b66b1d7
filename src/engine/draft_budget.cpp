#include "engine/draft_budget.h"

#include <algorithm>
#include <tuple>

namespace deepinfer {

DraftBudget best_draft_budget(std::vector<double> survivals,
                              double certain_tokens,
                              int64_t most,
                              const std::function<double(int64_t m)>& cost) {
    std::sort(survivals.begin(), survivals.end(), std::greater<>());
    most = std::min(most, static_cast<int64_t>(survivals.size()));
    double tokens = certain_tokens;
    DraftBudget best{0, tokens / cost(0)};
    for (int64_t m = 1; m <= most; ++m) {
        tokens += survivals[static_cast<size_t>(m - 1)];
        const double rate = tokens / cost(m);
        if (rate > best.rate) best = {m, rate};
    }
    return best;
}

std::vector<int32_t> allocate_drafts(const std::vector<std::vector<float>>& survivals,
                                     int64_t budget,
                                     float least_survival) {
    struct One {
        float survival;
        int32_t k, sequence;
    };
    std::vector<One> all;
    for (size_t r = 0; r < survivals.size(); ++r) {
        for (size_t k = 0; k < survivals[r].size(); ++k) {
            if (survivals[r][k] < least_survival) break;
            all.push_back({survivals[r][k], static_cast<int32_t>(k), static_cast<int32_t>(r)});
        }
    }
    if (budget >= 0 && budget < static_cast<int64_t>(all.size())) {
        std::sort(all.begin(), all.end(), [](const One& a, const One& b) {
            return std::tie(b.survival, a.k, a.sequence) < std::tie(a.survival, b.k, b.sequence);
        });
        all.resize(static_cast<size_t>(budget));
    }
    std::vector<int32_t> count(survivals.size(), 0);
    for (const One& one : all) ++count[static_cast<size_t>(one.sequence)];
    return count;
}

}  // namespace deepinfer
