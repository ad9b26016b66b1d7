// SpecPlanner: how many drafts the next step verifies. Belongs to the scheduler's thread.
//
// Knows confidences, costs and outcomes of finished steps only; which drafts of a step get the rows
// is settled by the executor, which knows the step's own confidences (draft_budget.h).
//
//   off-switch   spec_switch.h: no drafts where they measurably do not pay
//   varlen       the number with the most expected tokens per time, from confidences at least two
//                steps old (so that plain and asynchronous loop decide alike, and no draft's
//                admission hangs on what was drawn behind it); new sequences count as certain.
//                With it the length of the drafted blocks: drafting costs time too, and where a
//                row is dear a draft or two per sequence are all that pays
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "engine/draft_calibration.h"
#include "engine/draft_metrics.h"
#include "engine/spec_switch.h"
#include "engine/step_costs.h"
#include "engine/step_plan.h"

namespace deepinfer {

enum class SpecBudget { kModel, kFull, kThreshold };

struct SpecOptions {
    int nextn = 0;
    bool varlen = false;  ///< false: like kFull
    SpecBudget budget = SpecBudget::kModel;
    float threshold = 0;   ///< kThreshold: least survival
    bool auto_off = true;  ///< the off-switch
};

/// budget and threshold from "model", "full" or "threshold:x" with 0 < x <= 1. kInvalidArgument.
Result<SpecOptions> parse_spec_budget(const std::string& text);

class SpecPlanner {
  public:
    explicit SpecPlanner(const SpecOptions& options);

    /// One sequence that will decode.
    struct Decode {
        int32_t slot = 0;
        uint32_t epoch = 0;
        int64_t useful = 0;  ///< drafts it could use at most
    };
    struct Decision {
        int64_t budget = kAllDrafts;  ///< 0: no drafts in this step
        int32_t block = 0;            ///< tokens to draft per sequence; 0 = nextn
        float least_survival = 0;
        std::vector<DraftScale> scales;
    };
    /// For the step with this number. `other_rows`: rows beside the decodes'; `most`: drafts that
    /// there is room for; `context`: the longest sequence.
    Decision decide(uint64_t step,
                    const std::vector<Decode>& decodes,
                    int64_t other_rows,
                    int64_t most,
                    int64_t context);
    /// Whether the rows of a step with this many sequences are to go into the drafts' windows.
    /// Where no drafts are used they need not: that costs a twentieth of a small model's step.
    bool keeps_windows(int64_t sequences) const {
        return !options_.auto_off || switch_.wanted_soon(sequences);
    }
    /// Learns from a finished step.
    void observe(const StepPlan& plan, const StepResult& result);

    DraftCalibration& calibration() { return calibration_; }
    StepCosts& costs() { return costs_; }
    void fill(SpecStats* stats) const;

  private:
    struct Seen {
        uint64_t step = 0;
        std::vector<float> confidence;  ///< raw
    };
    /// The latest two rounds of a slot's sequence.
    struct History {
        uint32_t epoch = 0;
        Seen newer, older;
    };
    /// `needed`: some drafts are to be verified, whatever the costs say.
    void choose(uint64_t step,
                const std::vector<Decode>& decodes,
                int64_t other_rows,
                int64_t most,
                int64_t context,
                bool needed,
                Decision* decision);
    void after_choice(uint64_t step, int64_t decodes, Decision* decision);
    std::vector<float> expected(uint64_t step, const Decode& one) const;
    void learn(const ChunkPlan& chunk, const ChunkResult& result, const StepPlan& plan);
    /// A finished step, counted.
    struct Step {
        int64_t all_rows = 0, context = 0;
        int64_t decodes = 0, rows = 0, tokens = 0, drafted = 0;  ///< of the sequences that decode
    };
    void measure(const StepPlan& plan, const StepResult& result);
    void correct_costs(const StepPlan& plan, const StepResult& result, const Step& step);

    SpecOptions options_;
    DraftCalibration calibration_;
    StepCosts costs_;
    RowLine line_;
    /// Time of the latest steps ÷ what the costs said, by batch size; without and with drafts. Rows
    /// of as many sequences cost more than as many rows of few.
    struct Off {
        double by = 1;
        int64_t steps = 0;
        void add(double measured);
    };
    std::array<Off, 2> off_[SpecSwitch::kBuckets];
    SpecSwitch switch_;
    std::deque<uint64_t> chose_none_;  ///< steps in flight that the costs left without drafts
    DraftMetrics metrics_;
    std::vector<History> history_;  ///< by slot
    /// [nextn] Chance that draft k is accepted when those before it are, as the confidences of late
    /// had it: what is supposed of positions that were not drafted.
    std::vector<double> usual_;
    SpecStats sums_;
    int64_t without_ = 0;  ///< steps in a row that the cost model left without drafts
    int64_t short_ = 0;    ///< … or with blocks shorter than nextn
};

}  // namespace deepinfer
