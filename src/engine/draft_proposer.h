// DraftProposer: the drafts of many sequences at once, with each sequence's own sampling
// parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/host_logits.h"
#include "engine/slot_state.h"
#include "engine/spec_rule.h"
#include "model/deepseek_v41.h"
#include "sampler/sampler.h"

namespace deepinfer {

/// Tokens proposed behind a sequence's newest one.
struct Proposal {
    std::vector<int32_t> tokens;
    std::vector<float> confidence;  ///< raw logits, one per token
    /// What each token was drawn from; empty where verification does not ask (coupled, greedy).
    std::vector<Distribution> q;

    /// Keeps the first `count`.
    void keep(size_t count);
};

/// Tests and benchmarks: looks at a sequence and may change what is proposed for it. The number of
/// tokens may shrink, never grow.
using DraftOverride = std::function<void(const SlotState&, Proposal*)>;

class DraftProposer {
  public:
    struct Job {
        int32_t slot = 0;  ///< of the cache
        SlotState* state = nullptr;
        int32_t window_floor = 0;
        int64_t most = 0;  ///< tokens wanted at most
    };

    /// All outlive it. `eos`: nothing is proposed behind it.
    DraftProposer(DeepseekV41& model,
                  const CacheView& cache,
                  const Sampler& sampler,
                  SpecRule rule,
                  int32_t eos);

    /// One proposal per job, of `block` tokens at most: 1 … dspark_block_size. A sequence's drafts
    /// never depend on the others. Masks by id, bias, penalties, temperature and truncation are
    /// those of the request.
    ///   coupled, greedy   drawn with the noise that the target will draw with at that position, so
    ///                     that both choose alike where their logits do
    ///   rejection, block  drawn from q with noise of its own
    ///   argmax            the likeliest token
    std::vector<Proposal> propose(const std::vector<Job>& jobs, int block);

    void set_override(DraftOverride f) { override_ = std::move(f); }

  private:
    void choose(int k,
                const Tensor& logits,
                Tensor tokens,
                const std::vector<Job>& jobs,
                std::vector<Proposal>* out);
    int32_t choose_one(int k,
                       const SlotState& state,
                       const float* logits,
                       SamplerWorkspace& workspace,
                       Proposal* out) const;
    void replace(const SlotState& state, Proposal* p) const;

    DeepseekV41& model_;
    const CacheView& cache_;
    const Sampler& sampler_;
    SpecRule rule_;
    int32_t eos_;
    DraftOverride override_;
    HostLogits logits_;
    std::vector<int32_t> chosen_;
};

}  // namespace deepinfer
