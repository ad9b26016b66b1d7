// DraftCalibration: from a confidence head's raw logits to probabilities that hold.
//
// Position k of a block has one scale, and P(drafts 0 … k all stand) is the product over them of
// σ(logit / temperature + bias). Scales are fitted online, from the first position to the last, so
// that this product holds: schedules go by it, and what a later confidence says of a block whose
// beginning was wrong is part of it. Every verified draft is a trial, with the chance that its
// predecessors had as weight. Counts fade, so a drafter or a kind of text that changes is followed.
//
// Method: sequential temperature scaling of DSpark's paper, in an online form (binned logits, a
// grid of temperatures, shrinkage to a pooled fit); the bias is ours: a drafter that is always
// wrong at confident logits cannot be described by a temperature.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/status.h"
#include "engine/draft_scale.h"

namespace deepinfer {

/// Products of calibrated probabilities: [k] = chance that drafts 0 … k are all accepted.
std::vector<float> survival(const std::vector<float>& logits,
                            const std::vector<DraftScale>& scales);

class DraftCalibration {
  public:
    explicit DraftCalibration(int num_positions);

    /// `stood`: the draft and all before it were accepted; `before`: what the calibrated chance of
    /// those before it was.
    void add(int position, float logit, bool stood, double before = 1);
    /// A round: raw logits of its drafts, of which `verified` were verified and `accepted` stand.
    void add_round(const std::vector<float>& logits, int verified, int accepted);
    /// Fits from the counts when enough trials came since the last time. True if scales changed.
    bool refit(bool now = false);
    const std::vector<DraftScale>& scales() const { return scales_; }
    /// Rounds it has seen lately (old ones fade).
    double evidence() const { return positions_.empty() ? 0 : positions_[0].trials(); }

    /// Counts and scales with the name of the model they belong to, as one JSON document.
    std::string to_json(const std::string& model_id) const;
    /// kInvalidFile: not this format, another model (both names are said) or another block size.
    Status from_json(const std::string& text, const std::string& model_id);
    /// Reads `path` if it exists; writes it as a whole (to a neighbour, then renamed).
    Status load(const std::string& path, const std::string& model_id);
    Status save(const std::string& path, const std::string& model_id) const;

  private:
    static constexpr int kBins = 32;
    struct Bin {
        double trials = 0, accepted = 0, logits = 0;  ///< weights, outcomes, Σ weight · logit
    };
    struct Position {
        Bin bins[kBins];
        double trials() const;
    };
    static double mean_bias(const Position& p, double temperature);
    static DraftScale fit(const Position& p, const DraftScale& prior);

    std::vector<Position> positions_;
    std::vector<DraftScale> scales_;
    int64_t new_trials_ = 0;
};

}  // namespace deepinfer
