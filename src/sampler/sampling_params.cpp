// SamplingParams::validate: every field against its stated range.
#include "deepinfer/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace deepinfer {
namespace {

std::string number(double v) {
    char buf[40];
    std::snprintf(buf, sizeof buf, "%.17g", v);
    char shorter[40];
    std::snprintf(shorter, sizeof shorter, "%.6g", v);
    double back = 0;
    return std::sscanf(shorter, "%lf", &back) == 1 && back == v ? shorter : buf;
}

Status invalid(const std::string& field, const std::string& found, const std::string& expected) {
    return {StatusCode::kInvalidArgument, field + " is " + found + ", expected " + expected};
}

Status check_range(const char* field, double v, double low, double high) {
    if (std::isfinite(v) && v >= low && v <= high) return {};
    return invalid(field, number(v), "a number from " + number(low) + " to " + number(high));
}

Status check_id(const std::string& field, int64_t id, int64_t vocab_size) {
    if (id >= 0 && id < vocab_size) return {};
    return invalid(
        field, std::to_string(id), "a token id from 0 to " + std::to_string(vocab_size - 1));
}

std::string indexed(const char* field, size_t i) {
    return std::string(field) + "[" + std::to_string(i) + "]";
}

Status check_ids(const char* field, const std::vector<int32_t>& ids, int64_t vocab_size) {
    for (size_t i = 0; i < ids.size(); ++i) {
        DI_RETURN_IF_ERROR(check_id(indexed(field, i), ids[i], vocab_size));
    }
    return {};
}

Status check_logprobs(const char* field, const std::optional<int>& k) {
    if (!k || (*k >= 0 && *k <= SamplingParams::kMaxLogprobs)) return {};
    return invalid(
        field, std::to_string(*k), "0 to " + std::to_string(SamplingParams::kMaxLogprobs));
}

Status check_bias(const SamplingParams& p, int64_t vocab_size) {
    if (p.logit_bias.size() > static_cast<size_t>(SamplingParams::kMaxLogitBias)) {
        return invalid("logit_bias",
                       std::to_string(p.logit_bias.size()) + " entries",
                       "at most " + std::to_string(SamplingParams::kMaxLogitBias));
    }
    std::vector<int32_t> ids;
    for (const auto& [id, bias] : p.logit_bias) {
        const std::string field = "logit_bias[" + std::to_string(id) + "]";
        DI_RETURN_IF_ERROR(check_id("key of " + field, id, vocab_size));
        DI_RETURN_IF_ERROR(check_range(field.c_str(), bias, -100, 100));
        ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    const auto twice = std::adjacent_find(ids.begin(), ids.end());
    if (twice != ids.end()) {
        return invalid(
            "logit_bias", "given twice for id " + std::to_string(*twice), "each id once");
    }
    return {};
}

Status check_stops(const SamplingParams& p, int64_t vocab_size) {
    if (p.stop.size() > static_cast<size_t>(SamplingParams::kMaxStops)) {
        return invalid("stop",
                       std::to_string(p.stop.size()) + " strings",
                       "at most " + std::to_string(SamplingParams::kMaxStops));
    }
    for (size_t i = 0; i < p.stop.size(); ++i) {
        if (p.stop[i].empty()) {
            return invalid(indexed("stop", i), "empty", "some text: an empty string is everywhere");
        }
        if (p.stop[i].size() > static_cast<size_t>(SamplingParams::kMaxStopBytes)) {
            return invalid(indexed("stop", i),
                           std::to_string(p.stop[i].size()) + " bytes",
                           "at most " + std::to_string(SamplingParams::kMaxStopBytes));
        }
    }
    return check_ids("stop_token_ids", p.stop_token_ids, vocab_size);
}

Status check_lengths(const SamplingParams& p) {
    if (p.max_tokens && *p.max_tokens < 1) {
        return invalid("max_tokens", std::to_string(*p.max_tokens), "at least 1");
    }
    if (p.min_tokens < 0) return invalid("min_tokens", std::to_string(p.min_tokens), "at least 0");
    if (p.max_tokens && p.min_tokens > *p.max_tokens) {
        return invalid("min_tokens",
                       std::to_string(p.min_tokens),
                       "at most max_tokens " + std::to_string(*p.max_tokens));
    }
    return {};
}

}  // namespace

Status SamplingParams::validate(int64_t vocab_size) const {
    DI_RETURN_IF_ERROR(check_range("temperature", temperature, 0, kMaxTemperature));
    if (top_k < -1) {
        return invalid("top_k", std::to_string(top_k), "a count, or 0 or -1 for off");
    }
    if (!(top_p > 0 && top_p <= 1)) {
        return invalid("top_p", number(top_p), "a number above 0 and up to 1");
    }
    DI_RETURN_IF_ERROR(check_range("min_p", min_p, 0, 1));
    if (!(std::isfinite(repetition_penalty) && repetition_penalty > 0)) {
        return invalid("repetition_penalty", number(repetition_penalty), "a finite number above 0");
    }
    DI_RETURN_IF_ERROR(check_range("frequency_penalty", frequency_penalty, -2, 2));
    DI_RETURN_IF_ERROR(check_range("presence_penalty", presence_penalty, -2, 2));
    DI_RETURN_IF_ERROR(check_bias(*this, vocab_size));
    if (allowed_token_ids) {
        if (allowed_token_ids->empty()) {
            return invalid("allowed_token_ids", "empty", "at least one id, or no such field");
        }
        DI_RETURN_IF_ERROR(check_ids("allowed_token_ids", *allowed_token_ids, vocab_size));
    }
    for (size_t i = 0; i < bad_words.size(); ++i) {
        if (bad_words[i].empty()) {
            return invalid(indexed("bad_words", i), "empty", "at least one token");
        }
        DI_RETURN_IF_ERROR(check_ids(indexed("bad_words", i).c_str(), bad_words[i], vocab_size));
    }
    DI_RETURN_IF_ERROR(check_lengths(*this));
    DI_RETURN_IF_ERROR(check_stops(*this, vocab_size));
    if (n < 1 || n > kMaxN) {
        return invalid("n", std::to_string(n), "1 to " + std::to_string(kMaxN));
    }
    DI_RETURN_IF_ERROR(check_logprobs("logprobs", logprobs));
    DI_RETURN_IF_ERROR(check_logprobs("prompt_logprobs", prompt_logprobs));
    if (!so_args.empty() && ignore_eos) {
        return invalid("ignore_eos", "true", "false together with so_args (the end token ends it)");
    }
    return {};
}

}  // namespace deepinfer
