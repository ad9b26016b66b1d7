#include "engine/model_runner.h"

#include <algorithm>

#include "base/check.h"
#include "engine/draft_budget.h"
#include "engine/draft_calibration.h"
#include "engine/row_threads.h"
#include "engine/sequence_images.h"

namespace deepinfer {
namespace {

/// Of a sequence whose window was left behind: rows that it must hold again before drafts.
constexpr int32_t kLeastDraftWindow = 32;

}  // namespace

ModelRunner::ModelRunner(DeepseekV41& model,
                         const CacheView& cache,
                         const Options& options,
                         const Clock& clock)
    : model_(model),
      cache_(cache),
      options_(options),
      copier_(model.backend().device(), cache),
      clock_(clock),
      sampler_(model.config().vocab_size, {options.eos_token_id}, row_kernels(), options.num_ids),
      proposer_(model, cache, sampler_, options.rule, options.eos_token_id),
      verifier_(sampler_, options.rule, options.eos_token_id),
      device_sampler_(model) {
    slots_.resize(static_cast<size_t>(cache.num_slots));
    draft_floor_.resize(slots_.size());
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::copy_slot(int32_t from, int32_t to) {
    copier_.copy_slot(from, to);
    draft_floor_[static_cast<size_t>(to)] = draft_floor_[static_cast<size_t>(from)];
}

/// Drafts for the chunks that want some. Nothing is in flight here: the step before has been
/// sampled, so every slot's newest token is its anchor.
void ModelRunner::propose(const StepPlan& plan) {
    proposals_.assign(plan.chunks.size(), {});
    if (!plan.has_drafts()) return;
    const int64_t begin = clock_.now_us();
    std::vector<DraftProposer::Job> jobs;
    std::vector<size_t> chunks;
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
        const ChunkPlan& c = plan.chunks[i];
        SlotState& slot = slot_of(c);
        const int64_t most = std::min<int64_t>(c.num_drafts, slot.room() - 1);
        if (most <= 0) continue;
        const int32_t floor = std::max(c.window_floor, draft_floor_[static_cast<size_t>(c.slot)]);
        const auto position = static_cast<int32_t>(slot.tokens.size()) - 1;
        // What a stage sees of so few rows is no ground for a guess.
        if (floor > c.window_floor && position - floor < kLeastDraftWindow) continue;
        jobs.push_back({c.slot, &slot, floor, most});
        chunks.push_back(i);
    }
    const int block = plan.draft_block > 0 ? plan.draft_block : options_.nextn;
    std::vector<Proposal> drafted = proposer_.propose(jobs, block);
    for (size_t i = 0; i < chunks.size(); ++i) {
        DraftOutcome& o = result_.chunks[chunks[i]].drafts;
        o.num_proposed = static_cast<int32_t>(drafted[i].tokens.size());
        o.confidence = drafted[i].confidence;
        proposals_[chunks[i]] = std::move(drafted[i]);
    }
    trim_proposals(plan);
    result_.draft_us = clock_.now_us() - begin;
}

/// Keeps what the step's budget allows.
void ModelRunner::trim_proposals(const StepPlan& plan) {
    if (plan.draft_budget == kAllDrafts && plan.least_survival <= 0) return;
    std::vector<std::vector<float>> survivals;
    for (const Proposal& p : proposals_) {
        survivals.push_back(survival(p.confidence, plan.draft_scales));
    }
    const std::vector<int32_t> counts =
        allocate_drafts(survivals, plan.draft_budget, plan.least_survival);
    for (size_t i = 0; i < counts.size(); ++i) proposals_[i].keep(static_cast<size_t>(counts[i]));
}

/// Pictures come first: a plan may run the rows of one that it completes.
void ModelRunner::encode(const EncodePlan& plan) {
    if (plan.empty()) return;
    for (const std::string& key : plan.drop) encoded_.erase(key);
    if (plan.stages == 0) return;
    if (!plan.begin.empty()) {
        encoding_ = plan.begin;
        std::vector<EncoderPicture> pictures;
        for (const EncodeItem& i : encoding_) {
            const ImagePlan& p = i.picture->plan;
            pictures.push_back({p.grid_h, p.grid_w, i.picture->patches.data()});
        }
        options_.encoder->begin(pictures);
    }
    const bool finished = options_.encoder->advance(plan.stages);
    DI_CHECK_EQ(finished, plan.finish);
    if (!finished) return;
    std::vector<EncodedImage> images = options_.encoder->take();
    for (size_t i = 0; i < images.size(); ++i) encoded_[encoding_[i].key] = std::move(images[i]);
    encoding_.clear();
}

void ModelRunner::add_image_rows(const SlotState& slot, SequenceChunk* chunk, Batch* batch) const {
    const int64_t begin = chunk->start_pos, back = static_cast<int64_t>(chunk->lookback.size());
    if (slot.images == nullptr || begin - back >= slot.images->end()) {
        if (!batch->image_rows.empty()) batch->image_rows.resize(batch->token_ids.size());
        return;
    }
    for (int64_t i = 0; i < back; ++i) {
        if (slot.images->at(begin - back + i) != nullptr)
            chunk->lookback[static_cast<size_t>(i)] = -1;
    }
    const int64_t rows = chunk->num_tokens, d = model_.config().hidden_size;
    batch->image_rows.resize(batch->token_ids.size());
    for (int64_t i = 0; i < rows; ++i) {
        const SequenceImage* image = slot.images->at(begin + i);
        if (image == nullptr) continue;
        const auto encoded = encoded_.find(image->key);
        DI_CHECK(encoded != encoded_.end());
        batch->image_rows[batch->token_ids.size() - static_cast<size_t>(rows - i)] = 1;
        batch->image_embeds.push_back(encoded->second.rows.data() + (begin + i - image->begin) * d);
    }
}

Batch ModelRunner::build_batch(const StepPlan& plan) {
    Batch batch;
    batch.draft_windows = plan.draft_windows;
    batch.seqs.reserve(plan.chunks.size());
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
        const ChunkPlan& c = plan.chunks[i];
        ChunkResult& r = result_.chunks[i];
        const SlotState& slot = slot_of(c);
        DI_CHECK_EQ(slot.epoch, c.epoch);
        const int64_t known = static_cast<int64_t>(slot.tokens.size());
        r.start_pos = c.uncertain_start ? static_cast<int32_t>(known) - 1 : c.start_pos;
        // Complete since this was planned (its last token came in the step before): no row is run.
        if (c.sample && slot.room() == 0) continue;
        if (c.sample) DI_CHECK_EQ(r.start_pos + c.num_rows(), known);
        const std::vector<int32_t>& drafts = proposals_[i].tokens;
        SequenceChunk s;
        s.slot = c.slot;
        s.start_pos = r.start_pos;
        s.num_tokens = c.num_rows() + static_cast<int32_t>(drafts.size());
        s.window_floor = c.window_floor;
        s.write_from = c.write_from;
        s.prompt_tokens = c.truncate_at;
        s.block_ids = c.block_ids;
        s.lookback = c.lookback;
        if (c.uncertain_start) {
            const int64_t from = std::max<int64_t>(0, r.start_pos - options_.lookback);
            s.lookback.assign(slot.tokens.begin() + from, slot.tokens.begin() + r.start_pos);
        }
        r.num_rows = s.num_tokens;
        if (!plan.draft_windows)
            draft_floor_[static_cast<size_t>(c.slot)] = s.start_pos + s.num_tokens;
        r.drafts.num_verified = static_cast<int32_t>(drafts.size());
        const auto first_row = static_cast<int32_t>(batch.token_ids.size());
        for (size_t k = 0; k < c.token_ids.size(); ++k) {
            const int32_t id = c.token_ids[k];
            const size_t position = static_cast<size_t>(r.start_pos) + k;
            batch.token_ids.push_back(id == kLastSampled ? slot.tokens[position] : id);
        }
        batch.token_ids.insert(batch.token_ids.end(), drafts.begin(), drafts.end());
        add_image_rows(slot, &s, &batch);
        batch.seqs.push_back(std::move(s));
        add_logit_rows(i, first_row, &batch);
    }
    return batch;
}

