#include "sim/fake_executor.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::sim {

FakeExecutor::FakeExecutor(const FakeMemoryShape& shape)
    : shape_(shape),
      blocks_(static_cast<size_t>(shape.num_blocks * shape.block_tokens), 0xDEAD),
      rings_(static_cast<size_t>(shape.num_slots * shape.ring_len)),
      slots_(static_cast<size_t>(shape.num_slots)) {}

void FakeExecutor::fail(const std::string& what) {
    if (fault.empty()) fault = "step " + std::to_string(plan_->step) + ": " + what;
}

void FakeExecutor::append(Slot& slot, int32_t token) {
    slot.prefix.push_back(extend(slot.prefix.empty() ? 0 : slot.prefix.back(), token));
    slot.tokens.push_back(token);
}

void FakeExecutor::launch(std::shared_ptr<const StepPlan> plan) {
    if (plan_ != nullptr) fail("launch before launch_sampling of the step before");
    plan_ = std::move(plan);
    if (keep_plans) plans.push_back(plan_);
    result_ = StepResult();
    result_.step = plan_->step;
    for (const SlotStart& s : plan_->starts) {
        Slot& slot = slots_[static_cast<size_t>(s.slot)];
        slot = Slot();
        slot.epoch = s.epoch;
        slot.start = s;
        for (const int32_t t : s.tokens) append(slot, t);
    }
    for (const SlotFork& f : plan_->forks) {
        std::copy_n(rings_.begin() + f.from_slot * shape_.ring_len,
                    shape_.ring_len,
                    rings_.begin() + f.to_slot * shape_.ring_len);
        for (const auto& [from, to] : f.blocks) {
            std::copy_n(blocks_.begin() + static_cast<int64_t>(from) * shape_.block_tokens,
                        shape_.block_tokens,
                        blocks_.begin() + static_cast<int64_t>(to) * shape_.block_tokens);
        }
    }
    std::vector<int32_t> seen;
    drafts_.assign(plan_->chunks.size(), {});
    budget_left_ = plan_->draft_budget;
    int64_t verified = 0;
    const int64_t rows_before = rows_run;
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        if (std::find(seen.begin(), seen.end(), c.slot) != seen.end())
            fail("a slot twice in a step");
        seen.push_back(c.slot);
        ChunkResult r;
        r.slot = c.slot;
        r.epoch = c.epoch;
        result_.chunks.push_back(r);
        if (slots_[static_cast<size_t>(c.slot)].epoch != c.epoch)
            fail("chunk of an epoch that never started");
        run_chunk(i);
        verified += static_cast<int64_t>(drafts_[i].size());
        if (c.sample && !c.constrained) sample(i, nullptr);
    }
    if (plan_->draft_budget != kAllDrafts && verified > plan_->draft_budget)
        fail("more drafts than the budget");
    // As if rows cost time: half a fixed part, and drafting another bit.
    result_.draft_us = plan_->has_drafts() ? 200 : 0;
    result_.step_us = result_.draft_us + 1000 + 100 * (rows_run - rows_before);
    if (listener_ && plan_->num_constrained > 0 && plan_->has_drafts()) listener_(drafts());
    if (plan_->num_constrained == 0) {
        done_.push_back(std::move(result_));
        plan_ = nullptr;
    }
}

std::vector<ChunkDrafts> FakeExecutor::drafts() {
    std::vector<ChunkDrafts> all;
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        if (c.constrained) all.push_back({c.slot, c.epoch, drafts_[i]});
    }
    return all;
}

/// Right for a while, then wrong; sometimes fewer than were asked for.
void FakeExecutor::propose(const ChunkPlan& c,
                           const Slot& slot,
                           std::vector<int32_t>* drafts) const {
    const int64_t room = slot.start.max_total - static_cast<int64_t>(slot.tokens.size());
    int64_t count = std::min<int64_t>(c.num_drafts, room - 1);
    uint64_t prefix = slot.prefix.back();
    if (mix(prefix ^ 0xF00Du) % 5 == 0) count /= 2;
    if (plan_->draft_budget != kAllDrafts) count = std::min(count, budget_left_);
    const auto share = static_cast<uint64_t>(shape_.accept_share * 1000);
    for (int64_t k = 0; k < count; ++k) {
        int32_t token = choose(prefix, slot.start.seed, slot.start.index, c.constrained);
        if (mix(prefix ^ 0xABBAu) % 1000 >= share) token = (token + 1) % kVocab;
        drafts->push_back(token);
        prefix = extend(prefix, token);
    }
}

