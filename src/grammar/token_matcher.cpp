#include "grammar/token_matcher.h"

#include <atomic>
#include <chrono>

#include "base/check.h"
#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

std::atomic<int64_t> num_masks{0}, mask_ns{0}, num_refused{0};

}  // namespace

MaskCounters mask_counters() {
    constexpr int64_t kNsPerUs = 1000;
    return {num_masks.load(), mask_ns.load() / kNsPerUs, num_refused.load()};
}

TokenMatcher::TokenMatcher(std::shared_ptr<const CompiledGrammar> grammar, bool after_reasoning)
    : grammar_(std::move(grammar)), matcher_(grammar_) {
    if (after_reasoning) {
        DI_CHECK_GE(grammar_->vocabulary().marker_id(kMarkerEndThinking), 0);
    } else {
        begin_ = 0;
    }
}

TokenMatcher::~TokenMatcher() = default;

void TokenMatcher::settle() {
    if (pending_.empty()) return;
    for (const int32_t token : pending_) DI_CHECK(take(token) || dead_);
    pending_.clear();
}

std::vector<uint32_t> TokenMatcher::mask() {
    settle();
    const Vocabulary& v = grammar_->vocabulary();
    if (dead_) return std::vector<uint32_t>(v.defined_mask().size(), 0);
    if (!in_grammar()) {
        std::vector<uint32_t> free = v.defined_mask();
        for (const int32_t id : {v.eos(), v.marker_id(kMarkerTool)}) {
            if (id >= 0) free[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
        }
        return free;
    }
    const auto before = std::chrono::steady_clock::now();
    std::vector<uint32_t> words(v.defined_mask().size());
    try {
        matcher_.fill(words);
    } catch (const WorkBudgetExceeded&) {
        dead_ = true;
        words.assign(words.size(), 0);
    }
    const auto spent = std::chrono::steady_clock::now() - before;
    ++num_masks;
    mask_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
    return words;
}

bool TokenMatcher::accept(int32_t token) {
    settle();
    return take(token);
}

bool TokenMatcher::take(int32_t token) {
    const Vocabulary& v = grammar_->vocabulary();
    if (dead_) return false;
    if (in_grammar()) {
        try {
            if (!matcher_.accept(token)) {
                ++num_refused;
                return false;
            }
        } catch (const WorkBudgetExceeded&) {
            dead_ = true;
            return false;
        }
    } else {
        if (!v.defined(token) || token == v.eos() || token == v.marker_id(kMarkerTool))
            return false;
        if (token == v.marker_id(kMarkerEndThinking)) begin_ = num_tokens_ + 1;
    }
    ++num_tokens_;
    return true;
}

void TokenMatcher::rollback(int count) {
    settle();
    if (dead_) return;
    DI_CHECK(count >= 0 && count <= num_tokens_);
    const int64_t left = num_tokens_ - count;
    if (in_grammar()) {
        const int64_t inside = std::min<int64_t>(count, num_tokens_ - *begin_);
        if (inside > 0) matcher_.rollback(static_cast<int>(inside));
        if (left < *begin_) begin_.reset();
    }
    num_tokens_ = left;
}

bool TokenMatcher::complete() {
    settle();
    return !dead_ && in_grammar() && matcher_.complete();
}

bool reasoning_is_open(const std::vector<int32_t>& prompt, const Vocabulary& v) {
    const int32_t open = v.marker_id(kMarkerThinking), close = v.marker_id(kMarkerEndThinking);
    if (open < 0 || close < 0) return false;
    for (size_t i = prompt.size(); i-- > 0;) {
        if (prompt[i] == open) return true;
        if (prompt[i] == close) return false;
    }
    return false;
}

}  // namespace deepinfer::grammar
