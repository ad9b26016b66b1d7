#include "engine/draft_verifier.h"

#include "base/check.h"

namespace deepinfer {
namespace {

void add_token(const SampleResult& r, ChunkResult* out) {
    SampledToken t;
    t.id = r.token;
    t.nan_logits = r.nan_count > 0;
    t.logprobs.token_id = r.token;
    t.logprobs.logprob = r.logprob;
    for (const TokenLogprob& top : r.top_logprobs) {
        t.logprobs.top.emplace_back(top.token, top.logprob);
    }
    out->tokens.push_back(std::move(t));
}

}  // namespace

void DraftVerifier::run(const Job& job, SamplerWorkspace& workspace) const {
    SlotState& state = *job.state;
    for (size_t j = 0; j <= job.drafts.size(); ++j) {
        SampleRow row =
            state.sample_row(job.logits + static_cast<int64_t>(j) * sampler_.vocab(), 0);
        if (job.mask != nullptr) {
            // A draft that the form refuses is never chosen, so no row behind it is reached.
            DI_CHECK_LT(j, job.mask->rows.size());
            const std::vector<uint32_t>& words = job.mask->rows[j];
            DI_CHECK_EQ(static_cast<int64_t>(words.size()), (sampler_.vocab() + 31) / 32);
            row.grammar_mask = reinterpret_cast<const int32_t*>(words.data());
        }
        const SampleResult r = sampler_.sample(row, workspace);
        if (r.empty_mask) {
            job.out->empty_mask = true;
            state.stopped = true;
            return;
        }
        add_token(r, job.out);
        state.append(r.token, eos_);
        if (j == job.drafts.size() || r.token != job.drafts[j]) {
            job.out->drafts.bonus = true;
            return;
        }
        ++job.out->drafts.num_accepted;
        if (state.stopped) return;
    }
}

}  // namespace deepinfer
