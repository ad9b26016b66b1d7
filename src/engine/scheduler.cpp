#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace deepinfer {
namespace {

std::tuple<int, uint64_t, int32_t> rank_of(const Sequence& s) {
    return {s.spec.priority, s.arrival, s.spec.index};
}

bool is_prompt_chunk(const ChunkPlan& c, const Sequence& s) {
    return c.start_pos < s.prompt_len;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, BlockSpace& blocks, const Clock& clock)
    : config_(std::move(config)),
      blocks_(blocks),
      clock_(clock),
      queue_(config_.age_us),
      encoder_(config_.encoder),
      mask_filler_(config_.masks) {
    DI_CHECK_GE(config_.max_logit_rows, config_.max_num_seqs);
    DI_CHECK_GE(config_.max_model_len, 1);
    DI_CHECK_LE(config_.max_model_len, blocks_.total_blocks() * blocks_.block_tokens());
    slot_owner_.resize(static_cast<size_t>(config_.max_num_seqs), nullptr);
    slot_epoch_.resize(static_cast<size_t>(config_.max_num_seqs), 0);
    for (int32_t i = 0; i < config_.max_num_seqs; ++i) free_slots_.insert(i);
}

Scheduler::~Scheduler() = default;

int64_t Scheduler::blocks_of(int64_t num_tokens) const {
    return (num_tokens + blocks_.block_tokens() - 1) / blocks_.block_tokens();
}

Status Scheduler::check_fits(int64_t prompt_len, const SamplingParams& sampling) const {
    const int64_t wanted = sampling.max_tokens.value_or(1);
    if (wanted <= config_.max_model_len && prompt_len <= config_.max_model_len - wanted) return {};
    std::string what = "prompt of " + std::to_string(prompt_len) + " tokens";
    what += sampling.max_tokens ? " + max_tokens " + std::to_string(wanted)
                                : " + one token to generate";
    what += " exceeds the context length of " + std::to_string(config_.max_model_len) + " tokens";
    const int64_t pool = blocks_.total_blocks() * blocks_.block_tokens();
    if (blocks_of(prompt_len) + 1 > blocks_.total_blocks()) {
        what += "; it can never fit: the cache pool holds " +
                std::to_string(blocks_.total_blocks()) + " blocks = " + std::to_string(pool) +
                " tokens";
    }
    return Status(StatusCode::kOutOfRange, what);
}

void Scheduler::add(std::vector<SequenceSpec> specs) {
    DI_CHECK(!specs.empty());
    const uint64_t request = specs[0].request;
    DI_CHECK(sequences_.find(request) == sequences_.end());
    std::vector<std::unique_ptr<Sequence>>& group = sequences_[request];
    const uint64_t arrival = next_arrival_++;
    for (SequenceSpec& spec : specs) {
        auto seq = std::make_unique<Sequence>();
        seq->spec = std::move(spec);
        seq->tokens = std::move(seq->spec.prompt);
        seq->spec.prompt.clear();
        seq->prompt_len = static_cast<int64_t>(seq->tokens.size());
        DI_CHECK_GE(seq->prompt_len, 1);
        const SamplingParams& sampling = *seq->spec.sampling;
        DI_CHECK(check_fits(seq->prompt_len, sampling).ok());
        const int64_t room = config_.max_model_len - seq->prompt_len;
        seq->max_total = seq->prompt_len + std::min(room, sampling.max_tokens.value_or(room));
        if (seq->spec.images != nullptr) seq->blocks.images = seq->spec.images->cache_spans();
        seq->arrival = arrival;
        seq->arrival_us = clock_.now_us();
        tenants_.enter(seq->spec.tenant);
        // A prompt of one token leaves nothing to share.
        if (group.empty() || seq->prompt_len == 1) {
            queue_.push(seq.get());
        } else {
            seq->state = SequenceState::kSibling;
            seq->leader = group[0].get();
            group[0]->siblings.push_back(seq.get());
            ++num_siblings_;
        }
        group.push_back(std::move(seq));
    }
}

void Scheduler::abort(uint64_t request, ScheduleSink& sink) {
    const auto it = sequences_.find(request);
    if (it == sequences_.end()) return;
    for (const std::unique_ptr<Sequence>& seq : it->second) {
        if (seq->state == SequenceState::kFinished) continue;
        end(*seq);
        sink.on_ended(*seq, FinishReason::kAbort);
    }
    forget_finished(request);
}

std::shared_ptr<const StepPlan> Scheduler::plan_step() {
    auto plan = std::make_shared<StepPlan>();
    plan->step = next_step_;
    Budget budget{config_.max_num_batched_tokens, config_.max_logit_rows};
    take_back_late();
    plan_saves(*plan);
    if (config_.force_preempt) preempt_forced(*plan);
    plan_encodes(*plan);
    plan_decodes(*plan, budget);
    plan_prefills(*plan, budget);
    plan_admissions(*plan, budget);
    if (plan->empty()) return plan;
    if (config_.spec != nullptr) {
        const int64_t all = static_cast<int64_t>(running_.size());
        plan->draft_windows = plan->has_drafts() || config_.spec->keeps_windows(all);
    }
    if (config_.force_no_drafts && config_.force_no_drafts(plan->step)) plan->draft_windows = false;
    ++next_step_;
    ++stats_.steps;
    stats_.prefill_tokens += plan->num_prefill_rows;
    stats_.replayed_tokens += plan->num_replay_rows;
    stats_.encoded_images = encoder_.num_encoded();
    stats_.skipped_rows += plan->num_skipped_rows;
    stats_.uncut_prompts += plan->num_uncut_prompts;
    in_flight_.push_back(plan);
    return plan;
}

int64_t Scheduler::most_end(const Sequence& seq, int64_t rows, int64_t drafts) const {
    // A sequence's last token is never run, so no position beyond max_total - 1 is needed.
    return std::min(seq.scheduled + rows + seq.drafts_in_flight + drafts,
                    std::max(seq.max_total, seq.scheduled + rows));
}

bool Scheduler::schedulable(const Sequence& seq) const {
    return seq.state == SequenceState::kRunning && seq.remaining() > 0 && !seq.length_reached() &&
           rows_before_picture(seq) > 0;
}

int64_t Scheduler::chunk_rows(const Sequence& seq, const Budget& budget) const {
    int64_t rows = std::min({seq.remaining(), budget.rows, rows_before_picture(seq)});
    if (config_.long_prefill_token_threshold > 0) {
        rows = std::min(rows, config_.long_prefill_token_threshold);
    }
    if (seq.spec.sampling->prompt_logprobs && seq.num_output() == 0 && seq.spec.index == 0) {
        rows = std::min(rows, budget.logit_rows);
    }
    if (budget.logit_rows <= 0) return 0;
    if (!seq.siblings.empty()) rows = std::min(rows, seq.prompt_len - 1 - seq.scheduled);
    for (const int64_t point : seq.save_points) {
        if (point > seq.scheduled) rows = std::min(rows, point - seq.scheduled);
    }
    if (rows >= seq.remaining()) return rows;
    // Ends at whole blocks, else at whole compression groups, where that leaves rows at all.
    for (const int64_t align : {int64_t{blocks_.block_tokens()}, int64_t{config_.chunk_align}}) {
        const int64_t aligned = (seq.scheduled + rows) / align * align - seq.scheduled;
        if (aligned > rows / 2) return aligned;
    }
    return rows;
}

int64_t Scheduler::useful_drafts(const Sequence& seq) const {
    if (config_.nextn == 0 || seq.scheduled < seq.prompt_len) return 0;
    if (seq.masks != nullptr && !seq.masks->rows.empty()) return 0;  // they are for no drafts
    return std::clamp<int64_t>(seq.max_total - seq.total() - 1, 0, config_.nextn);
}

void Scheduler::add_chunk(Sequence& seq, int64_t rows, StepPlan& plan, Budget& budget, int drafts) {
    ChunkPlan c;
    c.slot = seq.slot;
    c.epoch = seq.epoch;
    c.start_pos = static_cast<int32_t>(seq.scheduled);
    c.window_floor = static_cast<int32_t>(seq.window_floor);
    c.write_from = static_cast<int32_t>(seq.write_from);
    c.truncate_at = static_cast<int32_t>(seq.truncate_at);
    const int64_t known = static_cast<int64_t>(seq.tokens.size());
    const int64_t end = seq.scheduled + rows;
    DI_CHECK_LE(end, seq.total());
    c.num_drafts = drafts;
    c.uncertain_start = seq.drafts_in_flight > 0;
    const auto ids = seq.tokens.begin();
    c.token_ids.assign(ids + seq.scheduled, ids + std::min(end, known));
    if (end > known) c.token_ids.push_back(kLastSampled);
    if (c.uncertain_start) c.token_ids = {kLastSampled};
    DI_CHECK_LE(seq.scheduled, known);  // so all that Engram looks back on is known here
    const int64_t from = std::max<int64_t>(0, seq.scheduled - config_.lookback);
    if (!c.uncertain_start) c.lookback.assign(ids + from, ids + seq.scheduled);
    const int64_t num_blocks = blocks_of(most_end(seq, rows, drafts));
    c.block_ids.assign(seq.blocks.ids.begin(), seq.blocks.ids.begin() + num_blocks);
    c.sample = end == seq.total();
    c.constrained = c.sample && seq.spec.constraint != nullptr;
    c.decode = rows == 1 && seq.scheduled >= seq.prompt_len;
    DI_CHECK(c.decode || (drafts == 0 && !c.uncertain_start));
    c.prompt_logprobs = seq.spec.sampling->prompt_logprobs.has_value() && seq.num_output() == 0 &&
                        seq.spec.index == 0 && seq.scheduled < seq.prompt_len;

    const int64_t logit_rows =
        c.prompt_logprobs ? rows : (c.sample ? 1 : 0);  // drafts': plan_decodes
    budget.rows -= rows;
    budget.logit_rows -= logit_rows;
    DI_CHECK_GE(budget.rows, 0);
    DI_CHECK_GE(budget.logit_rows, 0);

    if (c.decode) {
        plan.num_decode_rows += rows;
    } else {
        plan.num_prefill_rows += rows;
        plan.num_replay_rows += std::max<int64_t>(0, std::min(end, seq.write_from) - seq.scheduled);
        if (seq.truncate_at > 0) {
            const int64_t decoder_from =
                seq.truncate_at - config_.truncation.decoder_rows(seq.truncate_at);
            plan.num_skipped_rows +=
                std::max<int64_t>(0, std::min(end, decoder_from) - seq.scheduled);
        }
    }
    if (c.constrained) ++plan.num_constrained;
    int64_t service = TenantCounters::kInputWeight *
                      std::max<int64_t>(0, std::min(end, seq.prompt_len) - seq.charged);
    if (c.sample && end > seq.charged) service += TenantCounters::kOutputWeight;
    seq.charged = std::max(seq.charged, end);
    tenants_.charge(seq.spec.tenant, service);

    seq.scheduled = end;
    if (c.sample) ++seq.samples_in_flight;
    seq.drafts_in_flight += drafts;
    seq.last_step = plan.step;
    if (seq.first_scheduled_us < 0) seq.first_scheduled_us = clock_.now_us();
    plan.chunks.push_back(std::move(c));
}

void Scheduler::start_slot(Sequence& seq, StepPlan& plan) {
    DI_CHECK(!free_slots_.empty());
    seq.slot = *free_slots_.begin();
    free_slots_.erase(free_slots_.begin());
    const size_t slot = static_cast<size_t>(seq.slot);
    seq.epoch = ++slot_epoch_[slot];
    slot_owner_[slot] = &seq;
    seq.state = SequenceState::kRunning;
    const auto at = std::lower_bound(
        running_.begin(), running_.end(), &seq, [](const Sequence* a, const Sequence* b) {
            return rank_of(*a) < rank_of(*b);
        });
    running_.insert(at, &seq);

    SlotStart start;
    start.slot = seq.slot;
    start.epoch = seq.epoch;
    start.request = seq.spec.request;
    start.index = seq.spec.index;
    start.prompt_len = seq.prompt_len;
    start.max_total = seq.max_total;
    start.tokens = seq.tokens;
    start.seed = seq.spec.seed;
    start.sampling = seq.spec.sampling;
    if (seq.spec.images != nullptr) start.images = seq.spec.images->places();
    plan.starts.push_back(std::move(start));
}

void Scheduler::free_slot(Sequence& seq) {
    blocks_.release(seq.blocks);
    running_.erase(std::find(running_.begin(), running_.end(), &seq));
    slot_owner_[static_cast<size_t>(seq.slot)] = nullptr;
    free_slots_.insert(seq.slot);
    seq.slot = -1;
    seq.samples_in_flight = seq.drafts_in_flight = 0;
}

void Scheduler::end(Sequence& seq) {
    switch (seq.state) {
        case SequenceState::kWaiting: {
            const auto late = std::find(late_.begin(), late_.end(), &seq);
            if (late != late_.end()) {
                late_.erase(late);
            } else {
                queue_.remove(&seq);
            }
            break;
        }
        case SequenceState::kSibling: {
            std::vector<Sequence*>& list = seq.leader->siblings;
            list.erase(std::find(list.begin(), list.end(), &seq));
            --num_siblings_;
            break;
        }
        case SequenceState::kRunning:
            free_slot(seq);
            break;
        case SequenceState::kFinished:
            DI_CHECK_MSG(false, "a sequence ended twice");
    }
    release_siblings(seq);
    seq.state = SequenceState::kFinished;
    tenants_.leave(seq.spec.tenant);
    mean_output_ += 0.1 * (static_cast<double>(seq.num_output()) - mean_output_);
    reserve_ratio_ = std::max(0.3, reserve_ratio_ - 0.002);
}

void Scheduler::forget_finished(uint64_t request) {
    const auto it = sequences_.find(request);
    if (it == sequences_.end()) return;
    for (const std::unique_ptr<Sequence>& seq : it->second) {
        if (seq->state != SequenceState::kFinished) return;
    }
    sequences_.erase(it);
    if (sequences_.empty()) check_invariants();
}

Sequence* Scheduler::owner(int32_t slot, uint32_t epoch) const {
    Sequence* seq = slot_owner_[static_cast<size_t>(slot)];
    return seq != nullptr && seq->epoch == epoch ? seq : nullptr;
}

FinishReason Scheduler::reason_of_token(const Sequence& seq, int32_t token) const {
    const SamplingParams& p = *seq.spec.sampling;
    if (token == config_.eos_token_id && !p.ignore_eos) return FinishReason::kStop;
    if (std::find(p.stop_token_ids.begin(), p.stop_token_ids.end(), token) !=
        p.stop_token_ids.end()) {
        return FinishReason::kStop;
    }
    const bool full = static_cast<int64_t>(seq.tokens.size()) >= seq.max_total;
    return full ? FinishReason::kLength : FinishReason::kNone;
}

FinishReason Scheduler::append_tokens(Sequence& seq,
                                      const ChunkPlan& c,
                                      const ChunkResult& r,
                                      ScheduleSink& sink) {
    for (size_t i = 0; i < r.tokens.size(); ++i) {
        const SampledToken& t = r.tokens[i];
        DI_CHECK_GE(t.id, 0);
        seq.tokens.push_back(t.id);
        if (i > 0) {  // the token before it was a draft, and its row is committed now
            ++seq.computed;
            ++seq.scheduled;
            seq.charged = std::max(seq.charged, seq.computed);
            tenants_.charge(seq.spec.tenant, TenantCounters::kOutputWeight);
        }
        // The mask allowed it, so it is accepted.
        if (seq.spec.constraint) seq.spec.constraint->commit(t.id);
        ++stats_.output_tokens;
        blocks_.commit(seq.blocks, seq.tokens, std::max(seq.computed, seq.write_from));
        if (i == 0 && is_prompt_chunk(c, seq)) sink.on_prefill(seq, r);
        const FinishReason reason = sink.on_token(seq, t, reason_of_token(seq, t.id));
        if (reason != FinishReason::kNone) return reason;
    }
    return r.empty_mask ? FinishReason::kEmptyMask : FinishReason::kNone;
}

void Scheduler::finish_step(const StepResult& result, ScheduleSink& sink) {
    DI_CHECK(!in_flight_.empty());
    const std::shared_ptr<const StepPlan> plan = in_flight_.front();
    in_flight_.pop_front();
    DI_CHECK_EQ(result.step, plan->step);
    DI_CHECK_EQ(result.chunks.size(), plan->chunks.size());
    if (config_.spec != nullptr) config_.spec->observe(*plan, result);
    std::vector<uint64_t> ended;
    for (size_t i = 0; i < plan->chunks.size(); ++i) {
        const ChunkPlan& c = plan->chunks[i];
        const ChunkResult& r = result.chunks[i];
        DI_CHECK(r.slot == c.slot && r.epoch == c.epoch);
        stats_.draft_rows += r.drafts.num_verified;
        if (c.decode) stats_.decode_tokens += r.num_rows - r.drafts.num_verified;
        Sequence* seq = owner(c.slot, c.epoch);
        if (seq == nullptr) {  // it ended or was preempted after this row had been launched
            stats_.zombie_tokens += static_cast<int64_t>(r.tokens.size());
            continue;
        }
        if (!result.status.ok()) {
            if (c.sample) --seq->samples_in_flight;
            seq->drafts_in_flight -= c.num_drafts;
            ended.push_back(seq->spec.request);
            end(*seq);
            sink.on_failed(*seq, result.status);
            continue;
        }
        DI_CHECK(c.uncertain_start || c.start_pos == seq->computed);
        DI_CHECK_EQ(r.start_pos, seq->computed);
        DI_CHECK_LE(c.start_pos, r.start_pos);
        DI_CHECK_EQ(r.num_rows, c.num_rows() + r.drafts.num_verified);
        DI_CHECK_LE(static_cast<int64_t>(r.tokens.size()), 1 + r.drafts.num_verified);
        DI_CHECK(c.sample == (!r.tokens.empty() || r.empty_mask));
        seq->computed = r.start_pos + c.num_rows();
        if (c.sample) --seq->samples_in_flight;
        seq->drafts_in_flight -= c.num_drafts;
        const size_t before = seq->tokens.size();
        if (r.tokens.empty()) {
            blocks_.commit(seq->blocks, seq->tokens, std::max(seq->computed, seq->write_from));
            if (is_prompt_chunk(c, *seq)) sink.on_prefill(*seq, r);
        }
        const FinishReason reason = append_tokens(*seq, c, r, sink);
        if (reason == FinishReason::kNone) continue;
        // Of the tokens behind the end nobody hears.
        stats_.zombie_tokens +=
            static_cast<int64_t>(r.tokens.size() - (seq->tokens.size() - before));
        ended.push_back(seq->spec.request);
        end(*seq);
        if (reason == FinishReason::kEmptyMask) sink.on_ended(*seq, reason);
    }
    for (const uint64_t request : ended) forget_finished(request);
}

std::vector<RowMask> Scheduler::fill_masks(const StepPlan& plan,
                                           const std::vector<ChunkDrafts>& drafts) {
    std::vector<Sequence*> owners;
    std::vector<std::shared_ptr<MaskJob>> jobs;
    for (const ChunkPlan& c : plan.chunks) {
        Sequence* seq = c.constrained ? owner(c.slot, c.epoch) : nullptr;
        if (seq == nullptr) continue;
        // A row that was late comes with the masks it waited for; nothing was committed since.
        if (seq->masks == nullptr || seq->masks->rows.empty()) {
            const bool slow = seq->masks != nullptr && seq->masks->slow;
            seq->masks = std::make_shared<MaskJob>();
            seq->masks->form = seq->spec.constraint;
            seq->masks->slow = slow;
            for (const ChunkDrafts& d : drafts) {
                if (d.slot == c.slot && d.epoch == c.epoch) seq->masks->drafts = d.tokens;
            }
            jobs.push_back(seq->masks);
        } else {
            DI_CHECK_EQ(c.num_drafts,
                        0);  // it was preempted, and this samples its last known token
        }
        owners.push_back(seq);
    }
    mask_filler_.fill(jobs);
    std::vector<RowMask> masks;
    for (Sequence* seq : owners) {
        if (mask_filler_.done(*seq->masks)) {
            masks.push_back({seq->slot, seq->epoch, std::move(seq->masks->rows)});
            seq->masks->rows.clear();
        } else {
            postpone(*seq);
        }
    }
    return masks;
}

void Scheduler::check_invariants() const {
    int64_t siblings = 0, waiting = 0;
    std::set<int32_t> slots = free_slots_;
    for (const auto& [request, group] : sequences_) {
        for (const std::unique_ptr<Sequence>& seq : group) {
            if (seq->state == SequenceState::kSibling) ++siblings;
            if (seq->state == SequenceState::kWaiting) ++waiting;
            if (seq->state != SequenceState::kRunning) {
                DI_CHECK_EQ(seq->slot, -1);
                DI_CHECK(seq->blocks.ids.empty());
                continue;
            }
            DI_CHECK(slots.insert(seq->slot).second);
            DI_CHECK(slot_owner_[static_cast<size_t>(seq->slot)] == seq.get());
            DI_CHECK_LE(seq->computed, seq->scheduled);
            DI_CHECK_LE(seq->computed, static_cast<int64_t>(seq->tokens.size()));
            DI_CHECK_LE(seq->scheduled, seq->total());
            DI_CHECK_LE(seq->total(), seq->max_total);
            DI_CHECK_LE(seq->samples_in_flight, 2);  // one step in flight, one planned
            DI_CHECK_LE(seq->drafts_in_flight, 2 * config_.nextn);
        }
    }
    DI_CHECK_EQ(static_cast<int64_t>(slots.size()), config_.max_num_seqs);
    DI_CHECK_EQ(siblings, num_siblings_);
    DI_CHECK_EQ(waiting, queue_.size() + static_cast<int64_t>(late_.size()));
    blocks_.check();
    // At rest everything has been given back.
    if (running_.empty()) DI_CHECK_EQ(blocks_.free_blocks(), blocks_.total_blocks());
}

}  // namespace deepinfer
