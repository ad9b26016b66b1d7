#include "engine/spec_planner.h"

#include <algorithm>
#include <cstdlib>

#include "engine/draft_budget.h"

namespace deepinfer {
namespace {

/// Without drafts nothing is learnt of them, so every this many steps all are verified once.
constexpr int64_t kExplore = 32;
/// Of blocks that are always short the later positions stay unknown, so every this many steps one
/// is drafted in full.
constexpr int64_t kExploreBlock = 128;
/// Confidences that nothing was compared with yet are not trusted: so many rounds verify all.
constexpr double kFirstRounds = 32;

}  // namespace

Result<SpecOptions> parse_spec_budget(const std::string& text) {
    SpecOptions o;
    if (text == "model") return o;
    if (text == "full") {
        o.budget = SpecBudget::kFull;
        return o;
    }
    const std::string prefix = "threshold:";
    if (text.rfind(prefix, 0) == 0) {
        const std::string number = text.substr(prefix.size());
        char* end = nullptr;
        const double x = std::strtod(number.c_str(), &end);
        if (!number.empty() && *end == 0 && x > 0 && x <= 1) {
            o.budget = SpecBudget::kThreshold;
            o.threshold = static_cast<float>(x);
            return o;
        }
    }
    return Status(
        StatusCode::kInvalidArgument,
        "spec_budget is '" + text + "', expected model, full or threshold:x with 0 < x <= 1");
}

SpecPlanner::SpecPlanner(const SpecOptions& options)
    : options_(options),
      calibration_(options.nextn),
      metrics_(options.nextn),
      usual_(static_cast<size_t>(options.nextn), 1) {}

SpecPlanner::Decision SpecPlanner::decide(uint64_t step,
                                          const std::vector<Decode>& decodes,
                                          int64_t other_rows,
                                          int64_t most,
                                          int64_t context) {
    Decision d;
    if (decodes.empty() || most <= 0 ||
        (options_.auto_off && !switch_.use_drafts(static_cast<int64_t>(decodes.size())))) {
        d.budget = 0;
        return d;
    }
    d.scales = calibration_.scales();
    if (!options_.varlen || options_.budget == SpecBudget::kFull) return d;
    if (options_.budget == SpecBudget::kThreshold) {
        d.least_survival = options_.threshold;
        return d;
    }
    if (!costs_.known() || calibration_.evidence() < kFirstRounds * 0.9) return d;
    choose(step, decodes, other_rows, most, context, &d);
    ++sums_.budget_steps;
    sums_.budget_drafts += d.budget;
    if (d.budget > 0) {
        without_ = 0;
    } else if (++without_ >= kExplore) {
        without_ = 0;
        d.budget = kAllDrafts;
        d.block = 0;
    }
    if (d.block == 0 || d.block == options_.nextn) {
        short_ = 0;
    } else if (d.budget > 0 && ++short_ >= kExploreBlock) {
        short_ = 0;
        d.block = 0;
    }
    return d;
}

/// Survivals of one sequence's drafts, [useful].
std::vector<float> SpecPlanner::expected(uint64_t step, const Decode& one) const {
    std::vector<float> known;
    if (static_cast<size_t>(one.slot) < history_.size()) {
        const History& h = history_[static_cast<size_t>(one.slot)];
        if (h.epoch == one.epoch) {
            const Seen& seen = h.newer.step + 2 <= step ? h.newer : h.older;
            known = survival(seen.confidence, calibration_.scales());
        }
    }
    const auto useful = static_cast<size_t>(std::max<int64_t>(0, one.useful));
    if (known.empty()) return std::vector<float>(useful, 1);
    while (known.size() < useful) {
        known.push_back(known.back() * static_cast<float>(usual_[known.size()]));
    }
    known.resize(useful);
    return known;
}

/// Every length of block with the best number of drafts for it.
void SpecPlanner::choose(uint64_t step,
                         const std::vector<Decode>& decodes,
                         int64_t other_rows,
                         int64_t most,
                         int64_t context,
                         Decision* d) {
    std::vector<std::vector<float>> all;
    size_t longest = 0;
    for (const Decode& one : decodes) {
        all.push_back(expected(step, one));
        longest = std::max(longest, all.back().size());
    }
    const auto r = static_cast<int64_t>(decodes.size());
    d->budget = 0;
    double best = 0;
    std::vector<double> survivals;
    for (size_t block = 1; block <= longest; ++block) {
        for (const std::vector<float>& one : all) {
            if (one.size() >= block) survivals.push_back(static_cast<double>(one[block - 1]));
        }
        const double drafting = costs_.draft_us(r * static_cast<int64_t>(block));
        const DraftBudget found =
            best_draft_budget(survivals, static_cast<double>(r), most, [&](int64_t m) {
                return costs_.verify_us(r + other_rows + m, context) + (m > 0 ? drafting : 0);
            });
        if (found.rate <= best) continue;
        best = found.rate;
        d->budget = found.drafts;
        d->block = static_cast<int32_t>(block);
    }
}

void SpecPlanner::observe(const StepPlan& plan, const StepResult& result) {
    bool decodes = false;
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
        const ChunkPlan& c = plan.chunks[i];
        decodes = decodes || c.decode;
        if (result.chunks[i].drafts.num_proposed > 0) learn(c, result.chunks[i], plan);
    }
    if (!decodes) return;
    ++(plan.has_drafts() ? sums_.steps_with : sums_.steps_without);
    sums_.draft_us += result.draft_us;
    calibration_.refit();
    measure(plan, result);
}