void ModelRunner::add_logit_rows(size_t chunk, int32_t first_row, Batch* batch) {
    const ChunkPlan& c = plan_->chunks[chunk];
    ChunkResult& r = result_.chunks[chunk];
    const auto add = [&](int32_t row) {
        batch->logit_rows.push_back(first_row + row);
        return static_cast<int64_t>(batch->logit_rows.size()) - 1;
    };
    const int32_t scored = c.prompt_logprobs ? c.num_rows() - (c.sample ? 1 : 0) : 0;
    for (int32_t k = 0; k < scored; ++k) {
        score_jobs_.push_back({chunk, add(k), c.start_pos + k, r.prompt_logprobs.size()});
        r.prompt_logprobs.emplace_back();
    }
    if (!c.sample) return;
    const SampleJob job{chunk, add(c.num_rows() - 1)};
    for (int32_t k = c.num_rows(); k < r.num_rows; ++k) add(k);
    (c.constrained ? constrained_jobs_ : free_jobs_).push_back(job);
}

void ModelRunner::launch(std::shared_ptr<const StepPlan> plan) {
    DI_CHECK(plan_ == nullptr);
    const int64_t begin = clock_.now_us();
    plan_ = std::move(plan);
    result_ = StepResult();
    result_.step = plan_->step;
    result_.chunks.resize(plan_->chunks.size());
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        result_.chunks[i].slot = plan_->chunks[i].slot;
        result_.chunks[i].epoch = plan_->chunks[i].epoch;
    }
    free_jobs_.clear();
    constrained_jobs_.clear();
    score_jobs_.clear();
    // Before the starts: a slot that starts anew may be the one whose state is saved.
    for (const WindowCopy& c : plan_->saves) copy_slot(c.from_slot, c.to_slot);
    for (const SlotStart& s : plan_->starts) {
        slots_[static_cast<size_t>(s.slot)].start(s);
        draft_floor_[static_cast<size_t>(s.slot)] = 0;
    }
    for (const WindowCopy& c : plan_->restores) copy_slot(c.from_slot, c.to_slot);
    for (const SlotFork& f : plan_->forks) {
        copy_slot(f.from_slot, f.to_slot);
        for (const auto& [from, to] : f.blocks) copier_.copy_block(from, to);
    }
    encode(plan_->encode);
    propose(*plan_);
    if (listener_ && plan_->num_constrained > 0 && plan_->has_drafts()) listener_(drafts());

    const Batch batch = build_batch(*plan_);
    if (!batch.token_ids.empty()) {
        const Tensor logits = model_.forward(batch, cache_);
        result_.status = fetch(logits);
        if (!result_.status.ok()) {
            free_jobs_.clear();
            constrained_jobs_.clear();
            score_jobs_.clear();
        }
    }
    const int64_t sampling = clock_.now_us();
    for_rows(
        model_.backend(),
        static_cast<int64_t>(score_jobs_.size()),
        [&](int64_t i, SamplerWorkspace& ws) { score(score_jobs_[static_cast<size_t>(i)], ws); });
    sample(free_jobs_, nullptr);
    const int64_t end = clock_.now_us();
    result_.sample_us = end - sampling;
    result_.step_us = end - begin;
    if (plan_->num_constrained == 0) complete();
}

