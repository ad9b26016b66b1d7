// Native batch lines: JSON to a request, a completion to JSON.
#include <nlohmann/json.hpp>
#include <set>

#include "deepinfer/json_guard.h"
#include "deepinfer/structured_output.h"
#include "engine/batch_runner.h"
#include "engine/json_text.h"

namespace deepinfer {
namespace {

using Json = nlohmann::json;

Status bad(const std::string& message) {
    return Status(StatusCode::kInvalidArgument, message);
}

/// The member a message is about: its first word, if that is a name.
std::string param_of(const std::string& message) {
    const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.0123456789");
    const std::string word = message.substr(0, end);
    static const std::set<std::string> kNoNames = {"prompt", "the", "a", "an", "no"};
    const bool name = word.find('_') != std::string::npos || word == "temperature" || word == "n" ||
                      word == "stop" || word == "logprobs" || word == "messages" ||
                      word == "sampling" || word == "id" || word == "priority" ||
                      word.rfind("sampling.", 0) == 0;
    return name && kNoNames.count(word) == 0 ? word : "";
}

Result<std::vector<int32_t>> read_token_ids(const Json& v) {
    if (!v.is_array()) return bad("prompt_token_ids is no array of token ids");
    std::vector<int32_t> ids;
    for (const Json& item : v) {
        const bool fits = item.is_number_integer() && item >= INT32_MIN && item <= INT32_MAX;
        if (!fits)
            return bad("prompt_token_ids[" + std::to_string(ids.size()) + "] is no token id");
        ids.push_back(item.get<int32_t>());
    }
    return ids;
}

/// data: URLs, one per image token of the ids.
Result<std::vector<ImageInput>> read_images(const Json& v) {
    if (!v.is_array()) return bad("images is no array of data: URLs");
    std::vector<ImageInput> images;
    for (const Json& url : v) {
        const std::string where = "images[" + std::to_string(images.size()) + "]";
        if (!url.is_string()) return bad(where + " is no data: URL");
        Result<ImageInput> image = image_from_url(url.get<std::string>());
        if (!image.ok())
            return Status(image.status().code(), where + ": " + image.status().message());
        images.push_back(std::move(image).value());
    }
    return images;
}

std::vector<int32_t> encode_raw(const Engine& engine, const std::string& text) {
    std::vector<int32_t> ids = engine.tokenizer().encode(text);
    const int32_t bos = engine.tokenizer().bos_id();
    if (bos >= 0 && (ids.empty() || ids[0] != bos)) ids.insert(ids.begin(), bos);
    return ids;
}

std::string logprob_members(const SamplingParams& sampling, const CompletionChoice& choice) {
    std::string values = "[", hex = "[", top = "[";
    for (const TokenLogprobs& t : choice.logprobs) {
        const char* comma = values.size() > 1 ? "," : "";
        values += comma + json_number(t.logprob);
        hex += comma + json_string(hex_float(t.logprob));
        top += std::string(comma) + "[";
        for (size_t i = 0; i < t.top.size(); ++i) {
            if (i > 0) top += ',';
            top += "[" + std::to_string(t.top[i].first) + "," + json_number(t.top[i].second) + "]";
        }
        top += "]";
    }
    std::string members = ",\"logprobs\":" + values + "],\"logprobs_hex\":" + hex + "]";
    if (*sampling.logprobs > 0) members += ",\"top_logprobs\":" + top + "]";
    return members;
}

/// One per prompt token, spans of pictures included; the first has none.
std::string prompt_logprob_members(const CompletionChoice& choice) {
    std::string values = "[", hex = "[";
    for (const TokenLogprobs& t : choice.prompt_logprobs) {
        const char* comma = values.size() > 1 ? "," : "";
        const bool none = t.token_id < 0;
        values += comma + (none ? "null" : json_number(t.logprob));
        hex += comma + (none ? "null" : json_string(hex_float(t.logprob)));
    }
    return ",\"prompt_logprobs\":" + values + "],\"prompt_logprobs_hex\":" + hex + "]";
}

}  // namespace

Result<BatchJob> read_native_line(const Engine& engine,
                                  const std::string& line,
                                  const std::string& fallback_id,
                                  const RenderFunction& render,
                                  std::string* id) {
    *id = fallback_id;
    const Json object = Json::parse(line, nullptr, false);
    if (object.is_discarded()) return bad("the line is no JSON");
    if (!object.is_object()) return bad("the line is no JSON object");
    if (const auto twice = repeated_json_key(line)) {
        return bad("the member '" + *twice + "' stands there twice");
    }
    if (object.contains("id")) {
        if (!object["id"].is_string()) return bad("id is no string");
        *id = object["id"].get<std::string>();
    }
    static const std::set<std::string> kConversation = {
        "messages", "tools", "thinking", "reasoning_effort"};
    static const std::set<std::string> kOthers = {
        "id", "prompt", "prompt_token_ids", "images", "sampling"};
    Json conversation = Json::object();
    for (const auto& [name, value] : object.items()) {
        if (kConversation.count(name) != 0) {
            conversation[name] = value;
        } else if (kOthers.count(name) == 0) {
            return bad(name + " is no known member of a batch line");
        }
    }
    const int forms = static_cast<int>(object.contains("messages")) +
                      static_cast<int>(object.contains("prompt")) +
                      static_cast<int>(object.contains("prompt_token_ids"));
    if (forms != 1) return bad("expected exactly one of messages, prompt and prompt_token_ids");
    if (!object.contains("messages") && !conversation.empty()) {
        return bad(conversation.begin().key() + " goes with messages only");
    }

    if (object.contains("images") && !object.contains("prompt_token_ids")) {
        return bad("images goes with prompt_token_ids only; in messages they are image_url parts");
    }

    BatchJob job;
    job.id = *id;
    job.request.id = *id;
    if (object.contains("sampling") && !object["sampling"].is_null()) {
        if (!object["sampling"].is_object()) return bad("sampling is no JSON object");
        std::string text = object["sampling"].dump();
        if (object["sampling"].contains("so_args")) {  // the schema in it keeps its order
            Result<std::string> whole = json_member_text(line, {"sampling"});
            if (!whole.ok()) return whole.status();
            text = std::move(whole).value();
        }
        Result<SamplingParams> sampling = sampling_params_from_json(text);
        if (!sampling.ok()) return sampling.status();
        job.request.sampling = std::move(sampling).value();
    }
    if (object.contains("prompt")) {
        if (!object["prompt"].is_string()) return bad("prompt is no string");
        job.request.prompt_token_ids = encode_raw(engine, object["prompt"].get<std::string>());
    } else if (object.contains("prompt_token_ids")) {
        Result<std::vector<int32_t>> ids = read_token_ids(object["prompt_token_ids"]);
        if (!ids.ok()) return ids.status();
        job.request.prompt_token_ids = std::move(ids).value();
        if (object.contains("images")) {
            Result<std::vector<ImageInput>> images = read_images(object["images"]);
            if (!images.ok()) return images.status();
            job.request.images = std::move(images).value();
        }
    } else {
        if (!render) {
            return Status(StatusCode::kUnimplemented,
                          "messages: no chat template is set up for this run");
        }
        Result<RenderedPrompt> rendered = render(conversation.dump(), &job.request.sampling);
        if (!rendered.ok()) return rendered.status();
        job.request.prompt_token_ids = std::move(rendered->prompt_token_ids);
        job.request.images = std::move(rendered->images);
        job.make_parser = std::move(rendered->make_parser);
    }
    job.format = [name = job.id, sampling = job.request.sampling](
                     const Completion& completion, const std::vector<ParsedOutput>& parsed) {
        return format_native_answer(name, sampling, completion, parsed);
    };
    return job;
}

std::string format_native_answer(const std::string& id,
                                 const SamplingParams& sampling,
                                 const Completion& completion,
                                 const std::vector<ParsedOutput>& parsed) {
    std::string outputs = "[";
    for (size_t i = 0; i < completion.choices.size(); ++i) {
        const CompletionChoice& choice = completion.choices[i];
        const ParsedOutput& p = parsed[i];
        if (i > 0) outputs += ',';
        outputs += "{\"text\":" + json_string(p.text) +
                   ",\"reasoning\":" + json_string(p.reasoning) +
                   ",\"token_ids\":" + json_ids(choice.token_ids);
        if (sampling.logprobs) outputs += logprob_members(sampling, choice);
        if (!choice.prompt_logprobs.empty()) outputs += prompt_logprob_members(choice);
        if (!p.extra_json.empty()) outputs += "," + p.extra_json;
        outputs += ",\"finish_reason\":" + json_string(p.finish_reason) + "}";
    }
    JsonLine usage;
    usage.integer("prompt_tokens", completion.usage.prompt_tokens);
    usage.integer("cached_tokens", completion.usage.cached_tokens);
    usage.integer("completion_tokens", completion.usage.completion_tokens);
    JsonLine j;
    j.text("id", id).raw("outputs", outputs + "]").raw("usage", usage.str());
    if (!completion.constraint_notes.empty()) {
        std::string notes;
        for (const std::string& note : completion.constraint_notes)
            notes += (notes.empty() ? "" : ",") + json_string(note);
        j.raw("constraint_notes", "[" + notes + "]");
    }
    j.raw("error", "null");
    return j.str();
}

std::string format_native_error(const std::string& id, const Status& error) {
    JsonLine usage;
    usage.integer("prompt_tokens", 0).integer("cached_tokens", 0).integer("completion_tokens", 0);
    JsonLine e;
    e.text("code", status_code_name(error.code())).text("message", error.message());
    const std::string param = param_of(error.message());
    e.raw("param", param.empty() ? "null" : json_string(param));
    JsonLine j;
    j.text("id", id).raw("outputs", "[]").raw("usage", usage.str()).raw("error", e.str());
    return j.str();
}

}  // namespace deepinfer
