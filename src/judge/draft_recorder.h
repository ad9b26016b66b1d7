// DraftRecorder: drafts after every decode step, collected into the draft.* tensors of a dump.
#pragma once

#include <vector>

#include "judge/sequence.h"
#include "judge/tensor_file.h"

namespace deepinfer {

class DraftRecorder {
  public:
    /// `logit_steps`: steps whose draft logits are kept, ascending. `forced` (may be null):
    /// draft.tokens [num_steps, 1 + block] of another run, taken as predecessors inside a block
    /// while the own choices are what is stored.
    DraftRecorder(LoneSequence& sequence,
                  int64_t num_steps,
                  std::vector<int32_t> logit_steps,
                  const NamedTensor* forced);

    /// Drafts after step i (the sequence holds its token); the anchor is the token of the next one.
    void step(int64_t i, int32_t anchor);
    /// Adds draft.tokens, draft.confidence, draft.logits and draft.logit_steps.
    void finish(TensorMap& out) const;

  private:
    LoneSequence& sequence_;
    int64_t num_steps_, block_;
    std::vector<int32_t> logit_steps_;
    const NamedTensor* forced_;
    std::vector<int32_t> tokens_;
    std::vector<float> confidence_, logits_;
};

}  // namespace deepinfer
