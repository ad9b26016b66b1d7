#include "engine/spec_planner.h"

#include <algorithm>
#include <cstdlib>

#include "engine/draft_budget.h"

namespace deepinfer {
namespace {

/// Without drafts nothing is learnt of them. After so many steps that the costs left without, the
/// off-switch decides when they are tried; where it may not, all are verified once.
constexpr int64_t kExplore = 32;
/// Of blocks that are always short the later positions stay unknown, so every this many steps one
/// is drafted in full.
constexpr int64_t kExploreBlock = 128;
/// Confidences that nothing was compared with yet are not trusted: so many rounds verify all.
constexpr double kFirstRounds = 32;
/// What drafts are thought to give where the costs speak against them.
constexpr double kGuess = 0.9;
/// Of a step's verification, what decodes must take at least beside prompts to be measured.
constexpr double kLeastShare = 0.3;

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
    const auto count = static_cast<int64_t>(decodes.size());
    if (decodes.empty() || most <= 0 || (options_.auto_off && !switch_.use_drafts(count))) {
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
    const bool needed = options_.auto_off && switch_.testing(count);
    choose(step, decodes, other_rows, most, context, needed, &d);
    ++sums_.budget_steps;
    sums_.budget_drafts += d.budget;
    after_choice(step, count, &d);
    return d;
}

/// What is tried beside what the costs say.
void SpecPlanner::after_choice(uint64_t step, int64_t decodes, Decision* decision) {
    Decision& d = *decision;
    if (d.budget > 0) {
        without_ = 0;
    } else if (++without_ < kExplore) {
        chose_none_.push_back(step);
    } else if (options_.auto_off) {
        without_ = 0;
        chose_none_.push_back(step);
        switch_.turn_off(decodes, kGuess);
    } else {
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
    // A new sequence is thought to be like the others.
    while (known.size() < useful) {
        known.push_back((known.empty() ? 1 : known.back()) *
                        static_cast<float>(usual_[known.size()]));
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
                         bool needed,
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
    const std::array<Off, 2>& off = off_[SpecSwitch::index(r)];
    const double plain = needed ? 1e30 : costs_.verify_us(r + other_rows, context) * off[0].by;
    for (size_t block = 1; block <= longest; ++block) {
        for (const std::vector<float>& one : all) {
            if (one.size() >= block) survivals.push_back(static_cast<double>(one[block - 1]));
        }
        const double drafting = costs_.draft_us(r * static_cast<int64_t>(block));
        const DraftBudget found =
            best_draft_budget(survivals, static_cast<double>(r), most, [&](int64_t m) {
                if (m == 0) return plain;
                return (costs_.verify_us(r + other_rows + m, context) + drafting) * off[1].by;
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
    measure(plan, result);
    if (!decodes) return;
    ++(plan.has_drafts() ? sums_.steps_with : sums_.steps_without);
    sums_.draft_us += result.draft_us;
    calibration_.refit();
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

void SpecPlanner::Off::add(double measured) {
    // Single slow steps (another process) count as somewhat slow ones.
    measured = std::clamp(measured, by / 1.5, by * 1.5);
    by += (measured - by) / static_cast<double>(std::min<int64_t>(++steps, 16));
}

/// What rows cost and whether drafts pay. Prompt rows beside decodes are taken off by what rows
/// cost: a server under load has hardly a step without.
void SpecPlanner::measure(const StepPlan& plan, const StepResult& result) {
    bool by_costs = false;
    while (!chose_none_.empty() && chose_none_.front() <= plan.step) {
        by_costs = chose_none_.front() == plan.step;
        chose_none_.pop_front();
    }
    if (plan.num_constrained > 0 || !plan.forks.empty() || !plan.encode.empty()) return;
    Step s;
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
        const ChunkResult& r = result.chunks[i];
        s.all_rows += r.num_rows;
        s.context = std::max<int64_t>(s.context, r.start_pos);
        if (!plan.chunks[i].decode) continue;
        ++s.decodes;
        s.rows += r.num_rows;
        s.tokens += static_cast<int64_t>(r.tokens.size());
        s.drafted += r.drafts.num_proposed > 0 ? 1 : 0;
    }
    if (!plan.has_drafts()) line_.add(s.all_rows, result.step_us);
    if (s.rows == 0) return;
    // Sequences whose windows are not filled yet propose nothing.
    if (plan.has_drafts() && 2 * s.drafted < s.decodes) return;
    auto us = static_cast<double>(result.step_us);
    if (s.all_rows > s.rows) {
        // Of a step that is mostly prompt the rest is not known well enough.
        if (!line_.known()) return;
        const double share = line_.share(s.rows, s.all_rows);
        if (share < kLeastShare) return;
        const auto draft_us = static_cast<double>(result.draft_us);
        us = draft_us + (us - draft_us) * share;
    }
    SpecStats::Timed& timed = plan.has_drafts() ? sums_.with : sums_.without;
    ++timed.steps;
    timed.us += static_cast<int64_t>(us);
    timed.tokens += s.tokens;
    timed.rows += s.rows;
    // The switch compares with steps that it asked for.
    if (!by_costs)
        switch_.observe(s.decodes, plan.has_drafts(), s.tokens, static_cast<int64_t>(us));
    if (costs_.known() && s.all_rows == s.rows) correct_costs(plan, result, s);
}

void SpecPlanner::correct_costs(const StepPlan& plan, const StepResult& result, const Step& s) {
    const auto us = static_cast<double>(result.step_us);
    const auto draft_us = static_cast<double>(result.draft_us);
    std::array<Off, 2>& off = off_[SpecSwitch::index(s.decodes)];
    const double said = costs_.verify_us(s.rows, s.context);
    costs_.correct_verify(s.rows, s.context, us - draft_us);
    if (s.drafted == 0) {
        off[0].add(us / said);
        return;
    }
    const int64_t block = plan.draft_block > 0 ? plan.draft_block : options_.nextn;
    off[1].add(us / (said + costs_.draft_us(s.drafted * block)));
    costs_.correct_draft(s.drafted * block, draft_us);
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
