#include "engine/draft_verifier.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/check.h"
#include "sampler/draft_rules.h"

namespace deepinfer {
namespace {

SampleResult from_choice(const SampleChoice& c) {
    SampleResult r;
    r.token = c.token;
    r.empty_mask = c.token < 0;
    r.nan_count = c.nan_count;
    return r;
}

}  // namespace

/// Row j of the job, with j drafts of it in the history and `ahead` of those not yet in the tokens.
SampleRow DraftVerifier::row(const Job& job, size_t j, int64_t ahead) const {
    SampleRow row =
        job.state->sample_row(job.logits + static_cast<int64_t>(j) * sampler_.vocab(), ahead);
    if (job.mask != nullptr) {
        // A draft that the form refuses never stands, so no row behind it is reached.
        DI_CHECK_LT(j, job.mask->rows.size());
        const std::vector<uint32_t>& words = job.mask->rows[j];
        DI_CHECK_EQ(static_cast<int64_t>(words.size()), (sampler_.vocab() + 31) / 32);
        row.grammar_mask = reinterpret_cast<const int32_t*>(words.data());
    }
    return row;
}

void DraftVerifier::emit(const Job& job, const SampleResult& r) const {
    SampledToken t;
    t.id = r.token;
    t.nan_logits = r.nan_count > 0;
    t.logprobs.token_id = r.token;
    t.logprobs.logprob = r.logprob;
    for (const TokenLogprob& top : r.top_logprobs) {
        t.logprobs.top.emplace_back(top.token, top.logprob);
    }
    job.out->tokens.push_back(std::move(t));
    job.state->append(r.token, eos_);
}

void DraftVerifier::run(const Job& job, SamplerWorkspace& workspace) const {
    if (forced_ >= 0 && job.mask == nullptr && !job.drafts->tokens.empty()) {
        run_forced(job, workspace);
    } else if (job.drafts->q.empty()) {
        run_coupled(job, workspace);
    } else {
        run_rule(job, workspace);
    }
}

void DraftVerifier::run_coupled(const Job& job, SamplerWorkspace& workspace) const {
    const std::vector<int32_t>& drafts = job.drafts->tokens;
    for (size_t j = 0; j <= drafts.size(); ++j) {
        const SampleResult r = job.choices.empty() ? sampler_.sample(row(job, j, 0), workspace)
                                                   : from_choice(job.choices[j]);
        if (r.empty_mask) {
            job.out->empty_mask = true;
            job.state->stopped = true;
            return;
        }
        emit(job, r);
        if (j == drafts.size() || r.token != drafts[j]) {
            job.out->drafts.bonus = true;
            return;
        }
        ++job.out->drafts.num_accepted;
        if (job.state->stopped) return;
    }
}

void DraftVerifier::run_rule(const Job& job, SamplerWorkspace& workspace) const {
    SlotState& state = *job.state;
    const std::vector<int32_t>& drafts = job.drafts->tokens;
    const size_t before = state.history.output().size();
    std::deque<Distribution> p;  // references stay
    std::vector<int32_t> nan_counts;
    const auto uniform = [&](int64_t ahead, NoiseStream stream, uint32_t round) {
        const int64_t position = static_cast<int64_t>(state.tokens.size()) + ahead;
        return named_uniform(
            state.seed, static_cast<uint32_t>(position), stream, state.index, round);
    };
    DraftRound round;
    round.drafts = drafts;
    round.q = job.drafts->q;
    round.p = [&](int k) -> const Distribution& {
        const size_t j = static_cast<size_t>(k);
        if (k > 0) state.history.append(drafts[j - 1]);
        nan_counts.push_back(0);
        p.push_back(sampler_.distribution(row(job, j, k), workspace, &nan_counts.back()));
        return p.back();
    };
    round.u = [&](int k) {
        return uniform(k, NoiseStream::kAcceptance, static_cast<uint32_t>(k) + 1);
    };
    round.u_next = uniform(0, NoiseStream::kOther, 0);
    const DraftVerdict verdict =
        rule_ == SpecRule::kBlock ? verify_by_block(round) : verify_by_rejection(round);
    state.history.truncate(before);

    for (int k = 0; k <= verdict.num_accepted; ++k) {
        const size_t j = static_cast<size_t>(k);
        const bool own = k == verdict.num_accepted;
        if (own && verdict.next < 0) {
            job.out->empty_mask = true;
            state.stopped = true;
            return;
        }
        SampleResult r;
        r.token = own ? verdict.next : drafts[j];
        if (state.plan->has_logprobs) r = sampler_.describe(row(job, j, 0), r.token, workspace);
        r.nan_count = nan_counts[j];
        emit(job, r);
        job.out->drafts.bonus = own;
        if (!own) ++job.out->drafts.num_accepted;
        if (state.stopped) return;
    }
}

void DraftVerifier::run_forced(const Job& job, SamplerWorkspace& workspace) const {
    const std::vector<int32_t>& drafts = job.drafts->tokens;
    // Which rounds take the one more: by position, so that a run repeats.
    const double at = static_cast<double>(job.state->tokens.size()) * 0.6180339887498949;
    const double more = forced_ - std::floor(forced_);
    const auto wanted = static_cast<size_t>(forced_) + (at - std::floor(at) < more ? 1 : 0);
    const size_t count = std::min(wanted, drafts.size());
    for (size_t j = 0; j <= count; ++j) {
        SampleResult r = sampler_.sample(row(job, j, 0), workspace);
        if (j < count || r.token < 0) r.token = j < count ? drafts[j] : 0;
        emit(job, r);
        job.out->drafts.bonus = j == count;
        if (j < count) ++job.out->drafts.num_accepted;
        if (job.state->stopped) return;
    }
}

}  // namespace deepinfer
