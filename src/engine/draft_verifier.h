// DraftVerifier: the target's logits of a chunk's rows → tokens. Row 0 always gives one; row j
// gives one if drafts 1 … j were accepted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/slot_state.h"
#include "engine/step_plan.h"
#include "sampler/sampler.h"

namespace deepinfer {

class DraftVerifier {
  public:
    struct Job {
        SlotState* state = nullptr;     ///< takes the tokens
        const float* logits = nullptr;  ///< [1 + drafts, V]
        std::span<const int32_t> drafts;
        const RowMask* mask = nullptr;  ///< null: unconstrained
        ChunkResult* out = nullptr;     ///< tokens, empty_mask, num_accepted and bonus are set
    };

    /// `sampler` outlives it. `eos`: a token behind which nothing is sampled.
    DraftVerifier(const Sampler& sampler, int32_t eos) : sampler_(sampler), eos_(eos) {}

    /// Coupled: every row is sampled as without drafts; a draft is accepted iff it is the very
    /// token its row gives. So the tokens are those of decoding one by one, whoever drafted.
    /// Different jobs may run on different threads.
    void run(const Job& job, SamplerWorkspace& workspace) const;

  private:
    const Sampler& sampler_;
    int32_t eos_;
};

}  // namespace deepinfer
