#include "engine/model_runner.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

ModelRunner::ModelRunner(DeepseekV41& model,
                         const CacheView& cache,
                         int32_t eos_token_id,
                         const Clock& clock)
    : model_(model),
      cache_(cache),
      copier_(model.backend().device(), cache),
      clock_(clock),
      sampler_(model.config().vocab_size, {eos_token_id}) {
    slots_.resize(static_cast<size_t>(cache.num_slots));
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::start(const SlotStart& s) {
    Slot& slot = slots_[static_cast<size_t>(s.slot)];
    slot = Slot();
    slot.epoch = s.epoch;
    slot.tokens = s.tokens;
    const std::span<const int32_t> all(s.tokens);
    slot.history.set_prompt(all.first(static_cast<size_t>(s.prompt_len)));
    for (const int32_t id : all.subspan(static_cast<size_t>(s.prompt_len))) slot.history.append(id);
    slot.plan.emplace(*s.sampling);
    slot.params = s.sampling;
    slot.seed = s.seed;
    slot.index = static_cast<uint32_t>(s.index);
}

Batch ModelRunner::build_batch(const StepPlan& plan) {
    Batch batch;
    batch.seqs.reserve(plan.chunks.size());
    for (const ChunkPlan& c : plan.chunks) {
        const Slot& slot = slots_[static_cast<size_t>(c.slot)];
        DI_CHECK_EQ(slot.epoch, c.epoch);
        SequenceChunk s;
        s.slot = c.slot;
        s.start_pos = c.start_pos;
        s.num_tokens = c.num_rows();
        s.window_floor = c.window_floor;
        s.write_from = c.write_from;
        s.block_ids = c.block_ids;
        s.lookback = c.lookback;
        batch.seqs.push_back(std::move(s));
        for (size_t k = 0; k < c.token_ids.size(); ++k) {
            const size_t position = static_cast<size_t>(c.start_pos) + k;
            int32_t id = c.token_ids[k];
            // Without a token (its mask was empty) the sequence has ended and the row is a zombie.
            if (id == kLastSampled) id = position < slot.tokens.size() ? slot.tokens[position] : 0;
            batch.token_ids.push_back(id);
        }
    }
    return batch;
}

void ModelRunner::launch(std::shared_ptr<const StepPlan> plan) {
    DI_CHECK(plan_ == nullptr);
    const int64_t begin = clock_.now_us();
    plan_ = std::move(plan);
    result_ = StepResult();
    result_.step = plan_->step;
    result_.chunks.resize(plan_->chunks.size());
    for (const SlotStart& s : plan_->starts) start(s);
    for (const SlotFork& f : plan_->forks) {
        copier_.copy_slot(f.from_slot, f.to_slot);
        for (const auto& [from, to] : f.blocks) copier_.copy_block(from, to);
    }

    Batch batch = build_batch(*plan_);
    std::vector<RowJob> jobs;
    constrained_.clear();
    int32_t row = 0;
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        ChunkResult& r = result_.chunks[i];
        r.slot = c.slot;
        r.epoch = c.epoch;
        for (int32_t k = 0; k < c.num_rows(); ++k, ++row) {
            const bool sample = c.sample && k + 1 == c.num_rows();
            if (!sample && !c.prompt_logprobs) continue;
            RowJob job;
            job.chunk = i;
            job.logit_row = static_cast<int64_t>(batch.logit_rows.size());
            job.position = c.start_pos + k;
            job.sample = sample;
            if (!sample) {
                job.prompt_at = r.prompt_logprobs.size();
                r.prompt_logprobs.emplace_back();
            }
            batch.logit_rows.push_back(row);
            (sample && c.constrained ? constrained_ : jobs).push_back(job);
        }
    }
    if (!batch.token_ids.empty()) {
        const Tensor logits = model_.forward(batch, cache_);
        Device& device = model_.backend().device();
        const size_t count = static_cast<size_t>(logits.numel());
        if (device.host_accessible() && logits.dtype == DType::kF32) {
            logits_ = logits.ptr<float>();
        } else if (count > 0) {
            std::vector<uint8_t> raw(static_cast<size_t>(logits.bytes()));
            device.copy_to_host(device.stream(), raw.data(), logits.data, raw.size());
            device.stream().synchronize();
            host_logits_.resize(count);
            dispatch_acc(logits.dtype, [&](auto tag) {
                const auto* from = reinterpret_cast<const decltype(tag)*>(raw.data());
                for (size_t i = 0; i < count; ++i) host_logits_[i] = static_cast<float>(from[i]);
            });
            logits_ = host_logits_.data();
        }
    }
    const int64_t sampling = clock_.now_us();
    run_jobs(jobs);
    const int64_t end = clock_.now_us();
    result_.sample_us = end - sampling;
    result_.step_us = end - begin;
    if (plan_->num_constrained == 0) {
        done_.push_back(std::move(result_));
        plan_ = nullptr;
    }
}