Status ModelRunner::fetch(const Tensor& logits) {
    std::vector<SampleRequest> requests;
    bool needs_logits = !constrained_jobs_.empty() || !score_jobs_.empty();
    for (SampleJob& job : free_jobs_) {
        const SlotState& slot = slot_of(plan_->chunks[job.chunk]);
        if (!device_sampler_.works() || sampler_.num_ids() < sampler_.vocab() ||
            !device_sampler_.takes(*slot.plan, slot.history) ||
            !verifier_.takes_choices(proposals_[job.chunk])) {
            needs_logits = true;
            continue;
        }
        job.choice = static_cast<int64_t>(requests.size());
        const auto rows = static_cast<int64_t>(proposals_[job.chunk].tokens.size()) + 1;
        for (int64_t j = 0; j < rows; ++j) {
            const SampleRow row = slot.sample_row(nullptr, j);
            SampleRequest r;
            r.row = static_cast<int32_t>(job.logit_row + j);
            r.greedy = slot.plan->greedy ? 1 : 0;
            r.inv_temperature = slot.plan->inv_temperature;
            r.seed = row.seed;
            r.position = row.position;
            r.sub_sequence = row.sub_sequence;
            requests.push_back(r);
        }
    }
    Stream& stream = model_.backend().device().stream();
    if (!requests.empty()) DI_RETURN_IF_ERROR(device_sampler_.queue(logits, requests));
    if (needs_logits) logits_ = host_logits_.read(model_.backend(), logits);
    stream.synchronize();
    return stream.status();
}

