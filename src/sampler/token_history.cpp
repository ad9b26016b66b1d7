#include "sampler/token_history.h"

#include "base/check.h"

namespace deepinfer {

TokenHistory::Entry& TokenHistory::entry(int32_t token) {
    const auto [it, added] = index_.try_emplace(token, entries_.size());
    if (added) entries_.push_back({token, 0, false});
    return entries_[it->second];
}

void TokenHistory::set_prompt(std::span<const int32_t> prompt) {
    DI_CHECK(output_.empty());
    entries_.clear();
    index_.clear();
    for (const int32_t token : prompt) {
        if (token >= 0) entry(token).in_prompt = true;
    }
}

void TokenHistory::append(int32_t token) {
    DI_CHECK_GE(token, 0);
    output_.push_back(token);
    ++entry(token).output_count;
}

void TokenHistory::truncate(size_t num_output_tokens) {
    DI_CHECK_LE(num_output_tokens, output_.size());
    while (output_.size() > num_output_tokens) {
        --entry(output_.back()).output_count;
        output_.pop_back();
    }
}

}  // namespace deepinfer
