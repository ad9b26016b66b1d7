// Stored windows (`replay=stored`): copies of a slot's window state at the ends of whole blocks, so
// that a later hit there runs nothing again.
//
// Where: at the end of a prompt's last whole block, at the end of a prefix that others share, and
// at every block that an output completes. What is stored has the bits of a cold run, or is not
// stored: after a replay that begins with clipped windows it takes a while until all are whole
// again, and prefill truncation leaves out windows of the upper layers.
#include <algorithm>
#include <limits>

#include "engine/scheduler.h"

namespace deepinfer {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

Scheduler::Resume Scheduler::resume_after(const Sequence& seq, int64_t cached) const {
    Resume resume;
    if (const auto replay = replay_after(seq, cached)) {
        resume.start = replay->start;
        resume.hit = replay->write_from;
    }
    if (!config_.store_windows) return resume;
    // Row length − 1 runs in any case: it yields the next token.
    const int64_t length = static_cast<int64_t>(seq.tokens.size()), cut = truncation_point(seq);
    const int64_t decoder_from = cut - config_.truncation.decoder_rows(cut);
    for (const StoredWindow& w : blocks_.stored_windows(seq.blocks, std::min(cached, length - 1))) {
        if (w.position <= resume.start) continue;
        // Without the upper layers' windows it serves if those begin behind it.
        if (!w.complete && !(cut > 0 && decoder_from >= w.position)) continue;
        resume = {w.position, cached, w};
    }
    return resume;
}

void Scheduler::begin_windows(Sequence& seq, const Resume& resume, int64_t cached) const {
    seq.save_points.clear();
    seq.saved_at = resume.start;
    seq.run_length = static_cast<int64_t>(seq.tokens.size());
    seq.windows_from = seq.complete_from = kNever;
    if (!config_.store_windows) return;
    const PrefillTruncation& t = config_.truncation;
    const bool restored = resume.window.slot >= 0;
    if (restored || resume.start == 0) {
        seq.windows_from = seq.complete_from = resume.start;
    } else if (config_.replay == ReplayKind::kExact) {
        // Layer l has whole windows l + 1 windows after the start.
        seq.windows_from = resume.start + (t.mid + 1) * int64_t{t.window - 1};
        seq.complete_from = resume.start + t.num_layers * int64_t{t.window - 1};
    } else {
        return;  // a bounded replay leaves an approximation behind
    }
    if (seq.truncate_at > 0) {
        const int64_t decoder_from = seq.truncate_at - t.decoder_rows(seq.truncate_at);
        const int64_t whole_from = restored && resume.window.complete ? resume.start : 0;
        if (decoder_from > whole_from) {
            seq.complete_from = std::max(seq.windows_from, seq.truncate_at - 1);
        }
    }
    // What `compact` leaves in the upper layers depends on the prompt's length, so for others it
    // has never been complete.
    if (t.mode == TruncationMode::kCompact) seq.complete_from = kNever;

    const int64_t block = blocks_.block_tokens();
    int64_t last = (seq.run_length - 1) / block * block;
    if (t.mode == TruncationMode::kCompact && seq.truncate_at > 0) {
        // The next run of this prompt needs the windows below the rows it keeps.
        last = (seq.truncate_at - t.decoder_rows(seq.truncate_at)) / block * block;
    }
    for (const int64_t point : {cached / block * block, last}) {
        if (point <= resume.start || point >= seq.run_length || point < seq.windows_from) continue;
        if (t.mode == TruncationMode::kOff && point < seq.complete_from) continue;
        bool known = false;
        for (const StoredWindow& w : blocks_.stored_windows(seq.blocks, point)) {
            known = known || (w.position == point && (w.complete || point < seq.complete_from));
        }
        if (!known) seq.save_points.push_back(point);
    }
}

int64_t Scheduler::save_position(const Sequence& seq) const {
    const int64_t block = blocks_.block_tokens(), at = seq.scheduled / block * block;
    if (at <= seq.saved_at || at < seq.windows_from) return 0;
    if (at < seq.run_length) {
        const auto& points = seq.save_points;
        const bool wanted = std::find(points.begin(), points.end(), at) != points.end();
        return wanted && at == seq.scheduled ? at : 0;
    }
    // Outputs may be some rows further already, as far as the rings still hold the window.
    return seq.scheduled + seq.drafts_in_flight <= at + config_.ring_extra ? at : 0;
}

void Scheduler::plan_saves(StepPlan& plan) {
    if (!config_.store_windows) return;
    for (Sequence* seq : running_) {
        const int64_t at = save_position(*seq);
        if (at == 0) continue;
        const bool complete = at >= seq->complete_from;
        if (!complete && config_.truncation.mode == TruncationMode::kOff) continue;
        seq->saved_at = at;
        const std::span<const int32_t> tokens(seq->tokens.data(), static_cast<size_t>(at));
        const int32_t slot = blocks_.store_window(seq->blocks, tokens, complete);
        if (slot < 0) continue;
        plan.saves.push_back({seq->slot, slot});
        ++stats_.saved_windows;
    }
}

}  // namespace deepinfer
