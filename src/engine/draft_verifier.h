// DraftVerifier: the target's logits of a chunk's rows → tokens. Row 0 always gives one; row j
// gives one if drafts 1 … j were accepted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_proposer.h"
#include "engine/slot_state.h"
#include "engine/spec_rule.h"
#include "engine/step_plan.h"
#include "ops/sampling/sample_rows.h"
#include "sampler/sampler.h"

namespace deepinfer {

class DraftVerifier {
  public:
    struct Job {
        SlotState* state = nullptr;     ///< takes the tokens
        const float* logits = nullptr;  ///< [1 + drafts, V]
        /// [1 + drafts] instead of logits: what the device chose, each row on its own. Coupled
        /// rule.
        std::span<const SampleChoice> choices{};
        const Proposal* drafts = nullptr;  ///< those that have rows
        const RowMask* mask = nullptr;     ///< null: unconstrained
        ChunkResult* out = nullptr;        ///< tokens, empty_mask, num_accepted and bonus are set
    };

    /// `sampler` outlives it. `eos`: a token behind which nothing is sampled.
    DraftVerifier(const Sampler& sampler, SpecRule rule, int32_t eos)
        : sampler_(sampler), rule_(rule), eos_(eos) {}

    /// Coupled, and every greedy row: sampled as without drafts; a draft is accepted iff it is the
    /// very token its row gives. So the tokens are those of decoding one by one, whoever drafted.
    /// The other rules keep the distribution (sampler/draft_rules.h). Different jobs may run on
    /// different threads.
    void run(const Job& job, SamplerWorkspace& workspace) const;

    /// Benchmarks: that many drafts of a round stand, whatever the target says (−1: off). The
    /// outputs are then nobody's. A fraction is spread over the rounds.
    void force_acceptance(double drafts) { forced_ = drafts; }
    /// True if nothing but each row's own choice decides: the choices may be made elsewhere.
    bool takes_choices(const Proposal& drafts) const { return forced_ < 0 && drafts.q.empty(); }

  private:
    SampleRow row(const Job& job, size_t j, int64_t ahead) const;
    void run_coupled(const Job& job, SamplerWorkspace& workspace) const;
    void run_rule(const Job& job, SamplerWorkspace& workspace) const;
    void run_forced(const Job& job, SamplerWorkspace& workspace) const;
    void emit(const Job& job, const SampleResult& r) const;

    const Sampler& sampler_;
    SpecRule rule_;
    int32_t eos_;
    double forced_ = -1;
};

}  // namespace deepinfer
