// Draft rules: which drafts of a round stand, so that what comes out has the target's distribution.
//
// `q[k]` is the distribution that draft k was drawn from, exactly as it was drawn; `p(k)` that of
// the target behind drafts 0 … k − 1, with everything applied (masks, penalties, temperature,
// truncation). A draft of a point mass (an argmax) is drawn from Distribution::point. Uniforms are
// independent of those that drew the drafts. Greedy and coupled verification need no rule: they
// compare ids (engine/draft_verifier.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sampler/distribution.h"

namespace deepinfer {

struct DraftRound {
    std::span<const int32_t> drafts;
    std::span<const Distribution> q;  ///< [drafts]
    /// Called with k = 0, 1, … in order, at most once each, and only while p(j)(draft j) > 0 for
    /// all j < k. The reference is valid until the end of the round.
    std::function<const Distribution&(int k)> p;
    std::function<double(int k)> u;  ///< uniform of draft k's test
    double u_next = 0;               ///< uniform of the token behind the accepted drafts
};

struct DraftVerdict {
    int num_accepted = 0;
    /// The token behind them, of the residual or, if all stand, of p behind them; −1 if nothing is
    /// allowed there.
    int32_t next = -1;
};

/// Draft by draft with probability min(1, p/q); the first refusal is replaced from max(p − q, 0)
/// (Leviathan et al. 2023; Chen et al. 2023).
DraftVerdict verify_by_rejection(const DraftRound& round);

/// The round as a whole (Sun et al. 2024): accepts at least as many drafts in expectation.
DraftVerdict verify_by_block(const DraftRound& round);

}  // namespace deepinfer
