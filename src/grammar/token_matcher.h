// TokenMatcher: a compiled constraint as the engine uses it, one per sub-sequence.
//
// Where reasoning comes first, "free text up to </think>, then the grammar" is one automaton over
// committed tokens: the marker's token is what moves it on, and rollback moves it back. In free
// text every defined token is allowed but two: the end token, and the one of tool calls, because
// the output parser takes calls that begin in reasoning, and no form would hold for those.
//
// Where the calling thread works for a WorkBudget and that is spent, the matcher is dead: it allows
// nothing any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "grammar/xgrammar_engine.h"
#include "sampler/token_constraint.h"

namespace deepinfer::grammar {

class TokenMatcher final : public TokenConstraint {
  public:
    /// after_reasoning: the grammar begins behind the token of </think> (which the vocabulary must
    /// have).
    TokenMatcher(std::shared_ptr<const CompiledGrammar> grammar, bool after_reasoning);
    ~TokenMatcher() override;

    std::vector<uint32_t> mask() override;
    bool accept(int32_t token) override;
    void commit(int32_t token) override { pending_.push_back(token); }
    void rollback(int count) override;
    bool complete() override;

  private:
    bool take(int32_t token);
    /// Accepts what was committed. First of all in every call.
    void settle();
    bool in_grammar() const { return begin_.has_value(); }

    std::shared_ptr<const CompiledGrammar> grammar_;
    Matcher matcher_;
    int64_t num_tokens_ = 0;
    std::vector<int32_t> pending_;  ///< committed, not yet accepted
    bool dead_ = false;
    std::optional<int64_t> begin_;  ///< tokens before the grammar's first; unset in free text
};

/// What all matchers of this process did so far.
struct MaskCounters {
    int64_t masks = 0, mask_us = 0;
    int64_t refused = 0;  ///< tokens that accept() did not take: drafts wrong by form
};
MaskCounters mask_counters();

/// Whether a prompt leaves reasoning open: of the tokens <think> and </think> the last is <think>.
bool reasoning_is_open(const std::vector<int32_t>& prompt, const Vocabulary& vocabulary);

}  // namespace deepinfer::grammar
