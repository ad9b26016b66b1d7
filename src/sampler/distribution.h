// Distribution: what a row may give, as probabilities; and draws from it by named uniforms.
//
// Rejection and block verification (draft_rules.h) need p and q themselves, where plain sampling
// only needs an argmax.
#pragma once

#include <cstdint>
#include <vector>

#include "base/philox.h"

namespace deepinfer {

/// Ids ascending and unique, probabilities > 0 that sum to 1. Empty: nothing is allowed.
struct Distribution {
    std::vector<int32_t> ids;
    std::vector<double> p;

    bool empty() const { return ids.empty(); }
    /// Probability of `id`; 0 if it is not there.
    double at(int32_t id) const;
    /// The id whose share of [0, 1) holds u. Not empty.
    int32_t draw(double u) const;

    /// All mass on one id.
    static Distribution point(int32_t id);
};

/// max(scale · p − q, 0), normalised. Nothing left beyond rounding (q >= scale · p everywhere): p.
Distribution residual(const Distribution& p, double scale, const Distribution& q);
/// Σ max(scale · p − q, 0).
double residual_mass(const Distribution& p, double scale, const Distribution& q);

/// A uniform of (0, 1) with a name: equal names give equal numbers, different names independent
/// ones. `round`: how far behind its anchor a draft stands. A position whose drafts were dropped is
/// drafted again from a nearer anchor; drawing that with the old numbers would bias the output,
/// since what was dropped depended on them.
double named_uniform(
    uint64_t seed, uint32_t position, NoiseStream stream, uint32_t sub_sequence, uint32_t round);

}  // namespace deepinfer
