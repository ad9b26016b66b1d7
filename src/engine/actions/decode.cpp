// Decodes: sequences with one row to run, and drafts behind it. They go first, since each of them
// is somebody waiting for the next word.
#include <algorithm>
#include <tuple>

#include "engine/scheduler.h"

namespace deepinfer {

void Scheduler::plan_decodes(StepPlan& plan, Budget& budget) {
    // A prompt that others wait for, committed up to its last token: they go on from here.
    std::vector<Sequence*> leaders;
    for (Sequence* seq : running_) {
        if (!seq->siblings.empty() && seq->computed == seq->prompt_len - 1) leaders.push_back(seq);
    }
    for (Sequence* leader : leaders) fork_siblings(*leader, plan);

    std::vector<Sequence*> ready;
    for (Sequence* seq : running_) {
        if (!schedulable(*seq) || seq->remaining() != 1) continue;
        if (seq->siblings.empty()) ready.push_back(seq);  // else its commit comes first
    }
    if (static_cast<int64_t>(ready.size()) > std::min(budget.rows, budget.logit_rows)) {
        // Too many for one step: those that waited longest, class by class.
        std::stable_sort(ready.begin(), ready.end(), [](const Sequence* a, const Sequence* b) {
            return std::tie(a->spec.priority, a->last_step) <
                   std::tie(b->spec.priority, b->last_step);
        });
    }
    // Every decode gets its certain row before any gets drafts.
    const int64_t decodes = std::min<int64_t>(static_cast<int64_t>(ready.size()),
                                              std::min(budget.rows, budget.logit_rows));
    int64_t spare = plan_drafts(ready, decodes, budget, plan);
    // Under a budget every sequence may get the rows, and the executor chooses whose drafts they
    // are; else they are dealt out here.
    const bool shared = plan.draft_budget != kAllDrafts;
    for (int64_t i = 0; i < decodes; ++i) {
        Sequence* seq = ready[static_cast<size_t>(i)];
        if (seq->state != SequenceState::kRunning) continue;  // preempted for one before it
        const int64_t share = shared ? spare : spare / (decodes - i);
        int64_t drafts = std::min(useful_drafts(*seq), share);
        if (plan.draft_block > 0) drafts = std::min<int64_t>(drafts, plan.draft_block);
        if (!make_room(*seq, most_end(*seq, 1, drafts), plan)) continue;
        add_chunk(*seq, 1, plan, budget, static_cast<int>(drafts));
        if (!shared) spare -= drafts;
    }
    plan.num_draft_rows = 0;
    for (const ChunkPlan& c : plan.chunks) plan.num_draft_rows += c.num_drafts;
    if (shared) plan.num_draft_rows = std::min(plan.num_draft_rows, plan.draft_budget);
    budget.rows -= plan.num_draft_rows;
    budget.logit_rows -= plan.num_draft_rows;
}

int64_t Scheduler::plan_drafts(const std::vector<Sequence*>& ready,
                               int64_t decodes,
                               const Budget& budget,
                               StepPlan& plan) const {
    const int64_t spare = spare_for_drafts(decodes, budget);
    if (config_.force_no_drafts && config_.force_no_drafts(plan.step)) return 0;
    if (config_.spec == nullptr || config_.nextn == 0) return spare;
    std::vector<SpecPlanner::Decode> asked;
    int64_t context = 0, waiting = 0;
    for (int64_t i = 0; i < decodes; ++i) {
        const Sequence& seq = *ready[static_cast<size_t>(i)];
        asked.push_back({seq.slot, seq.epoch, useful_drafts(seq)});
        context = std::max(context, seq.scheduled);
    }
    for (const Sequence* seq : running_) {
        if (schedulable(*seq) && seq->remaining() > 1) waiting += seq->remaining();
    }
    const int64_t beside = std::min(waiting, budget.rows - decodes - spare);
    SpecPlanner::Decision d = config_.spec->decide(plan.step, asked, beside, spare, context);
    plan.draft_scales = std::move(d.scales);
    plan.least_survival = d.least_survival;
    plan.draft_block = d.block;
    if (d.budget == kAllDrafts) return spare;
    plan.draft_budget = std::min(d.budget, spare);
    return plan.draft_budget;
}

int64_t Scheduler::spare_for_drafts(int64_t decodes, const Budget& budget) const {
    if (config_.nextn == 0) return 0;
    int64_t rows = budget.rows - decodes;
    // Drafts speed up those that decode; half of what is left keeps prompts moving meanwhile.
    const bool prompts =
        queue_.size() > 0 || std::any_of(running_.begin(), running_.end(), [&](const Sequence* s) {
            return schedulable(*s) && s->remaining() > 1;
        });
    if (prompts) rows /= 2;
    return std::max<int64_t>(0, std::min(rows, budget.logit_rows - decodes));
}

}  // namespace deepinfer
