#include "engine/draft_proposer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/row_threads.h"

namespace deepinfer {
namespace {

/// Nothing but the largest logit matters: the model's own choice does.
bool takes_argmax(const RowPlan& p) {
    return p.greedy && !p.has_allowed && p.bad_words.empty() && p.min_tokens == 0 &&
           p.logit_bias.empty() && !p.has_penalties;
}

}  // namespace

void Proposal::keep(size_t count) {
    if (count >= tokens.size()) return;
    tokens.resize(count);
    confidence.resize(count);
    if (!q.empty()) q.resize(count);
}

DraftProposer::DraftProposer(
    DeepseekV41& model, const CacheView& cache, const Sampler& sampler, SpecRule rule, int32_t eos)
    : model_(model), cache_(cache), sampler_(sampler), rule_(rule), eos_(eos) {}

int32_t DraftProposer::choose_one(
    int k, const SlotState& state, const float* logits, SamplerWorkspace& ws, Proposal* out) const {
    RowPlan plan = *state.plan;
    plan.has_logprobs = false;
    const bool by_noise = rule_ == SpecRule::kCoupled || plan.greedy;
    if (rule_ == SpecRule::kArgmax) {
        plan.greedy = true;
        plan.truncation = Truncation();
    }
    SampleRow row = state.sample_row(logits, k);
    row.plan = &plan;
    if (by_noise || rule_ == SpecRule::kArgmax) {
        const SampleResult r = sampler_.sample(row, ws);
        const int32_t token = r.empty_mask ? 0 : r.token;  // any id: it will be refused
        if (!by_noise) out->q.push_back(Distribution::point(token));
        return token;
    }
    Distribution q = sampler_.distribution(row, ws);
    if (q.empty()) q = Distribution::point(0);
    const int32_t token = q.draw(named_uniform(
        state.seed, row.position, NoiseStream::kDraft, state.index, static_cast<uint32_t>(k) + 1));
    out->q.push_back(std::move(q));
    return token;
}

void DraftProposer::choose(int k,
                           const Tensor& logits,
                           Tensor tokens,
                           const std::vector<Job>& jobs,
                           std::vector<Proposal>* out) {
    Backend& backend = model_.backend();
    const float* rows = logits_.read(backend, logits);
    chosen_.resize(jobs.size());
    for_rows(backend, static_cast<int64_t>(jobs.size()), [&](int64_t i, SamplerWorkspace& ws) {
        const size_t at = static_cast<size_t>(i);
        SlotState& state = *jobs[at].state;
        const int32_t token = choose_one(k, state, rows + i * sampler_.vocab(), ws, &(*out)[at]);
        state.history.append(token);
        chosen_[at] = token;
    });
    Device& device = backend.device();
    device.copy_to_device(
        device.stream(), tokens.data, chosen_.data(), chosen_.size() * sizeof(int32_t));
    device.stream().synchronize();
}

std::vector<Proposal> DraftProposer::propose(const std::vector<Job>& jobs, int block_size) {
    std::vector<Proposal> out(jobs.size());
    if (jobs.empty()) return out;
    DraftBatch batch;
    batch.block_size = block_size;
    bool argmax = true;
    for (const Job& job : jobs) {
        const SlotState& s = *job.state;
        const auto position = static_cast<int32_t>(s.tokens.size()) - 1;
        batch.seqs.push_back({job.slot, position, s.tokens.back(), job.window_floor});
        argmax = argmax && takes_argmax(*s.plan);
    }
    DraftChooser chooser;
    if (!argmax) {
        chooser = [&](int k, const Tensor& logits, Tensor tokens) {
            choose(k, logits, tokens, jobs, &out);
        };
    }
    const DraftResult result = model_.draft(batch, cache_, chooser);
    Device& device = model_.backend().device();
    const size_t n = jobs.size(), block = static_cast<size_t>(block_size);
    std::vector<int32_t> tokens(n * block);
    device.copy_to_host(
        device.stream(), tokens.data(), result.tokens.data, tokens.size() * sizeof(int32_t));
    device.stream().synchronize();
    const float* confidence = logits_.read(model_.backend(), result.confidence);
    for (size_t i = 0; i < n; ++i) {
        const Job& job = jobs[i];
        if (!argmax) job.state->history.truncate(job.state->history.output().size() - block);
        Proposal& p = out[i];
        for (size_t k = 0; k < block && static_cast<int64_t>(k) < job.most; ++k) {
            p.tokens.push_back(tokens[k * n + i]);
            p.confidence.push_back(confidence[k * n + i]);
            if (job.state->stops_at(p.tokens.back(), eos_)) break;
        }
        if (!p.q.empty()) p.q.resize(p.tokens.size());
        if (override_) replace(*job.state, &p);
    }
    return out;
}

void DraftProposer::replace(const SlotState& state, Proposal* p) const {
    const std::vector<int32_t> own = p->tokens;
    override_(state, p);
    DI_CHECK_LE(p->tokens.size(), own.size());
    p->confidence.resize(p->tokens.size());
    if (p->q.empty()) return;
    p->q.resize(p->tokens.size());
    for (size_t k = 0; k < p->tokens.size(); ++k) {
        // Whoever replaced it did not draw it.
        if (p->tokens[k] != own[k]) p->q[k] = Distribution::point(p->tokens[k]);
    }
}

}  // namespace deepinfer
