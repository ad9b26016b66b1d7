// Order of operations (engine spec 6.2): raw log-probabilities -> grammar mask -> allowed ids ->
// bad words -> min_tokens -> bias -> penalties -> greedy, or temperature -> min_p -> top_k -> top_p
// -> Gumbel argmax.
#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/sampling/sampling_math.h"

namespace deepinfer {
namespace {

namespace sm = sampling_math;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr double kMinusInfD = -std::numeric_limits<double>::infinity();

void apply_grammar_mask(const int32_t* mask, int64_t vocab, const float* from, float* to) {
    for (int64_t base = 0; base < vocab; base += 32) {
        const auto word = static_cast<uint32_t>(mask[base / 32]);
        const int64_t count = std::min<int64_t>(32, vocab - base);
        if (word == 0xFFFFFFFFu) {
            std::memcpy(to + base, from + base, static_cast<size_t>(count) * sizeof(float));
        } else if (word == 0) {
            std::fill_n(to + base, count, kMinusInf);
        } else {
            for (int64_t j = 0; j < count; ++j) {
                to[base + j] = ((word >> j) & 1u) != 0 ? from[base + j] : kMinusInf;
            }
        }
    }
}

/// The output ends with all but the last token of `word`.
bool prefix_matches(const std::vector<int32_t>& word, const std::vector<int32_t>& output) {
    const size_t prefix = word.size() - 1;
    return prefix <= output.size() &&
           std::equal(
               word.begin(), word.end() - 1, output.end() - static_cast<std::ptrdiff_t>(prefix));
}

/// Log-probabilities under weights of one row.
struct LogSoftmax {
    const float* logits;
    float max;
    double inv_temperature;
    double log_sum;

