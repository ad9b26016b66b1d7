#include "sim/fake_executor.h"

#include <algorithm>

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
    for (const ChunkPlan& c : plan_->chunks) {
        if (std::find(seen.begin(), seen.end(), c.slot) != seen.end())
            fail("a slot twice in a step");
        seen.push_back(c.slot);
        Slot& slot = slots_[static_cast<size_t>(c.slot)];
        ChunkResult r;
        r.slot = c.slot;
        r.epoch = c.epoch;
        if (slot.epoch != c.epoch) fail("chunk of an epoch that never started");
        for (int64_t k = 0; k < c.num_rows(); ++k) run_row(c, slot, c.start_pos + k);
        if (c.sample && !c.constrained) sample(c, false, &r);
        result_.chunks.push_back(r);
    }
    if (plan_->num_constrained == 0) {
        done_.push_back(std::move(result_));
        plan_ = nullptr;
    }
}

void FakeExecutor::run_row(const ChunkPlan& c, Slot& slot, int64_t p) {
    ++rows_run;
    const std::string who = "request " + std::to_string(slot.start.request) + "." +
                            std::to_string(slot.start.index) + " position " + std::to_string(p) +
                            ": ";
    if (p >= static_cast<int64_t>(slot.tokens.size())) return fail(who + "token not known yet");
    const size_t at = static_cast<size_t>(p);
    const int32_t given = c.token_ids[static_cast<size_t>(p - c.start_pos)];
    if (given != kLastSampled && given != slot.tokens[at]) fail(who + "wrong input id");
    if (p == c.start_pos) {
        const int64_t from = std::max<int64_t>(0, p - shape_.lookback);
        const std::vector<int32_t> want(slot.tokens.begin() + from, slot.tokens.begin() + p);
        if (c.lookback != want) fail(who + "wrong lookback");
    }
    const auto cell = [&](int64_t q) -> uint64_t& {
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

void FakeExecutor::sample(const ChunkPlan& c, bool constrained, ChunkResult* out) {
    Slot& slot = slots_[static_cast<size_t>(c.slot)];
    const int64_t end = c.start_pos + c.num_rows();
    if (end != static_cast<int64_t>(slot.tokens.size())) fail("sampled a row that is not the last");
    const uint64_t prefix = slot.prefix[static_cast<size_t>(end - 1)];
    out->token = choose(prefix, slot.start.seed, slot.start.index, constrained);
    out->sampled = true;
    append(slot, out->token);
}

void FakeExecutor::launch_sampling(std::vector<RowMask> masks) {
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        if (!c.constrained) continue;
        for (const RowMask& m : masks) {
            if (m.slot != c.slot || m.epoch != c.epoch) continue;
            const Slot& slot = slots_[static_cast<size_t>(c.slot)];
            if (m.words != mask_of(slot.prefix.back())) fail("a mask of another position");
            sample(c, true, &result_.chunks[i]);
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