void ModelRunner::launch_sampling(std::vector<RowMask> masks) {
    DI_CHECK(plan_ != nullptr);
    const int64_t begin = clock_.now_us();
    std::vector<RowJob> jobs;
    for (RowJob job : constrained_) {
        const ChunkPlan& c = plan_->chunks[job.chunk];
        for (const RowMask& m : masks) {
            if (m.slot != c.slot || m.epoch != c.epoch) continue;
            DI_CHECK_EQ(static_cast<int64_t>(m.words.size()), (sampler_.vocab() + 31) / 32);
            job.mask = reinterpret_cast<const int32_t*>(m.words.data());
            jobs.push_back(job);
        }
    }
    run_jobs(jobs);
    constrained_.clear();
    const int64_t spent = clock_.now_us() - begin;
    result_.sample_us += spent;
    result_.step_us += spent;
    done_.push_back(std::move(result_));
    plan_ = nullptr;
}

StepResult ModelRunner::collect() {
    DI_CHECK(!done_.empty());
    StepResult r = std::move(done_.front());
    done_.pop_front();
    return r;
}

void ModelRunner::run_jobs(const std::vector<RowJob>& jobs) {
    // Rows are independent, so how they are spread over threads cannot show in a result.
    auto* cpu = dynamic_cast<CpuStream*>(&model_.backend().device().stream());
    const auto part = [&](int64_t begin, int64_t end) {
        thread_local SamplerWorkspace workspace;
        for (int64_t i = begin; i < end; ++i) run_job(jobs[static_cast<size_t>(i)], workspace);
    };
    const int64_t n = static_cast<int64_t>(jobs.size());
    if (cpu != nullptr && n > 1) {
        cpu->pool().parallel_for(n, 1, part);
    } else {
        part(0, n);
    }
    commit_samples(jobs);
}

void ModelRunner::run_job(const RowJob& job, SamplerWorkspace& workspace) {
    const ChunkPlan& c = plan_->chunks[job.chunk];
    const Slot& slot = slots_[static_cast<size_t>(c.slot)];
    ChunkResult& out = result_.chunks[job.chunk];
    const float* logits = logits_ + job.logit_row * sampler_.vocab();
    SampleResult r;
    if (job.sample) {
        SampleRow row;
        row.logits = logits;
        row.plan = &*slot.plan;
        row.history = &slot.history;
        row.position = static_cast<uint32_t>(job.position + 1);
        row.seed = slot.seed;
        row.sub_sequence = slot.index;
        row.grammar_mask = job.mask;
        r = sampler_.sample(row, workspace);
    } else {
        const int32_t next = slot.tokens[static_cast<size_t>(job.position) + 1];
        r = sampler_.score(logits, next, slot.params->prompt_logprobs.value_or(0), workspace);
    }
    TokenLogprobs& logprobs = job.sample ? out.logprobs : out.prompt_logprobs[job.prompt_at];
    logprobs.token_id = r.token;
    logprobs.logprob = r.logprob;
    for (const TokenLogprob& t : r.top_logprobs) logprobs.top.emplace_back(t.token, t.logprob);
    if (!job.sample) return;
    out.sampled = !r.empty_mask;
    out.token = r.token;
    out.empty_mask = r.empty_mask;
    out.nan_logits = r.nan_count > 0;
}

void ModelRunner::commit_samples(const std::vector<RowJob>& jobs) {
    for (const RowJob& job : jobs) {
        const ChunkResult& r = result_.chunks[job.chunk];
        if (!job.sample || !r.sampled) continue;
        Slot& slot = slots_[static_cast<size_t>(r.slot)];
        slot.tokens.push_back(r.token);
        slot.history.append(r.token);
    }
}

}  // namespace deepinfer
