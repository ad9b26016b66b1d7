// SamplingParams: how the tokens of one request are chosen and when it ends.
//
// Plain data with the defaults of an unconstrained, unseeded sample at temperature 1. validate()
// says by name which field is wrong; the engine calls it at submission, so a bad value is never
// half used.
//
// Order in which the fields act on a row of logits:
//   raw log-probabilities -> grammar mask -> allowed_token_ids -> bad_words -> min_tokens ->
//   logit_bias -> repetition, frequency and presence penalty -> temperature -> min_p -> top_k ->
//   top_p -> seeded Gumbel choice (temperature < 1e-5: the largest logit, lowest id on a tie)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

/// Which distribution reported log-probabilities describe.
enum class LogprobMode {
    kRaw,        ///< the model's: log-softmax of the logits before anything below acted on them
    kProcessed,  ///< the one sampled from: after masks, bias, penalties, temperature and truncation
};

/// Constraint on the output's form: enforced token by token, or refused at submission
/// (structured_output.h: from JSON, and what a constraint means).
struct StructuredOutputArgs {
    enum class Type {
        kNone,
        kRegex,          ///< the whole output matches `value`
        kJson,           ///< the output is JSON valid under the schema `value` (JSON text)
        kJsonObject,     ///< the output is a JSON object
        kEbnf,           ///< the output is derived from rule "root" of the grammar `value`
        kChoice,         ///< the output is one of `choices`
        kStructuralTag,  ///< free text with constrained regions (`value` is JSON text)
    };
    Type type = Type::kNone;
    std::string value;
    std::vector<std::string> choices;
    /// Refuse what cannot be enforced. False: leave such keywords out and list them.
    bool strict = true;
    /// JSON may hold blanks between its tokens (at most 20 in a row); false: one behind , and :
    bool any_whitespace = true;
    /// The constraint begins at the first generated token. False: where the prompt leaves reasoning
    /// open, it begins behind "</think>".
    bool in_reasoning = false;

    bool empty() const { return type == Type::kNone; }
    bool operator==(const StructuredOutputArgs&) const = default;

    static StructuredOutputArgs of(Type type, std::string value) {
        StructuredOutputArgs a;
        a.type = type;
        a.value = std::move(value);
        return a;
    }
};

struct SamplingParams {
    // Limits that validate() enforces; the server states the same numbers.
    static constexpr double kMaxTemperature = 2.0;
    static constexpr double kGreedyTemperature = 1e-5;  ///< below it a choice is greedy
    static constexpr int kMaxN = 16;
    static constexpr int kMaxLogprobs = 20;
    static constexpr int kMaxStops = 16;
    static constexpr int kMaxStopBytes = 256;
    static constexpr int kMaxLogitBias = 1024;

    /// Divides the logits, 0..2. Below 1e-5 the choice is greedy (so 0 is greedy).
    double temperature = 1.0;
    /// Keeps the k most likely tokens (ties cut by id). 0 or -1: off; more than the vocabulary:
    /// off.
    int64_t top_k = 0;
    /// Keeps the smallest set of most likely tokens whose probability reaches this, in (0, 1]. 1:
    /// off.
    double top_p = 1.0;
    /// Drops tokens less likely than this share of the most likely one, 0..1. 0: off.
    double min_p = 0.0;

    /// For every token of prompt or output: a positive logit is divided by it, a negative one
    /// multiplied. > 0; 1: off.
    double repetition_penalty = 1.0;
    /// Subtracted once per earlier occurrence in the output, -2..2.
    double frequency_penalty = 0.0;
    /// Subtracted once if the token occurs in the output, -2..2.
    double presence_penalty = 0.0;
    /// Added to the logits of these ids, -100..100 each; at most 1024 different ids. A masked token
    /// stays masked.
    std::vector<std::pair<int32_t, double>> logit_bias;
    /// If set, only these ids can be chosen. Must not be empty then.
    std::optional<std::vector<int32_t>> allowed_token_ids;
    /// Token sequences that must not appear in the output: the last token of one is banned while
    /// the output ends with the ones before it. The prompt does not count.
    std::vector<std::vector<int32_t>> bad_words;

    /// End-of-sequence and stop_token_ids are banned until this many tokens were generated. Counted
    /// in tokens, however many a step commits. <= max_tokens if that is set.
    int64_t min_tokens = 0;
    /// Ends the request after this many tokens, >= 1. Unset: as many as the context length allows.
    std::optional<int64_t> max_tokens;
    /// Ends the request where one of these texts appears in the output, at most 16 of 256 bytes
    /// each. An empty string is ignored. The prompt is not searched.
    std::vector<std::string> stop;
    /// Ends the request when one of these is generated.
    std::vector<int32_t> stop_token_ids;
    /// Goes on after the end-of-sequence token.
    bool ignore_eos = false;
    /// Keeps the matched stop string at the end of the text.
    bool include_stop_str = false;

    /// Number of sequences for one prompt, 1..16. They share the prompt's cache and differ by the
    /// sub-sequence index in the random numbers.
    int n = 1;
    /// Same seed, prompt and parameters: same tokens. Unset: drawn at admission and reported.
    std::optional<uint64_t> seq_seed;

    /// Log-probabilities to report for every generated token: the chosen one and this many most
    /// likely ones, 0..20. Unset: none.
    std::optional<int> logprobs;
    /// The same for every prompt token but the first, always of the model's raw distribution (masks
    /// and penalties are about generation). Unset: none.
    std::optional<int> prompt_logprobs;
    /// What `logprobs` describes.
    LogprobMode logprob_mode = LogprobMode::kRaw;

    /// Constraint on the form of the output.
    StructuredOutputArgs so_args;

    /// Scheduling class: smaller is served sooner.
    int priority = 0;

    bool operator==(const SamplingParams&) const = default;

    bool greedy() const { return temperature < kGreedyTemperature; }

    /// kInvalidArgument naming field, value and range. vocab_size: number of logits of the model.
    /// The constraint itself is judged where it is compiled.
    Status validate(int64_t vocab_size) const;
};

}  // namespace deepinfer
