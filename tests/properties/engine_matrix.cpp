#include "properties/engine_matrix.h"

#include <algorithm>

namespace deepinfer::testing {

std::string MatrixCase::name() const {
    return "batch " + std::to_string(batch) + ", budget " + std::to_string(budget) + ", threads " +
           std::to_string(threads) + (async ? ", async" : ", plain") + (caching ? ", cached" : "") +
           ", preempt " + std::to_string(preempt) + (kv_cache_bytes > 0 ? ", small pool" : "") +
           (repeat ? ", second run" : "") + ", nextn " + std::to_string(nextn) +
           (varlen ? ", varlen " + spec_budget : "") +
           (no_drafts > 0 ? ", without drafts every other " + std::to_string(no_drafts) : "") +
           (truncation.empty() ? "" : ", truncation " + truncation);
}

std::vector<Request> matrix_requests(int64_t vocab,
                                     int64_t count,
                                     int64_t long_prompt,
                                     int64_t new_tokens) {
    std::vector<Request> requests;
    for (int64_t i = 0; i < count; ++i) {
        Request r;
        // Every fourth prompt is long and shares its beginning with the other long ones.
        if (i % 4 == 3) {
            r.prompt_token_ids = random_ids(1000, long_prompt, vocab);
            const std::vector<int32_t> own = random_ids(static_cast<uint64_t>(i), 3 + i % 5, vocab);
            r.prompt_token_ids.insert(r.prompt_token_ids.end(), own.begin(), own.end());
        } else {
            r.prompt_token_ids = random_ids(static_cast<uint64_t>(i), 1 + (i * 7) % 40, vocab);
        }
        r.sampling.max_tokens = new_tokens + i % 3;
        r.sampling.ignore_eos = true;
        r.sampling.logprobs = 2;
        r.sampling.seq_seed = 7 + static_cast<uint64_t>(i);
        r.sampling.temperature = i % 2 == 0 ? 0.0 : 0.8;
        if (i % 5 == 1) {
            r.sampling.top_p = 0.9;
            r.sampling.repetition_penalty = 1.2;
            r.sampling.frequency_penalty = 0.3;
        }
        if (i % 8 == 2) r.sampling.n = 3;
        if (i % 8 == 5) r.sampling.prompt_logprobs = 1;
        requests.push_back(std::move(r));
    }
    return requests;
}

MatrixResult run_matrix_case(const std::string& checkpoint,
                             const MatrixCase& c,
                             const std::vector<Request>& requests) {
    EngineConfig config = lab_config(checkpoint);
    config.max_num_seqs = c.batch;
    config.max_num_batched_tokens = c.budget;
    config.threads = c.threads;
    config.async_scheduling = c.async;
    config.prefix_caching = c.caching;
    config.nextn = c.nextn;
    config.varlen = c.varlen;
    config.spec_auto_off = c.varlen;  // the law holds with the switch too
    config.spec_budget = c.spec_budget;
    config.truncation = c.truncation;
    config.replay = c.replay;
    if (c.kv_cache_bytes > 0) {
        config.kv_cache_bytes = c.kv_cache_bytes;
        config.max_model_len = 0;
    }
    EngineHooks hooks;
    if (c.preempt > 0) {
        const uint64_t cut = static_cast<uint64_t>(c.preempt * 4294967296.0);
        hooks.force_preempt = [cut](uint64_t step, const Sequence& seq) {
            uint64_t h =
                (step * 0x9E3779B97F4A7C15ull) ^ (seq.spec.request * 0xBF58476D1CE4E5B9ull);
            h = (h ^ (h >> 31)) * 0x94D049BB133111EBull;
            return (h >> 32) < cut;
        };
    }
    if (c.no_drafts > 0) {
        const uint64_t period = c.no_drafts;
        hooks.force_no_drafts = [period](uint64_t step) { return step / period % 2 == 1; };
    }
    EngineLab lab(config, hooks);
    if (c.repeat) lab.run(requests);
    MatrixResult result;
    for (const Completion& done : lab.run(requests)) result.digests.push_back(digest(done));
    result.preemptions = lab.scheduler().stats().preemptions;
    result.draft_rows = lab.scheduler().stats().draft_rows;
    result.hit_tokens = lab.scheduler().stats().prefix_hit_tokens;
    std::vector<Request> more;
    for (const size_t i : c.again) more.push_back(requests[i]);
    for (const Completion& done : lab.run(more)) {
        result.again.push_back(digest(done));
        result.again_hits += done.usage.cached_tokens;
    }
    return result;
}

}  // namespace deepinfer::testing
