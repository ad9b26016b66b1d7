// Drafters for tests: they know what the model will say (from a run without drafts), or do not
// care.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/draft_proposer.h"
#include "properties/engine_lab.h"

namespace deepinfer::testing {

/// Whole sequences (prompt and output) by (request, sub-sequence), as a run without drafts gave
/// them.
class Oracle {
  public:
    /// Requests as submitted to a fresh EngineLab in this order, and their completions.
    Oracle(const std::vector<Request>& requests, const std::vector<Completion>& completions);
    /// The token at `position`, or −1 behind the end.
    int32_t token(const SlotState& s, size_t position) const;

  private:
    std::map<std::pair<uint64_t, uint32_t>, std::vector<int32_t>> sequences_;
};

/// Right for count(state) drafts, then wrong. A negative count leaves the model's own drafts.
DraftOverride right_then_wrong(std::shared_ptr<const Oracle> oracle,
                               std::function<int(const SlotState&)> count,
                               int64_t vocab);
/// Random ids, from the position and the request alone.
DraftOverride random_drafts(int64_t vocab);

}  // namespace deepinfer::testing
