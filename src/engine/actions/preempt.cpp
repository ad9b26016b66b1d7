// Preemption by recompute: a victim gives up slot and blocks, keeps tokens, seed and constraint,
// and goes back to the front of its line. Its whole blocks stay findable, so coming back may be
// cheap.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace deepinfer {
namespace {

/// Rows it still has to run if nothing stops it early.
int64_t work_left(const Sequence& seq) {
    return seq.max_total - seq.scheduled;
}

}  // namespace

void Scheduler::give_up_slot(Sequence& seq) {
    free_slot(seq);
    seq.scheduled = seq.computed = 0;
    seq.window_floor = seq.write_from = 0;
    seq.state = SequenceState::kWaiting;
}

/// Its row of the newest step has no mask yet. What that step still does for it nobody hears.
void Scheduler::postpone(Sequence& seq) {
    give_up_slot(seq);
    late_.push_back(&seq);
    ++stats_.late_masks;
}

void Scheduler::take_back_late() {
    if (late_.empty()) return;
    if (running_.empty() && queue_.size() == 0 && in_flight_.empty()) mask_filler_.wait_a_little();
    for (size_t i = late_.size(); i-- > 0;) {  // the last one first, so that the first is in front
        Sequence* seq = late_[i];
        if (!mask_filler_.done(*seq->masks)) continue;
        late_.erase(late_.begin() + static_cast<int64_t>(i));
        queue_.push_front(seq);
    }
}

void Scheduler::preempt(Sequence& seq, StepPlan& plan) {
    DI_CHECK_MSG(seq.last_step != plan.step, "a sequence of this very step was chosen");
    give_up_slot(seq);
    queue_.push_front(&seq);
    ++plan.num_preempted;
    ++stats_.preemptions;
    reserve_ratio_ = std::min(1.0, reserve_ratio_ + 0.1);
}

bool Scheduler::make_room(Sequence& seq, int64_t num_tokens, StepPlan& plan) {
    while (!blocks_.grow(seq.blocks, num_tokens)) {
        // Victims: after seq in (class, arrival), not yet in this step. The latest first, but one
        // that is almost done is spared: recomputing it costs more than waiting for its end.
        const auto self = std::find(running_.begin(), running_.end(), &seq);
        Sequence* latest = nullptr;
        Sequence* latest_long = nullptr;
        for (auto it = std::next(self); it != running_.end(); ++it) {
            if ((*it)->last_step == plan.step) continue;
            latest = *it;
            if (work_left(**it) >= config_.max_num_batched_tokens) latest_long = *it;
        }
        const bool self_long = work_left(seq) >= config_.max_num_batched_tokens;
        const bool self_first = self == running_.begin();
        Sequence* victim = latest_long;
        if (victim == nullptr && self_long && !self_first) victim = &seq;
        if (victim == nullptr) victim = latest;
        if (victim == nullptr) victim = &seq;
        // Alone it always fits (max_model_len is at most the pool), so this ends.
        preempt(*victim, plan);
        if (victim == &seq) return false;
    }
    return true;
}

void Scheduler::preempt_forced(StepPlan& plan) {
    const std::vector<Sequence*> order = running_;
    for (Sequence* seq : order) {
        if (seq->num_output() == 0 || seq->remaining() > 1) continue;
        if (config_.force_preempt(plan.step, *seq)) preempt(*seq, plan);
    }
}

}  // namespace deepinfer