    double operator()(int32_t token) const {
        const float l = logits[token];
        if (!(l > kMinusInf)) return kMinusInfD;
        if (std::isinf(max)) return l == max ? -log_sum : kMinusInfD;
        return sm::scaled_logit(l, max, inv_temperature) - log_sum;
    }
};

LogSoftmax full_softmax(const RowKernels& kernels,
                        const float* logits,
                        int64_t vocab,
                        const RowScan& scan,
                        double inv_temperature) {
    if (std::isinf(scan.max)) {  // the +inf tokens share everything
        const auto count = std::count(logits, logits + vocab, scan.max);
        return {logits, scan.max, 1, std::log(static_cast<double>(count))};
    }
    const uint64_t sum = kernels.weight_sum(logits, vocab, scan.max, inv_temperature);
    return {logits, scan.max, inv_temperature, sm::log_weight_sum(sum)};
}

void sort_unique(std::vector<int32_t>* ids) {
    std::sort(ids->begin(), ids->end());
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

}  // namespace

RowPlan::RowPlan(const SamplingParams& p)
    : greedy(p.greedy()),
      inv_temperature(greedy ? 1.0 : 1.0 / p.temperature),
      has_allowed(p.allowed_token_ids.has_value()),
      bad_words(p.bad_words),
      min_tokens(p.min_tokens),
      stop_token_ids(p.stop_token_ids),
      logit_bias(p.logit_bias),
      has_penalties(p.repetition_penalty != 1 || p.frequency_penalty != 0 ||
                    p.presence_penalty != 0),
      repetition(p.repetition_penalty),
      frequency(p.frequency_penalty),
      presence(p.presence_penalty),
      has_logprobs(p.logprobs.has_value()),
      num_top_logprobs(p.logprobs.value_or(0)),
      logprob_mode(p.logprob_mode) {
    if (has_allowed) {
        allowed = *p.allowed_token_ids;
        sort_unique(&allowed);
    }
    if (!greedy) {
        truncation.min_weight = static_cast<uint64_t>(std::ldexp(p.min_p, sm::kWeightBits));
        truncation.top_k = std::max<int64_t>(p.top_k, 0);
        truncation.top_p = p.top_p;
    }
}

/// What sample() chooses from.
struct Sampler::Processed {
    const float* logits = nullptr;  ///< after masks, bias and penalties
    RowScan scan;                   ///< of those
    bool single = false;            ///< greedy, or +inf: scan.argmax is the choice
    bool truncated = false;         ///< only workspace.truncation.ids are left
    uint64_t weight = 0;            ///< of the kept tokens, if truncated
    int32_t nan_count = 0;          ///< of the model's logits
};

Sampler::Sampler(int64_t vocab,
                 std::vector<int32_t> eos_ids,
                 const RowKernels& kernels,
                 int64_t num_ids)
    : vocab_(vocab),
      num_ids_(num_ids > 0 ? num_ids : vocab),
      eos_ids_(std::move(eos_ids)),
      kernels_(&kernels) {
    DI_CHECK(vocab > 0 && vocab <= (int64_t{1} << 18));  // weight sums stay below 2^58
    DI_CHECK_LE(num_ids_, vocab);
    for (const int32_t id : eos_ids_) DI_CHECK(id >= 0 && id < num_ids_);
}

const float* Sampler::edit(const SampleRow& row, SamplerWorkspace& ws) const {
    const RowPlan& plan = *row.plan;
    static const TokenHistory kNothing;
    const TokenHistory& history = row.history != nullptr ? *row.history : kNothing;
    const float* logits = row.logits;
    float* edited = nullptr;
    const auto writable = [&] {
        if (edited != nullptr) return edited;
        ws.edited.resize(static_cast<size_t>(num_ids_));
        edited = ws.edited.data();
        if (row.grammar_mask != nullptr) {
            apply_grammar_mask(row.grammar_mask, num_ids_, row.logits, edited);
        } else {
            std::memcpy(edited, row.logits, static_cast<size_t>(num_ids_) * sizeof(float));
        }
        logits = edited;
        return edited;
    };

    if (row.grammar_mask != nullptr) writable();
    if (plan.has_allowed) {
        writable();
        ws.allowed.clear();
        for (const int32_t id : plan.allowed) ws.allowed.emplace_back(id, edited[id]);
        std::fill_n(edited, num_ids_, kMinusInf);
        for (const auto& [id, l] : ws.allowed) edited[id] = l;
    }
    for (const std::vector<int32_t>& word : plan.bad_words) {
        if (prefix_matches(word, history.output())) writable()[word.back()] = kMinusInf;
    }
    if (static_cast<int64_t>(history.output().size()) < plan.min_tokens) {
        for (const int32_t id : eos_ids_) writable()[id] = kMinusInf;
        for (const int32_t id : plan.stop_token_ids) writable()[id] = kMinusInf;
    }
    for (const auto& [id, bias] : plan.logit_bias) {
        float& l = writable()[id];
        l = sm::biased_logit(l, bias);
    }
    if (plan.has_penalties) {
        for (const TokenHistory::Entry& e : history.entries()) {
            if (e.output_count == 0 && !e.in_prompt) continue;
            if (e.token >= num_ids_) continue;  // a prompt may hold ids that have no logit
            float& l = writable()[e.token];
            l = sm::penalized_logit(
                l, plan.repetition, plan.frequency, plan.presence, e.output_count);
        }
    }
    return logits;
}

Sampler::Processed Sampler::process(const SampleRow& row, SamplerWorkspace& ws) const {
    DI_DCHECK(row.logits != nullptr && row.plan != nullptr);
    const RowPlan& plan = *row.plan;
    Processed p;
    p.logits = edit(row, ws);
    p.scan = kernels_->scan(p.logits, num_ids_);
    p.nan_count =
        p.logits == row.logits ? p.scan.nan_count : kernels_->scan(row.logits, num_ids_).nan_count;
    if (p.scan.argmax < 0) return p;
    p.single = plan.greedy || std::isinf(p.scan.max);
    if (!p.single && !plan.truncation.off(num_ids_)) {
        p.truncated = true;
        p.weight = truncate_row(*kernels_,
                                p.logits,
                                num_ids_,
                                p.scan,
                                plan.inv_temperature,
                                plan.truncation,
                                ws.truncation);
    }
    return p;
}

SampleResult Sampler::sample(const SampleRow& row, SamplerWorkspace& ws) const {
    const Processed p = process(row, ws);
    SampleResult result;
    result.nan_count = p.nan_count;
    if (p.scan.argmax < 0) {
        result.empty_mask = true;
        return result;
    }
    const double inv = row.plan->inv_temperature;
    const NoiseKey key{row.seed, row.position, static_cast<uint32_t>(row.stream), row.sub_sequence};
    const std::vector<int32_t>& ids = ws.truncation.ids;
    const auto num_ids = static_cast<int64_t>(ids.size());
    if (p.single) {
        result.token = p.scan.argmax;
    } else if (!p.truncated) {
        result.token =
            kernels_->gumbel_argmax(p.logits, num_ids_, p.scan.max, inv, key, p.scan.argmax).token;
    } else if (num_ids * 16 < num_ids_) {  // one block of noise a token, but few of them
        result.token =
            kernels_->gumbel_argmax_ids(p.logits, ids.data(), num_ids, p.scan.max, inv, key).token;
    } else {
        ws.dense.assign(static_cast<size_t>(num_ids_), kMinusInf);
        for (const int32_t id : ids) ws.dense[static_cast<size_t>(id)] = p.logits[id];
        result.token =
            kernels_->gumbel_argmax(ws.dense.data(), num_ids_, p.scan.max, inv, key, p.scan.argmax)
                .token;
    }
    if (row.plan->has_logprobs) add_logprobs(row, p, ws, &result);
    return result;
}

Distribution Sampler::distribution(const SampleRow& row,
                                   SamplerWorkspace& ws,
                                   int32_t* nan_count) const {
    const Processed p = process(row, ws);
    if (nan_count != nullptr) *nan_count = p.nan_count;
    if (p.scan.argmax < 0) return {};
    if (p.single) return Distribution::point(p.scan.argmax);
    Distribution d;
    std::vector<uint64_t> weights;
    uint64_t sum = 0;
    const auto add = [&](int32_t id) {
        const uint64_t w =
            sm::weight40(sm::scaled_logit(p.logits[id], p.scan.max, row.plan->inv_temperature));
        if (w == 0) return;
        d.ids.push_back(id);
        weights.push_back(w);
        sum += w;
    };
    if (p.truncated) {
        std::sort(ws.truncation.ids.begin(), ws.truncation.ids.end());
        for (const int32_t id : ws.truncation.ids) add(id);
    } else {
        for (int64_t id = 0; id < num_ids_; ++id) add(static_cast<int32_t>(id));
    }
    for (const uint64_t w : weights) {
        d.p.push_back(static_cast<double>(w) / static_cast<double>(sum));
    }
    return d;
}

SampleResult Sampler::describe(const SampleRow& row, int32_t token, SamplerWorkspace& ws) const {
    const Processed p = process(row, ws);
    SampleResult result;
    result.token = token;
    result.nan_count = p.nan_count;
    if (row.plan->has_logprobs) add_logprobs(row, p, ws, &result);
    return result;
}

void Sampler::add_logprobs(const SampleRow& row,
                           const Processed& p,
                           SamplerWorkspace& ws,
                           SampleResult* result) const {
    const RowPlan& plan = *row.plan;
    if (plan.logprob_mode == LogprobMode::kRaw) {
        SampleResult raw = score(row.logits, result->token, plan.num_top_logprobs, ws);
        result->logprob = raw.logprob;
        result->top_logprobs = std::move(raw.top_logprobs);
        return;
    }
    const LogSoftmax lp =
        p.truncated
            ? LogSoftmax{p.logits, p.scan.max, plan.inv_temperature, sm::log_weight_sum(p.weight)}
            : full_softmax(*kernels_, p.logits, num_ids_, p.scan, plan.inv_temperature);
    result->logprob = lp(result->token);
    if (plan.num_top_logprobs == 0) return;
    if (p.truncated) {
        keep_top(p.logits, plan.num_top_logprobs, true, ws.truncation);
    } else {
        top_ids(*kernels_, p.logits, num_ids_, plan.num_top_logprobs, ws.truncation);
    }
    for (const int32_t id : ws.truncation.ids) result->top_logprobs.push_back({id, lp(id)});
}

SampleResult Sampler::score(const float* logits,
                            int32_t token,
                            int num_top,
                            SamplerWorkspace& ws) const {
    DI_CHECK(token >= 0 && token < vocab_);
    // A prompt may hold an id that means no token; nothing else has to do with those.
    const int64_t num = token < num_ids_ ? num_ids_ : vocab_;
    SampleResult result;
    const RowScan scan = kernels_->scan(logits, num);
    result.token = token;
    result.nan_count = scan.nan_count;
    if (scan.argmax < 0) {
        result.logprob = kMinusInfD;
        return result;
    }
    const LogSoftmax lp = full_softmax(*kernels_, logits, num, scan, 1.0);
    result.logprob = lp(token);
    if (num_top > 0) {
        top_ids(*kernels_, logits, num, num_top, ws.truncation);
        for (const int32_t id : ws.truncation.ids) result.top_logprobs.push_back({id, lp(id)});
    }
    return result;
}

std::vector<int32_t> Sampler::support(const SampleRow& row, SamplerWorkspace& ws) const {
    const Processed p = process(row, ws);
    if (p.scan.argmax < 0) return {};
    if (p.single) return {p.scan.argmax};
    if (p.truncated) {
        std::vector<int32_t> ids = ws.truncation.ids;
        std::sort(ids.begin(), ids.end());
        return ids;
    }
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < num_ids_; ++id) {
        if (p.logits[id] > kMinusInf) ids.push_back(id);
    }
    return ids;
}

}  // namespace deepinfer
