// Decodes: sequences with one row to run. They go first, since each of them is somebody waiting for
// the next word.
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
    for (Sequence* seq : ready) {
        if (budget.rows == 0 || budget.logit_rows == 0) break;
        if (seq->state != SequenceState::kRunning) continue;  // preempted for one before it
        if (make_room(*seq, seq->scheduled + 1, plan)) add_chunk(*seq, 1, plan, budget);
    }
}

}  // namespace deepinfer
