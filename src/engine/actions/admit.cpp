// Admission: waiting sequences get a slot while slots, blocks and the step's budget last.
#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/scheduler.h"

namespace deepinfer {

/// Blocks a sequence is expected to need at its end: what it has, plus a share of the output that
/// its kind has had lately. The share grows with every preemption (the guess was too low) and
/// shrinks slowly with every sequence that ends.
int64_t Scheduler::estimate_blocks(const Sequence& seq) const {
    const int64_t have = std::max<int64_t>(static_cast<int64_t>(seq.tokens.size()), seq.scheduled);
    const double expected =
        std::min(static_cast<double>(seq.max_total - have), std::max(64.0, 2.0 * mean_output_));
    const int64_t more = std::max<int64_t>(2, std::llround(std::ceil(reserve_ratio_ * expected)));
    return blocks_of(std::min(seq.max_total, have + more));
}

void Scheduler::plan_admissions(StepPlan& plan, Budget& budget) {
    // Whoever was just preempted waits first; admitting in the same step would only trade places.
    if (plan.num_preempted > 0) return;
    const int64_t now = clock_.now_us();
    while (budget.rows > 0 && budget.logit_rows > 0 && !free_slots_.empty()) {
        Sequence* seq = queue_.best(tenants_, now);
        if (seq == nullptr || !admit(*seq, plan, budget)) return;
    }
}

int64_t Scheduler::truncation_point(const Sequence& seq) const {
    // Prompt log-probabilities need the logits of every row; what continues from such windows (n >
    // 1, a second run after preemption) has to have had the same ones.
    if (seq.spec.sampling->prompt_logprobs) return 0;
    switch (config_.truncation.mode) {
        case TruncationMode::kOff:
            return 0;
        case TruncationMode::kCompact:  // outputs of an earlier run came after these very windows
            return seq.prompt_len;
        case TruncationMode::kExact: {
            // Any later token will do. The end of the last whole block is where windows are stored,
            // and they have to be complete there.
            const auto length = static_cast<int64_t>(seq.tokens.size());
            const int64_t whole = (length - 1) / blocks_.block_tokens() * blocks_.block_tokens();
            return config_.store_windows && whole > 0 ? whole + 1 : length;
        }
    }
    return 0;
}

std::optional<ReplayPlan> Scheduler::replay_after(const Sequence& seq, int64_t hit) const {
    const int64_t length = static_cast<int64_t>(seq.tokens.size()), cut = truncation_point(seq);
    if (cut == 0) return plan_replay(config_.replay, config_.replay_geometry, length, hit);
    return plan_replay_from(
        config_.replay, config_.replay_geometry, cut - config_.truncation.decoder_rows(cut), hit);
}

bool Scheduler::admit(Sequence& seq, StepPlan& plan, Budget& budget) {
    const int64_t length = static_cast<int64_t>(seq.tokens.size());
    blocks_.open(seq.blocks, seq.spec.tenant, seq.spec.cache_salt);
    // Log-probabilities of a prompt need the logits of every row: nothing may be skipped.
    const bool all_rows = seq.spec.sampling->prompt_logprobs.has_value() && seq.num_output() == 0 &&
                          seq.spec.index == 0;
    PrefixFound found;
    if (config_.prefix_caching && !all_rows) found = blocks_.find_prefix(seq.blocks, seq.tokens);
    const Resume resume = resume_after(seq, std::min(found.cached, length));
    const int64_t start = resume.start, hit = resume.hit;
    if (found.pending > 0 && !seq.waited_for_prefix) {
        // Somebody is computing this very beginning: one step of patience may save the whole of it.
        const std::optional<ReplayPlan> later =
            replay_after(seq, std::min(found.cached + found.pending, length));
        if (later && later->start > start) {
            seq.waited_for_prefix = true;
            blocks_.release(seq.blocks);
            return false;
        }
    }

    // Blocks that the running ones are expected to take beyond what they hold stay reserved.
    int64_t reserved = 0;
    for (const Sequence* r : running_) {
        reserved +=
            std::max<int64_t>(0, estimate_blocks(*r) - static_cast<int64_t>(r->blocks.ids.size()));
    }
    const bool fits = running_.empty() || estimate_blocks(seq) + reserved <= blocks_.free_blocks();
    if (!fits) {
        blocks_.release(seq.blocks);
        return false;
    }
    blocks_.adopt(seq.blocks, seq.tokens, hit);
    seq.scheduled = seq.computed = start;
    seq.window_floor = resume.window.slot >= 0 ? 0 : start;
    seq.write_from = hit;
    seq.truncate_at = truncation_point(seq);
    begin_windows(seq, resume, found.cached);
    const int64_t rows = chunk_rows(seq, budget);
    // A picture at its very start is encoded once the sequence holds a slot.
    const bool waits = rows == 0 && rows_before_picture(seq) == 0;
    if ((rows == 0 && !waits) || !blocks_.grow(seq.blocks, start + rows)) {
        blocks_.release(seq.blocks);
        seq.scheduled = seq.computed = 0;
        seq.window_floor = seq.write_from = 0;
        return false;
    }
    queue_.remove(&seq);
    start_slot(seq, plan);
    ++plan.num_admitted;
    if (resume.window.slot >= 0) {
        blocks_.use_window(seq.blocks, resume.window.position);
        plan.restores.push_back({resume.window.slot, seq.slot});
        ++stats_.restored_windows;
    }
    if (config_.truncation.mode != TruncationMode::kOff && seq.truncate_at == 0)
        ++plan.num_uncut_prompts;
    stats_.prefix_query_tokens += length;
    stats_.prefix_hit_tokens += hit;
    if (seq.cached_tokens < 0) seq.cached_tokens = std::min(hit, seq.prompt_len);
    // What was found costs its tenant nothing (its last position still counts as work).
    seq.charged = std::max(seq.charged, std::min(hit, length - 1));
    if (rows > 0) add_chunk(seq, rows, plan, budget);
    return true;
}

}  // namespace deepinfer
