// Prefill: the next chunk of every prompt that has started, in order of class and arrival.
#include "engine/scheduler.h"

namespace deepinfer {

void Scheduler::plan_prefills(StepPlan& plan, Budget& budget) {
    const std::vector<Sequence*> order = running_;  // make_room may take some out
    for (Sequence* seq : order) {
        if (budget.rows == 0) break;
        if (!schedulable(*seq) || seq->last_step == plan.step || seq->remaining() == 1) continue;
        const int64_t rows = chunk_rows(*seq, budget);
        if (rows > 0 && make_room(*seq, seq->scheduled + rows, plan)) {
            add_chunk(*seq, rows, plan, budget);
        }
    }
}

}  // namespace deepinfer
