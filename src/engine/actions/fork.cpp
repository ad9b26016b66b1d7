// Fork: the n sub-sequences of a request share one computed prompt. When sub-sequence 0 is about to
// run the prompt's last token, the others take copies of its windows, share its whole blocks and
// run that token themselves; from there on they differ by the random numbers alone.
#include <algorithm>

#include "engine/scheduler.h"

namespace deepinfer {

void Scheduler::fork_siblings(Sequence& leader, StepPlan& plan) {
    const int64_t shared = leader.prompt_len - 1;
    // A hit that covers the whole prompt is never rewritten, so its last block is shared too.
    const int64_t cover = std::max(shared, leader.write_from);
    while (!leader.siblings.empty() && !free_slots_.empty()) {
        Sequence& seq = *leader.siblings.front();
        blocks_.open(seq.blocks, seq.spec.tenant, seq.spec.cache_salt);
        const int64_t whole = blocks_.fork(leader.blocks, seq.blocks, leader.tokens, cover);
        if (whole < 0) {
            blocks_.release(seq.blocks);
            break;
        }
        leader.siblings.erase(leader.siblings.begin());
        seq.leader = nullptr;
        --num_siblings_;
        seq.scheduled = seq.computed = shared;
        seq.window_floor = leader.window_floor;
        seq.write_from = leader.write_from;
        seq.truncate_at = leader.truncate_at;
        seq.save_points.clear();
        seq.saved_at = shared;
        seq.run_length = leader.run_length;
        seq.windows_from = leader.windows_from;
        seq.complete_from = leader.complete_from;
        seq.cached_tokens = shared;
        seq.charged = shared;
        start_slot(seq, plan);
        ++plan.num_admitted;

        SlotFork f;
        f.from_slot = leader.slot;
        f.to_slot = seq.slot;
        for (size_t i = static_cast<size_t>(whole); i < seq.blocks.ids.size(); ++i) {
            f.blocks.emplace_back(leader.blocks.ids[i], seq.blocks.ids[i]);
        }
        plan.forks.push_back(std::move(f));
    }
    // Whoever found no slot or block now becomes an ordinary request.
    release_siblings(leader);
}

void Scheduler::release_siblings(Sequence& leader) {
    for (Sequence* seq : leader.siblings) {
        seq->leader = nullptr;
        seq->state = SequenceState::kWaiting;
        queue_.push(seq);
        --num_siblings_;
    }
    leader.siblings.clear();
}

}  // namespace deepinfer
