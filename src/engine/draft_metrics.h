// DraftMetrics: counts what became of drafts, for SpecStats.
#pragma once

#include <vector>

#include "deepinfer/engine.h"
#include "engine/draft_scale.h"
#include "engine/step_plan.h"

namespace deepinfer {

class DraftMetrics {
  public:
    explicit DraftMetrics(int nextn);

    /// One round, with the scales that its step was planned with.
    void add(const DraftOutcome& outcome, const std::vector<DraftScale>& scales);
    /// Fills everything that rounds tell.
    void fill(SpecStats* stats) const;

  private:
    static constexpr int kEceBins = 20, kRocBins = 1000;
    /// Estimates of one position against what happened.
    struct Reliability {
        std::vector<double> n, estimate, event;  ///< [kEceBins]
        std::vector<int64_t> hit, miss;          ///< [kRocBins]
        double squared = 0;
        int64_t count = 0;
        Reliability();
        void add(double estimated, bool happened);
        double ece() const;
        double auroc() const;
        double brier() const { return count > 0 ? squared / static_cast<double>(count) : 0; }
    };
    SpecStats sums_;
    std::vector<Reliability> raw_, calibrated_;
};

}  // namespace deepinfer
