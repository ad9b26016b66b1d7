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

void DraftProposer::choose(int k,
                           const Tensor& logits,
                           Tensor tokens,
                           const std::vector<Job>& jobs) {
    Backend& backend = model_.backend();
    const float* rows = logits_.read(backend, logits);
    chosen_.resize(jobs.size());
    for_rows(backend, static_cast<int64_t>(jobs.size()), [&](int64_t i, SamplerWorkspace& ws) {
        SlotState& state = *jobs[static_cast<size_t>(i)].state;
        RowPlan plan = *state.plan;
        plan.has_logprobs = false;
        SampleRow row = state.sample_row(rows + i * sampler_.vocab(), k);
        row.plan = &plan;
        const SampleResult r = sampler_.sample(row, ws);
        const int32_t token = r.empty_mask ? 0 : r.token;  // any id: it will be refused
        state.history.append(token);
        chosen_[static_cast<size_t>(i)] = token;
    });
    Device& device = backend.device();
    device.copy_to_device(
        device.stream(), tokens.data, chosen_.data(), chosen_.size() * sizeof(int32_t));
    device.stream().synchronize();
}

std::vector<Proposal> DraftProposer::propose(const std::vector<Job>& jobs) {
    std::vector<Proposal> out(jobs.size());
    if (jobs.empty()) return out;
    DraftBatch batch;
    batch.block_size = nextn_;
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
            choose(k, logits, tokens, jobs);
        };
    }
    const DraftResult result = model_.draft(batch, cache_, chooser);
    Device& device = model_.backend().device();
    const size_t n = jobs.size(), block = static_cast<size_t>(nextn_);
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
        if (override_) override_(*job.state, &p);
        DI_CHECK_LE(p.tokens.size(), p.confidence.size());
        p.confidence.resize(p.tokens.size());
    }
    return out;
}

}  // namespace deepinfer
