// Sampler: logits of one row -> one token. A pure function: the result depends on the row alone,
// never on other rows, threads, instruction set or time.
//
// It is f(prefix) of coupled speculation: a drafter that calls it with its own logits and the same
// seed and position draws with the same noise, and verification accepts a draft iff it equals the
// token chosen here.
//
// Read next: row_kernels.h (passes over the vocabulary), truncation.h (min_p, top_k, top_p),
// sampling_math.h (arithmetic), stop_matcher.h (stop strings).
#pragma once

#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "deepinfer/sampling_params.h"
#include "sampler/distribution.h"
#include "sampler/row_kernels.h"
#include "sampler/token_history.h"
#include "sampler/truncation.h"

namespace deepinfer {

/// SamplingParams prepared for the step loop. Made once per request; immutable, shared by its rows.
struct RowPlan {
    explicit RowPlan(const SamplingParams& params);

    bool greedy = false;
    double inv_temperature = 1;  ///< 1 when greedy
    Truncation truncation;       ///< off when greedy

    bool has_allowed = false;
    std::vector<int32_t> allowed;  ///< ascending, unique
    std::vector<std::vector<int32_t>> bad_words;
    int64_t min_tokens = 0;
    std::vector<int32_t> stop_token_ids;
    std::vector<std::pair<int32_t, double>> logit_bias;
    bool has_penalties = false;
    double repetition = 1, frequency = 0, presence = 0;

    bool has_logprobs = false;
    int num_top_logprobs = 0;
    LogprobMode logprob_mode = LogprobMode::kRaw;
};

/// One row. Pointers are borrowed for the call.
struct SampleRow {
    const float* logits = nullptr;  ///< [vocab] fp32, the model's; not written
    const RowPlan* plan = nullptr;
    /// Prompt, output and, for row j of a verification, the drafts before it. Null: empty.
    const TokenHistory* history = nullptr;
    uint32_t position = 0;  ///< of the token to be generated
    uint64_t seed = 0;      ///< seq_seed
    uint32_t sub_sequence = 0;
    NoiseStream stream = NoiseStream::kTarget;
    /// [ceil(vocab/32)] words, bit v mod 32 of word v/32 set: token v is allowed. Null: all are.
    const int32_t* grammar_mask = nullptr;
};

struct TokenLogprob {
    int32_t token = -1;
    double logprob = 0;  ///< natural log; -inf if the token cannot be chosen
};

struct SampleResult {
    int32_t token = -1;       ///< -1 iff empty_mask
    bool empty_mask = false;  ///< nothing was left to choose: the request ends with that reason
    int32_t nan_count = 0;    ///< NaN logits of the row (treated as -inf): the request is flagged
    double logprob = 0;       ///< of `token`, if the plan asks for log-probabilities
    std::vector<TokenLogprob> top_logprobs;  ///< most likely first, ties by id
};

/// Scratch memory of one thread; grows to the vocabulary once.
struct SamplerWorkspace {
    std::vector<float> edited;  ///< logits after masks, bias and penalties
    std::vector<float> dense;   ///< the same with truncated tokens at -inf
    std::vector<std::pair<int32_t, float>> allowed;
    TruncationWorkspace truncation;
};

class Sampler {
  public:
    /// vocab: logits per row. eos_ids: banned, with the request's stop ids, until min_tokens.
    /// num_ids: ids that may be chosen are below it, all if 0; logits beyond are never looked at.
    Sampler(int64_t vocab,
            std::vector<int32_t> eos_ids,
            const RowKernels& kernels = row_kernels(),
            int64_t num_ids = 0);

    int64_t vocab() const { return vocab_; }
    int64_t num_ids() const { return num_ids_; }

    SampleResult sample(const SampleRow& row, SamplerWorkspace& workspace) const;

    /// The probabilities of what sample() chooses from (one id if greedy; none if empty_mask):
    /// integer weights over their sum.
    Distribution distribution(const SampleRow& row,
                              SamplerWorkspace& workspace,
                              int32_t* nan_count = nullptr) const;
    /// As if sample() had chosen `token`: its log-probabilities and the row's NaN count.
    SampleResult describe(const SampleRow& row, int32_t token, SamplerWorkspace& workspace) const;

    /// Ids that sample() may choose from, ascending: for tests and for rules that need the support
    /// of the processed distribution. A greedy row gives its one token.
    std::vector<int32_t> support(const SampleRow& row, SamplerWorkspace& workspace) const;

    /// Raw log-probability of `token` and of the num_top most likely ones (prompt
    /// log-probabilities).
    SampleResult score(const float* logits,
                       int32_t token,
                       int num_top,
                       SamplerWorkspace& workspace) const;

  private:
    struct Processed;
    Processed process(const SampleRow& row, SamplerWorkspace& workspace) const;
    const float* edit(const SampleRow& row, SamplerWorkspace& workspace) const;
    void add_logprobs(const SampleRow& row,
                      const Processed& processed,
                      SamplerWorkspace& workspace,
                      SampleResult* result) const;

    int64_t vocab_, num_ids_;
    std::vector<int32_t> eos_ids_;
    const RowKernels* kernels_;
};

}  // namespace deepinfer