void SpecPlanner::learn(const ChunkPlan& c, const ChunkResult& r, const StepPlan& plan) {
    const DraftOutcome& o = r.drafts;
    metrics_.add(o, plan.draft_scales);
    // Behind a stop id nothing was decided.
    calibration_.add_round(o.confidence, o.bonus ? o.num_verified : o.num_accepted, o.num_accepted);
    for (size_t k = 0; k < o.confidence.size(); ++k) {
        const DraftScale scale = k < plan.draft_scales.size() ? plan.draft_scales[k] : DraftScale();
        const auto chance = static_cast<double>(scale.probability(o.confidence[k]));
        usual_[k] += 0.05 * (chance - usual_[k]);
    }
    const size_t slot = static_cast<size_t>(c.slot);
    if (history_.size() <= slot) history_.resize(slot + 1);
    History& h = history_[slot];
    if (h.epoch != c.epoch) h = {c.epoch, {}, {}};
    h.older = std::move(h.newer);
    h.newer = {plan.step, o.confidence};
}

/// Steps that only decode tell what rows cost and whether drafts pay.
void SpecPlanner::measure(const StepPlan& plan, const StepResult& result) {
    if (plan.num_prefill_rows > 0 || !plan.starts.empty() || plan.num_constrained > 0) return;
    int64_t rows = 0, tokens = 0, drafted = 0, context = 0;
    for (const ChunkResult& r : result.chunks) {
        rows += r.num_rows;
        tokens += static_cast<int64_t>(r.tokens.size());
        drafted += r.drafts.num_proposed > 0 ? 1 : 0;
        context = std::max<int64_t>(context, r.start_pos);
    }
    if (rows == 0) return;
    const auto decodes = static_cast<int64_t>(plan.chunks.size());
    switch_.observe(decodes, plan.has_drafts(), tokens, result.step_us);
    if (!costs_.known()) return;
    costs_.correct_verify(rows, context, static_cast<double>(result.step_us - result.draft_us));
    if (drafted == 0) return;
    const int64_t block = plan.draft_block > 0 ? plan.draft_block : options_.nextn;
    costs_.correct_draft(drafted * block, static_cast<double>(result.draft_us));
}

void SpecPlanner::fill(SpecStats* stats) const {
    *stats = sums_;
    metrics_.fill(stats);
    stats->switched_off = switch_.num_switched_off();
    for (const DraftScale& s : calibration_.scales()) {
        stats->temperature.push_back(s.temperature);
        stats->bias.push_back(s.bias);
    }
}

}  // namespace deepinfer