void FakeExecutor::run_chunk(size_t i) {
    const ChunkPlan& c = plan_->chunks[i];
    Slot& slot = slots_[static_cast<size_t>(c.slot)];
    ChunkResult& r = result_.chunks[i];
    const auto known = static_cast<int64_t>(slot.tokens.size());
    const int64_t start = c.uncertain_start ? known - 1 : c.start_pos;
    r.start_pos = static_cast<int32_t>(start);
    if (c.sample && known == slot.start.max_total) return;  // complete since it was planned
    if (start < c.start_pos) fail("a chunk starts before the least it can");
    propose(c, slot, &drafts_[i]);
    budget_left_ -= static_cast<int64_t>(drafts_[i].size());
    for (const int32_t t : drafts_[i]) append(slot, t);
    r.drafts.num_proposed = r.drafts.num_verified = static_cast<int32_t>(drafts_[i].size());
    for (size_t k = 0; k < drafts_[i].size(); ++k) {
        r.drafts.confidence.push_back(
            static_cast<float>(mix(slot.prefix.back() + k) % 1000) / 250.0F - 1);
    }
    r.num_rows = c.num_rows() + r.drafts.num_verified;
    for (int64_t k = 0; k < r.num_rows; ++k) run_row(c, start, slot, start + k);
    slot.tokens.resize(static_cast<size_t>(known));
    slot.prefix.resize(static_cast<size_t>(known));
}

void FakeExecutor::run_row(const ChunkPlan& c, int64_t start, Slot& slot, int64_t p) {
    ++rows_run;
    const std::string who = "request " + std::to_string(slot.start.request) + "." +
                            std::to_string(slot.start.index) + " position " + std::to_string(p) +
                            ": ";
    if (p >= static_cast<int64_t>(slot.tokens.size())) return fail(who + "token not known yet");
    const size_t at = static_cast<size_t>(p);
    const size_t nth = static_cast<size_t>(p - start);
    const int32_t given = nth < c.token_ids.size() ? c.token_ids[nth] : kLastSampled;
    if (given != kLastSampled && given != slot.tokens[at]) fail(who + "wrong input id");
    if (p == start && !c.uncertain_start) {
        const int64_t from = std::max<int64_t>(0, p - shape_.lookback);
        const std::vector<int32_t> want(slot.tokens.begin() + from, slot.tokens.begin() + p);
        if (c.lookback != want) fail(who + "wrong lookback");
    }
    const auto cell = [&](int64_t q) -> uint64_t& {
        DI_CHECK_LT(static_cast<size_t>(q / shape_.block_tokens), c.block_ids.size());
        const int64_t block = c.block_ids[static_cast<size_t>(q / shape_.block_tokens)];
        return blocks_[static_cast<size_t>(block * shape_.block_tokens + q % shape_.block_tokens)];
    };
    if (p >= c.write_from) {
        cell(p) = slot.prefix[at];
    } else if (cell(p) != slot.prefix[at]) {
        fail(who + "replay over a block of something else");
    }
    for (int64_t q = 0; q < p; ++q) {
        if (cell(q) != slot.prefix[static_cast<size_t>(q)]) {
            return fail(who + "reads a wrong entry at " + std::to_string(q));
        }
    }
    rings_[static_cast<size_t>(c.slot * shape_.ring_len + p % shape_.ring_len)] = {p,
                                                                                   slot.prefix[at]};
    const int64_t low = std::max<int64_t>(c.window_floor, p - shape_.window + 1);
    for (int64_t q = low; q <= p; ++q) {
        const RingRow& row =
            rings_[static_cast<size_t>(c.slot * shape_.ring_len + q % shape_.ring_len)];
        if (row.position != q || row.prefix != slot.prefix[static_cast<size_t>(q)]) {
            return fail(who + "reads a wrong window row at " + std::to_string(q));
        }
    }
}

void FakeExecutor::sample(size_t i, const RowMask* mask) {
    const ChunkPlan& c = plan_->chunks[i];
    Slot& slot = slots_[static_cast<size_t>(c.slot)];
    ChunkResult& r = result_.chunks[i];
    if (r.num_rows == 0) return;
    if (r.start_pos + c.num_rows() != static_cast<int64_t>(slot.tokens.size()))
        fail("sampled a row that is not the last");
    for (size_t j = 0; j <= drafts_[i].size(); ++j) {
        if (mask != nullptr) {
            if (j >= mask->rows.size()) return fail("a row without its mask");
            if (mask->rows[j] != mask_of(slot.prefix.back())) fail("a mask of another position");
        }
        SampledToken t;
        t.id = choose(slot.prefix.back(), slot.start.seed, slot.start.index, mask != nullptr);
        append(slot, t.id);
        r.tokens.push_back(t);
        if (j == drafts_[i].size() || t.id != drafts_[i][j]) {
            r.drafts.bonus = true;
            return;
        }
        ++r.drafts.num_accepted;
        ++drafts_accepted;
    }
}

void FakeExecutor::launch_sampling(std::vector<RowMask> masks) {
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        if (!c.constrained) continue;
        for (const RowMask& m : masks) {
            if (m.slot == c.slot && m.epoch == c.epoch) sample(i, &m);
        }
    }
    done_.push_back(std::move(result_));
    plan_ = nullptr;
}

StepResult FakeExecutor::collect() {
    StepResult r = std::move(done_.front());
    done_.pop_front();
    return r;
}

}  // namespace deepinfer::sim
