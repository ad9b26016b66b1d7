// SamplingParams from JSON: one reader per member, each of which names itself when it refuses.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/env_flags.h"
#include "deepinfer/batch.h"
#include "deepinfer/structured_output.h"

namespace deepinfer {
namespace {

using Json = nlohmann::json;
using Reader = std::function<Status(const Json&, SamplingParams*)>;

Status wrong(const std::string& name, const Json& found, const std::string& expected) {
    std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    constexpr size_t kMost = 60;
    if (text.size() > kMost) text = text.substr(0, kMost) + "…";
    return Status(StatusCode::kInvalidArgument, name + " is " + text + ", expected " + expected);
}

template <typename T>
Reader number(const char* name, T SamplingParams::*field) {
    return [name, field](const Json& v, SamplingParams* p) -> Status {
        if (!v.is_number()) return wrong(name, v, "a number");
        p->*field = v.get<T>();
        return {};
    };
}

bool read_int(const Json& v, int64_t lo, int64_t hi, int64_t* out) {
    if (!v.is_number_integer()) return false;
    if (v.is_number_unsigned() &&
        v.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return false;
    }
    *out = v.get<int64_t>();
    return *out >= lo && *out <= hi;
}

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();

template <typename T>
Reader whole(const char* name, T SamplingParams::*field, int64_t lo = -kMany) {
    return [name, field, lo](const Json& v, SamplingParams* p) -> Status {
        int64_t value = 0;
        constexpr int64_t kMost = sizeof(T) > 4 ? std::numeric_limits<int64_t>::max() : kMany;
        if (!read_int(v, lo, kMost, &value)) return wrong(name, v, "a whole number");
        p->*field = static_cast<T>(value);
        return {};
    };
}

template <typename T>
Reader optional_whole(const char* name, std::optional<T> SamplingParams::*field) {
    return [name, field](const Json& v, SamplingParams* p) -> Status {
        int64_t value = 0;
        if (!read_int(v, -kMany, kMany, &value)) return wrong(name, v, "a whole number");
        p->*field = static_cast<T>(value);
        return {};
    };
}

Reader boolean(const char* name, bool SamplingParams::*field) {
    return [name, field](const Json& v, SamplingParams* p) -> Status {
        if (!v.is_boolean()) return wrong(name, v, "true or false");
        p->*field = v.get<bool>();
        return {};
    };
}

bool read_ids(const Json& v, std::vector<int32_t>* out) {
    if (!v.is_array()) return false;
    for (const Json& item : v) {
        int64_t id = 0;
        if (!read_int(item, -kMany, kMany, &id)) return false;
        out->push_back(static_cast<int32_t>(id));
    }
    return true;
}

Status read_seed(const Json& v, SamplingParams* p) {
    if (!v.is_number_integer() || (!v.is_number_unsigned() && v.get<int64_t>() < 0)) {
        return wrong("seq_seed", v, "a whole number from 0 to 2^64 - 1");
    }
    p->seq_seed = v.get<uint64_t>();
    return {};
}

Status read_stop(const Json& v, SamplingParams* p) {
    if (v.is_string()) {
        p->stop = {v.get<std::string>()};
        return {};
    }
    if (!v.is_array()) return wrong("stop", v, "a string or an array of strings");
    p->stop.clear();
    for (const Json& item : v) {
        if (!item.is_string()) return wrong("stop", item, "a string");
        p->stop.push_back(item.get<std::string>());
    }
    return {};
}

Status read_bias(const Json& v, SamplingParams* p) {
    if (!v.is_object()) return wrong("logit_bias", v, "an object of token id and value");
    p->logit_bias.clear();
    for (const auto& [key, value] : v.items()) {
        const std::optional<int64_t> id = parse_whole_number(key, 0, kMany);
        if (!id) return wrong("logit_bias", Json(key), "token ids as names");
        if (!value.is_number()) return wrong("logit_bias[" + key + "]", value, "a number");
        p->logit_bias.emplace_back(static_cast<int32_t>(*id), value.get<double>());
    }
    return {};
}

Status read_bad_words(const Json& v, SamplingParams* p) {
    if (!v.is_array()) return wrong("bad_words", v, "an array of token id arrays");
    p->bad_words.clear();
    for (const Json& item : v) {
        std::vector<int32_t> ids;
        if (!read_ids(item, &ids)) return wrong("bad_words", item, "an array of token ids");
        p->bad_words.push_back(std::move(ids));
    }
    return {};
}

Status read_mode(const Json& v, SamplingParams* p) {
    if (v != "raw" && v != "processed") return wrong("logprob_mode", v, "\"raw\" or \"processed\"");
    p->logprob_mode = v == "raw" ? LogprobMode::kRaw : LogprobMode::kProcessed;
    return {};
}

Status read_allowed(const Json& v, SamplingParams* p) {
    std::vector<int32_t> ids;
    if (!read_ids(v, &ids)) return wrong("allowed_token_ids", v, "an array of token ids");
    p->allowed_token_ids = std::move(ids);
    return {};
}

Status read_stop_ids(const Json& v, SamplingParams* p) {
    p->stop_token_ids.clear();
    if (!read_ids(v, &p->stop_token_ids))
        return wrong("stop_token_ids", v, "an array of token ids");
    return {};
}

const std::map<std::string, Reader>& readers() {
    using P = SamplingParams;
    static const std::map<std::string, Reader> table = {
        {"temperature", number("temperature", &P::temperature)},
        {"top_k", whole("top_k", &P::top_k)},
        {"top_p", number("top_p", &P::top_p)},
        {"min_p", number("min_p", &P::min_p)},
        {"repetition_penalty", number("repetition_penalty", &P::repetition_penalty)},
        {"frequency_penalty", number("frequency_penalty", &P::frequency_penalty)},
        {"presence_penalty", number("presence_penalty", &P::presence_penalty)},
        {"logit_bias", read_bias},
        {"allowed_token_ids", read_allowed},
        {"bad_words", read_bad_words},
        {"min_tokens", whole("min_tokens", &P::min_tokens)},
        {"max_tokens", optional_whole("max_tokens", &P::max_tokens)},
        {"stop", read_stop},
        {"stop_token_ids", read_stop_ids},
        {"ignore_eos", boolean("ignore_eos", &P::ignore_eos)},
        {"include_stop_str", boolean("include_stop_str", &P::include_stop_str)},
        {"n", whole("n", &P::n)},
        {"seq_seed", read_seed},
        {"logprobs", optional_whole("logprobs", &P::logprobs)},
        {"prompt_logprobs", optional_whole("prompt_logprobs", &P::prompt_logprobs)},
        {"logprob_mode", read_mode},
        {"priority", whole("priority", &P::priority)},
    };
    return table;
}

}  // namespace

Result<SamplingParams> sampling_params_from_json(const std::string& json) {
    const Json object = Json::parse(json, nullptr, false);
    if (!object.is_object()) {
        return Status(StatusCode::kInvalidArgument, "sampling is no JSON object");
    }
    SamplingParams params;
    for (const auto& [name, value] : object.items()) {
        if (name == "so_args") continue;  // below
        const auto reader = readers().find(name);
        if (reader == readers().end()) {
            return Status(StatusCode::kInvalidArgument, "sampling." + name + " is no known member");
        }
        if (value.is_null()) continue;
        DI_RETURN_IF_ERROR(reader->second(value, &params));
    }
    if (object.contains("so_args") && !object["so_args"].is_null()) {
        // From the text itself: a schema's members have an order, and numbers all their digits.
        const Result<std::string> text = json_member_text(json, {"so_args"});
        if (!text.ok()) return text.status();
        Result<StructuredOutputArgs> args = structured_output_from_json(text.value());
        if (!args.ok()) return args.status();
        params.so_args = std::move(args).value();
    }
    return params;
}

}  // namespace deepinfer
