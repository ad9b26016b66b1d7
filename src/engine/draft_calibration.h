// DraftCalibration: from a confidence head's raw logits to probabilities that hold.
//
// Position k of a block has one scale: P(accepted | those before it were) = σ(logit / temperature +
// bias). Scales are fitted online from what verification decided; a position is a trial iff it was
// verified and all drafts before it were accepted. Counts fade, so a drafter or a kind of text that
// changes is followed.
//
// Method: sequential temperature scaling of DSpark's paper, in its online form (binned logits, a
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

    void add(int position, float logit, bool accepted);
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
    static constexpr int kBins = 16;
    struct Bin {
        double trials = 0, accepted = 0, logits = 0;  ///< logits: their sum
    };
    struct Position {
        Bin bins[kBins];
        double trials() const;
    };
    static DraftScale fit(const Position& p, const DraftScale& prior);

    std::vector<Position> positions_;
    std::vector<DraftScale> scales_;
    int64_t new_trials_ = 0;
};

}  // namespace deepinfer