std::vector<ChunkDrafts> ModelRunner::drafts() {
    DI_CHECK(plan_ != nullptr);
    std::vector<ChunkDrafts> all;
    for (size_t i = 0; i < plan_->chunks.size(); ++i) {
        const ChunkPlan& c = plan_->chunks[i];
        if (c.constrained) all.push_back({c.slot, c.epoch, proposals_[i].tokens});
    }
    return all;
}

void ModelRunner::launch_sampling(std::vector<RowMask> masks) {
    DI_CHECK(plan_ != nullptr);
    const int64_t begin = clock_.now_us();
    sample(constrained_jobs_, &masks);
    const int64_t spent = clock_.now_us() - begin;
    result_.sample_us += spent;
    result_.step_us += spent;
    complete();
}

void ModelRunner::complete() {
    done_.push_back(std::move(result_));
    plan_ = nullptr;
}

StepResult ModelRunner::collect() {
    DI_CHECK(!done_.empty());
    StepResult r = std::move(done_.front());
    done_.pop_front();
    return r;
}

void ModelRunner::sample(const std::vector<SampleJob>& jobs, const std::vector<RowMask>* masks) {
    std::vector<DraftVerifier::Job> todo;
    for (const SampleJob& job : jobs) {
        const ChunkPlan& c = plan_->chunks[job.chunk];
        DraftVerifier::Job v;
        v.state = &slot_of(c);
        const size_t rows = proposals_[job.chunk].tokens.size() + 1;
        if (job.choice >= 0)
            v.choices = device_sampler_.choices().subspan(static_cast<size_t>(job.choice), rows);
        else
            v.logits = logits_ + job.logit_row * sampler_.vocab();
        v.drafts = &proposals_[job.chunk];
        v.out = &result_.chunks[job.chunk];
        if (masks != nullptr) {
            for (const RowMask& m : *masks) {
                if (m.slot == c.slot && m.epoch == c.epoch) v.mask = &m;
            }
            if (v.mask == nullptr) continue;  // it ended meanwhile
        }
        todo.push_back(v);
    }
    for_rows(
        model_.backend(), static_cast<int64_t>(todo.size()), [&](int64_t i, SamplerWorkspace& ws) {
            verifier_.run(todo[static_cast<size_t>(i)], ws);
        });
}

void ModelRunner::score(const ScoreJob& job, SamplerWorkspace& workspace) {
    const SlotState& slot = slot_of(plan_->chunks[job.chunk]);
    const int32_t next = slot.tokens[static_cast<size_t>(job.position) + 1];
    const SampleResult r = sampler_.score(logits_ + job.logit_row * sampler_.vocab(),
                                          next,
                                          slot.params->prompt_logprobs.value_or(0),
                                          workspace);
    TokenLogprobs& out = result_.chunks[job.chunk].prompt_logprobs[job.prompt_at];
    out.token_id = r.token;
    out.logprob = r.logprob;
    for (const TokenLogprob& t : r.top_logprobs) out.top.emplace_back(t.token, t.logprob);
}

}  // namespace deepinfer
