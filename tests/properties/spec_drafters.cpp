#include "properties/spec_drafters.h"

namespace deepinfer::testing {

Oracle::Oracle(const std::vector<Request>& requests, const std::vector<Completion>& completions) {
    for (size_t i = 0; i < requests.size(); ++i) {
        for (size_t n = 0; n < completions[i].choices.size(); ++n) {
            std::vector<int32_t> all = requests[i].prompt_token_ids;
            const std::vector<int32_t>& out = completions[i].choices[n].token_ids;
            all.insert(all.end(), out.begin(), out.end());
            sequences_[{i + 1, static_cast<uint32_t>(n)}] = std::move(all);
        }
    }
}

int32_t Oracle::token(const SlotState& s, size_t position) const {
    const auto it = sequences_.find({s.request, s.index});
    if (it == sequences_.end() || position >= it->second.size()) return -1;
    return it->second[position];
}

DraftOverride right_then_wrong(std::shared_ptr<const Oracle> oracle,
                               std::function<int(const SlotState&)> count,
                               int64_t vocab) {
    return [oracle = std::move(oracle), count = std::move(count), vocab](const SlotState& s,
                                                                         Proposal* p) {
        const int right = count(s);
        if (right < 0) return;
        for (size_t k = 0; k < p->tokens.size(); ++k) {
            const int32_t known = oracle->token(s, s.tokens.size() + k);
            const int32_t base = known < 0 ? 20 : known;
            p->tokens[k] =
                static_cast<int>(k) < right ? base : static_cast<int32_t>((base + 1) % vocab);
        }
    };
}

DraftOverride random_drafts(int64_t vocab) {
    return [vocab](const SlotState& s, Proposal* p) {
        uint64_t h = s.request * 0x9E3779B97F4A7C15ull + s.tokens.size();
        for (int32_t& t : p->tokens) {
            h = (h ^ (h >> 31)) * 0x94D049BB133111EBull;
            t = static_cast<int32_t>((h >> 20) % static_cast<uint64_t>(vocab));
        }
    };
}

}  // namespace deepinfer::testing
