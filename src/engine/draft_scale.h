// DraftScale: one position's calibration (draft_calibration.h fits them).
#pragma once

namespace deepinfer {

/// P(accepted | the drafts before it were) = σ(logit / temperature + bias).
struct DraftScale {
    float temperature = 1;
    float bias = 0;

    float probability(float logit) const;
    bool operator==(const DraftScale&) const = default;
};

}  // namespace deepinfer
