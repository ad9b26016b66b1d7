// SlotState: what the executor keeps of a sequence between steps, to sample and to draft.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/step_plan.h"
#include "sampler/sampler.h"

namespace deepinfer {

struct SlotState {
    uint32_t epoch = 0;
    uint64_t request = 0;
    uint32_t index = 0;
    int64_t max_total = 0;
    std::vector<int32_t> tokens;  ///< all known ids: prompt and outputs
    TokenHistory history;
    std::optional<RowPlan> plan;
    std::shared_ptr<const SamplingParams> params;
    std::shared_ptr<const SequenceImages> images;  ///< null: none
    uint64_t seed = 0;
    bool stopped = false;  ///< its newest token ends it, by id

    void start(const SlotStart& s);
    /// Takes a sampled token. `eos` ends it unless the request ignores that.
    void append(int32_t token, int32_t eos);
    /// True for an id behind which nothing is sampled.
    bool stops_at(int32_t token, int32_t eos) const;
    /// Tokens that may still be sampled.
    int64_t room() const { return stopped ? 0 : max_total - static_cast<int64_t>(tokens.size()); }
    /// The row that samples the token behind all known ones, and behind `ahead` drafts that are in
    /// the history already.
    SampleRow sample_row(const float* logits, int64_t ahead) const;
};

}  // namespace deepinfer
