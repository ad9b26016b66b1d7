// /v1/completions: text (or ids) goes on, without any conversation (prompt spec 7.3).
#include <algorithm>
#include <cmath>

#include "recipe/fields.h"
#include "recipe/utf8_stream.h"
#include "server/api.h"
#include "server/constraints.h"

namespace deepinfer::server {
namespace {

using recipe::ApiError;
using recipe::Fields;
using recipe::Json;

struct CompletionsRequest {
    std::string model;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<std::string> echo_texts;  ///< what `echo` repeats, one a prompt
    recipe::RequestSampling sampling;
    std::vector<std::string> stop;
    std::string cache_salt;
    std::string user;
    std::optional<int> logprobs;
    bool echo = false;
    bool no_tokens = false;  ///< max_tokens 0: only the prompt is looked at
    bool stream = false;
    bool include_usage = false;
};

// ------------------------------------------------------------------ the body

class Reader {
  public:
    Reader(const ServerState& state, const Json& body)
        : state_(state), tokenizer_(state.backend()->tokenizer()), body_(body, "") {}

    CompletionsRequest read() {
        r_.model = body_.required_string("model");
        const auto& names = state_.config.served_model_names;
        if (std::find(names.begin(), names.end(), r_.model) == names.end()) {
            ApiError error = api_error(404,
                                       "not_found_error",
                                       "there is no model '" + r_.model.substr(0, 100) + "'",
                                       "model_not_found");
            error.param = "model";
            throw recipe::Refusal(error);
        }
        sampling();
        switches();
        prompts();
        return std::move(r_);
    }

  private:
    void sampling() {
        constexpr int64_t kMax = 2147483647;
        recipe::RequestSampling& s = r_.sampling;
        s.temperature = body_.number_in("temperature", 0, 2).value_or(1.0);
        s.top_p = body_.number_in("top_p", 0, 1, true).value_or(1.0);
        s.presence_penalty = body_.number_in("presence_penalty", -2, 2).value_or(0);
        s.frequency_penalty = body_.number_in("frequency_penalty", -2, 2).value_or(0);
        s.repetition_penalty = body_.number_in("repetition_penalty", 0, 100, true).value_or(1);
        s.min_p = body_.number_in("min_p", 0, 1).value_or(0);
        s.top_k = std::max<int64_t>(0, body_.integer_in("top_k", -1, kMax).value_or(0));
        s.min_tokens = body_.integer_in("min_tokens", 0, kMax).value_or(0);
        s.ignore_eos = body_.boolean("ignore_eos").value_or(false);
        s.n = static_cast<int>(body_.integer_in("n", 1, SamplingParams::kMaxN).value_or(1));
        const int64_t best_of = body_.integer_in("best_of", 1, SamplingParams::kMaxN).value_or(s.n);
        if (best_of != s.n)
            recipe::refuse("best_of is " + std::to_string(best_of) + ", expected n, " +
                               std::to_string(s.n) + ": answers are not ranked here",
                           "best_of");
        if (const auto seed = body_.integer_in("seed", 0, INT64_MAX))
            s.seed = static_cast<uint64_t>(*seed);
        s.max_tokens = body_.integer_in("max_tokens", 0, kMax).value_or(16);
        if (const std::vector<Json>* ids = body_.array("stop_token_ids")) {
            for (size_t i = 0; i < ids->size(); ++i) {
                const std::string place = recipe::indexed("stop_token_ids", i);
                const std::optional<int64_t> id = (*ids)[i].as_int64();
                if (!id) recipe::refuse(place + " is no token id", place);
                s.stop_token_ids.push_back(*id);
            }
        }
        if (const auto bias = body_.object("logit_bias")) {
            for (const Json::Member& member : bias->json().members()) {
                const std::optional<int64_t> id = Json::integer(member.first).as_int64();
                const double value = member.second.is_number() ? member.second.as_double() : 1000;
                if (!id || !(value >= -100 && value <= 100))
                    recipe::refuse("logit_bias." + member.first.substr(0, 40) +
                                       ": expected a token id and a number in [-100, 100]",
                                   "logit_bias");
                s.logit_bias.emplace_back(*id, value);
            }
        }
        stops();
    }

    void stops() {
        const Json* stop = body_.get("stop");
        if (stop == nullptr) return;
        if (stop->is_string()) {
            r_.stop.push_back(stop->as_string());
        } else {
            for (const Json& item : *body_.array("stop")) {
                if (!item.is_string()) recipe::refuse("stop: expected strings", "stop");
                r_.stop.push_back(item.as_string());
            }
        }
        if (r_.stop.size() > static_cast<size_t>(SamplingParams::kMaxStops))
            recipe::refuse(
                "stop has " + std::to_string(r_.stop.size()) + " entries, expected at most 16",
                "stop");
        for (const std::string& text : r_.stop) {
            if (text.empty()) recipe::refuse("stop holds an empty string", "stop");
            if (text.size() > static_cast<size_t>(SamplingParams::kMaxStopBytes))
                recipe::refuse("stop: a sequence has " + std::to_string(text.size()) +
                                   " bytes, expected at most 256",
                               "stop");
        }
    }

    void switches() {
        r_.stream = body_.boolean("stream").value_or(false);
        if (const auto options = body_.object("stream_options")) {
            if (!r_.stream) recipe::refuse("stream_options needs stream: true", "stream_options");
            r_.include_usage = options->boolean("include_usage").value_or(false);
        }
        if (const auto n = body_.integer_in("logprobs", 0, SamplingParams::kMaxLogprobs))
            r_.logprobs = static_cast<int>(*n);
        r_.echo = body_.boolean("echo").value_or(false);
        r_.user = body_.string("user").value_or("");
        r_.cache_salt = body_.string("cache_salt").value_or("");
        if (r_.cache_salt.size() > 256)
            recipe::refuse("cache_salt: expected at most 256 bytes", "cache_salt");
        r_.no_tokens = *r_.sampling.max_tokens == 0;
        if (r_.no_tokens && !r_.echo)
            recipe::refuse("max_tokens is 0, which needs echo: true", "max_tokens");
        r_.sampling.so_args = read_completions_constraint(body_, state_.config.limits);
    }

    void prompts() {
        const Json* prompt = body_.get("prompt");
        if (prompt == nullptr) recipe::refuse("prompt is missing", "prompt");
        suffix_ = body_.string("suffix").value_or("");
        if (prompt->is_string()) {
            add_text(prompt->as_string());
        } else if (prompt->is_array() && !prompt->items().empty()) {
            const std::vector<Json>& items = prompt->items();
            if (items[0].is_int()) {
                add_ids(*prompt, "prompt");
            } else {
                for (size_t i = 0; i < items.size(); ++i) {
                    if (items[i].is_string()) {
                        add_text(items[i].as_string());
                    } else {
                        add_ids(items[i], recipe::indexed("prompt", i));
                    }
                }
            }
        } else {
            recipe::refuse("prompt: expected a string, a list of token ids, or a list of those",
                           "prompt");
        }
        const int64_t choices = static_cast<int64_t>(r_.prompts.size()) * r_.sampling.n;
        if (choices > state_.config.limits.batch_prompts)
            recipe::refuse("prompt: " + std::to_string(choices) +
                               " answers in one request, expected at most " +
                               std::to_string(state_.config.limits.batch_prompts),
                           "prompt");
    }

    void add_text(const std::string& text) {
        text_bytes_ += text.size() + suffix_.size();
        if (static_cast<int64_t>(text_bytes_) > state_.config.limits.prompt_text_bytes) {
            ApiError error = bad_request(
                "prompt has more than " + std::to_string(state_.config.limits.prompt_text_bytes) +
                    " bytes of text",
                "prompt");
            error.code = "context_length_exceeded";
            throw recipe::Refusal(error);
        }
        const int32_t bos = tokenizer_.bos_id();
        ApiError error;
        if (!may_fit_context(state_, text.size() + suffix_.size(), "prompt", &error))
            throw recipe::Refusal(error);
        std::vector<int32_t> ids;
        if (!suffix_.empty()) {
            ids = fill_in_the_middle(text);
        } else {
            ids = tokenizer_.encode(text, SpecialTokens::kParse, most_);
        }
        if (ids.size() > most_) throw recipe::Refusal(longer_than_context(state_, "prompt"));
        const bool add_bos = body_.boolean("add_bos").value_or(true);
        if (add_bos && bos >= 0 && (ids.empty() || ids[0] != bos)) ids.insert(ids.begin(), bos);
        r_.prompts.push_back(std::move(ids));
        r_.echo_texts.push_back(text);
    }

    std::vector<int32_t> fill_in_the_middle(const std::string& text) {
        std::vector<int32_t> ids;
        const auto marker = [&](const char* name) {
            const int32_t id = tokenizer_.id_of(name);
            if (id < 0)
                recipe::refuse("suffix: this model's vocabulary has no " + std::string(name),
                               "suffix");
            ids.push_back(id);
        };
        const auto plain = [&](const std::string& part) {
            const std::vector<int32_t> more = tokenizer_.encode(part, SpecialTokens::kPlain, most_);
            ids.insert(ids.end(), more.begin(), more.end());
        };
        marker("<｜fim▁begin｜>");
        plain(text);
        marker("<｜fim▁hole｜>");
        plain(suffix_);
        marker("<｜fim▁end｜>");
        return ids;
    }

    void add_ids(const Json& list, const std::string& place) {
        if (!list.is_array() || list.items().empty())
            recipe::refuse(place + ": expected a list of token ids", "prompt");
        std::vector<int32_t> ids;
        for (const Json& item : list.items()) {
            const std::optional<int64_t> id = item.as_int64();
            if (!id || *id < 0 || *id >= tokenizer_.vocab_size())
                recipe::refuse(place + ": expected ids from 0 to " +
                                   std::to_string(tokenizer_.vocab_size() - 1),
                               "prompt");
            ids.push_back(static_cast<int32_t>(*id));
        }
        r_.echo_texts.push_back(tokenizer_.decode(ids).value());
        r_.prompts.push_back(std::move(ids));
    }

    const ServerState& state_;
    const Tokenizer& tokenizer_;
    const Fields body_;
    CompletionsRequest r_;
    std::string suffix_;
    const size_t most_ = most_prompt_ids(state_);
    size_t text_bytes_ = 0;
};

// ------------------------------------------------------------------ the answer

/// The four lists of a choice's log-probabilities.
class LogprobLists {
  public:
    explicit LogprobLists(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void add(int32_t id, const TokenLogprobs* value, std::string_view text) {
        const char* comma = tokens_.empty() ? "" : ", ";
        tokens_ += comma + recipe::json_quote(recipe::valid_utf8(text));
        offsets_ += comma + std::to_string(offset_);
        offset_ += static_cast<int64_t>(text.size());
        if (value == nullptr || value->token_id < 0) {
            values_ += comma + std::string("null");
            top_ += comma + std::string("null");
            return;
        }
        values_ += comma + number(value->logprob);
        top_ += comma + std::string("{");
        bool own = false;
        std::string rows;
        for (const auto& [other, logprob] : value->top) {
            own = own || other == id;
            rows += (rows.empty() ? "" : ", ") + row(other, logprob);
        }
        if (!own) rows += (rows.empty() ? "" : ", ") + row(id, value->logprob);
        top_ += rows + "}";
    }
    void clear() {
        tokens_.clear();
        values_.clear();
        top_.clear();
        offsets_.clear();
    }
    bool empty() const { return tokens_.empty(); }
    std::string json() const {
        return "{\"tokens\": [" + tokens_ + "], \"token_logprobs\": [" + values_ +
               "], \"top_logprobs\": [" + top_ + "], \"text_offset\": [" + offsets_ + "]}";
    }

  private:
    static std::string number(double value) {
        return recipe::python_float(std::isfinite(value) ? value : -9999.0);
    }
    std::string row(int32_t id, double value) const {
        const std::string_view bytes =
            tokenizer_.contains(id) ? tokenizer_.token_bytes(id) : std::string_view();
        return recipe::json_quote(recipe::valid_utf8(bytes)) + ": " + number(value);
    }
    const Tokenizer& tokenizer_;
    std::string tokens_, values_, top_, offsets_;
    int64_t offset_ = 0;  // in the choice's whole text
};

class CompletionsWriter final : public AnswerWriter {
  public:
    CompletionsWriter(const Tokenizer& tokenizer, CompletionsRequest request, bool usage_chunk)
        : tokenizer_(tokenizer),
          request_(std::move(request)),
          usage_chunk_(usage_chunk),
          id_(random_id("cmpl-")),
          created_(unix_seconds()) {
        for (const auto& prompt : request_.prompts)
            prompt_tokens_ += static_cast<int64_t>(prompt.size());
        const size_t n = request_.prompts.size() * static_cast<size_t>(request_.sampling.n);
        for (size_t i = 0; i < n; ++i) choices_.emplace_back(tokenizer_);
        num_open_ = static_cast<int>(n);
    }

    void begin(const Output& first, std::string*) override {
        constraint_notes_ = first.constraint_notes;
    }

    bool output(int index, const Output& o, std::string* frames) override {
        Choice& choice = choices_[static_cast<size_t>(index)];
        const size_t prompt = static_cast<size_t>(index) / static_cast<size_t>(request_.sampling.n);
        std::string text;
        if (!choice.begun) {
            choice.begun = true;
            // Every sub-sequence of a prompt found the same blocks: counted once.
            if (index % request_.sampling.n == 0) cached_tokens_ += o.usage.cached_tokens;
            if (request_.echo) {
                text += request_.echo_texts[prompt];
                if (request_.logprobs) add_prompt(&choice, prompt, o);
            }
        } else if (choice.waits_for_prompt && !o.prompt_logprobs.empty()) {
            add_prompt(&choice, prompt, o);
        }
        if (!request_.no_tokens) {
            text += o.text;
            completion_tokens_ += static_cast<int64_t>(o.token_ids.size());
            if (request_.logprobs) add_tokens(&choice, o);
        }
        const bool ended = o.finished() || request_.no_tokens;
        if (ended) {
            choice.finish_reason =
                request_.no_tokens || o.finish_reason == FinishReason::kLength ? "length" : "stop";
            finish_reason_ = choice.finish_reason;
            --num_open_;
        }
        choice.text += text;
        if (request_.stream && (!text.empty() || ended || !choice.logprobs.empty())) {
            *frames += frame(index, choice, text, ended);
            choice.logprobs.clear();
            ++events_;
        }
        return !ended;
    }

    void fail(const ApiError& error, std::string* frames) override {
        *frames += "data: " + recipe::error_body(recipe::Protocol::kChatCompletions, error) +
                   "\n\ndata: [DONE]\n\n";
        ++events_;
    }

    void end(std::string* frames) override {
        if (usage_chunk_ && request_.include_usage) {
            *frames += "data: " + head() + "[], \"usage\": " + usage() + "}\n\n";
            ++events_;
        }
        *frames += "data: [DONE]\n\n";
    }

    std::string whole() override {
        std::string out = head();
        out += "[";
        for (size_t i = 0; i < choices_.size(); ++i) {
            if (i > 0) out += ", ";
            out += choice_json(static_cast<int>(i), choices_[i], choices_[i].text, true);
        }
        return out + "], \"usage\": " + usage() + notes() + "}";
    }

    ErrorShape error_shape() const override { return ErrorShape::kOpenAi; }
    int64_t completion_tokens() const override { return completion_tokens_; }
    std::string finish_reason() const override { return finish_reason_; }
    int64_t events() const override { return events_; }

  private:
    struct Choice {
        explicit Choice(const Tokenizer& tokenizer) : logprobs(tokenizer) {}
        std::string text;
        LogprobLists logprobs;
        std::string finish_reason;
        bool begun = false;
        bool waits_for_prompt = false;
    };

    std::string_view bytes_of(int32_t id) const {
        return tokenizer_.contains(id) ? tokenizer_.token_bytes(id) : std::string_view();
    }

    void add_prompt(Choice* choice, size_t prompt, const Output& o) {
        // They come with sub-sequence 0; the others show the same values.
        std::vector<TokenLogprobs>& known = prompt_logprobs_[prompt];
        if (!o.prompt_logprobs.empty()) known = o.prompt_logprobs;
        const std::vector<int32_t>& ids = request_.prompts[prompt];
        if (known.empty()) {
            choice->waits_for_prompt = true;
            return;
        }
        choice->waits_for_prompt = false;
        for (size_t i = 0; i < ids.size(); ++i) {
            // A BOS that we put in front is in the lists, but not in the text.
            const bool shown = i > 0 || ids[i] != tokenizer_.bos_id() ||
                               request_.echo_texts[prompt].rfind(bytes_of(ids[i]), 0) == 0;
            choice->logprobs.add(ids[i],
                                 i < known.size() ? &known[i] : nullptr,
                                 shown ? bytes_of(ids[i]) : std::string_view());
        }
    }

    void add_tokens(Choice* choice, const Output& o) {
        for (size_t i = 0; i < o.logprobs.size(); ++i) {
            const bool is_end =
                o.finished() && i + 1 == o.token_ids.size() && o.token_ids[i] == o.stop_token;
            if (is_end) continue;
            choice->logprobs.add(o.logprobs[i].token_id, &o.logprobs[i], bytes_of(o.token_ids[i]));
        }
    }

    std::string head() const {
        return "{\"id\": " + recipe::json_quote(id_) +
               ", \"object\": \"text_completion\", \"created\": " + std::to_string(created_) +
               ", \"model\": " + recipe::json_quote(request_.model) +
               ", \"system_fingerprint\": \"fp_" DEEPINFER_VERSION "\", \"choices\": ";
    }

    std::string choice_json(int index,
                            const Choice& choice,
                            std::string_view text,
                            bool ended) const {
        std::string out = "{\"index\": " + std::to_string(index) +
                          ", \"text\": " + recipe::json_quote(text) + ", \"logprobs\": ";
        out += request_.logprobs && !choice.logprobs.empty() ? choice.logprobs.json() : "null";
        out += ", \"finish_reason\": ";
        out += ended ? recipe::json_quote(choice.finish_reason) : "null";
        return out + "}";
    }

    std::string frame(int index, const Choice& choice, std::string_view text, bool ended) const {
        std::string out = "data: " + head() + "[" + choice_json(index, choice, text, ended) + "]";
        if (num_open_ == 0 && ended && !usage_chunk_) {
            out += ", \"usage\": " + usage();
        } else if (request_.include_usage) {
            out += ", \"usage\": null";
        }
        if (events_ == 0) out += notes();
        return out + "}\n\n";
    }

    /// `, "constraint_notes": […]`, or nothing.
    std::string notes() const {
        std::string list;
        for (const std::string& note : constraint_notes_)
            list += (list.empty() ? "" : ", ") + recipe::json_quote(note);
        return list.empty() ? "" : ", \"constraint_notes\": [" + list + "]";
    }

    std::string usage() const {
        const std::string cached = std::to_string(cached_tokens_);
        return "{\"prompt_tokens\": " + std::to_string(prompt_tokens_) +
               ", \"completion_tokens\": " + std::to_string(completion_tokens_) +
               ", \"total_tokens\": " + std::to_string(prompt_tokens_ + completion_tokens_) +
               ", \"prompt_tokens_details\": {\"cached_tokens\": " + cached +
               "}, \"prompt_cache_hit_tokens\": " + cached + ", \"prompt_cache_miss_tokens\": " +
               std::to_string(prompt_tokens_ - cached_tokens_) + "}";
    }

    const Tokenizer tokenizer_;
    const CompletionsRequest request_;
    const bool usage_chunk_;
    const std::string id_;
    const int64_t created_;
    std::vector<Choice> choices_;
    std::map<size_t, std::vector<TokenLogprobs>> prompt_logprobs_;
    int num_open_ = 0;
    int64_t prompt_tokens_ = 0;
    int64_t cached_tokens_ = 0;
    int64_t completion_tokens_ = 0;
    std::string finish_reason_;
    std::vector<std::string> constraint_notes_;
    int64_t events_ = 0;
};

}  // namespace

Answer handle_completions(ServerState& state, Exchange& exchange) {
    ApiError error;
    const std::optional<Json> body = read_body(state, exchange.request.body, &error);
    if (!body) return error_answer(ErrorShape::kOpenAi, error);
    CompletionsRequest request;
    try {
        request = Reader(state, *body).read();
    } catch (const recipe::Refusal& refusal) {
        return error_answer(ErrorShape::kOpenAi, refusal.error());
    }
    GenerationPlan plan;
    plan.stream = request.stream;
    plan.constraint_field =
        body->find("response_format") != nullptr ? "response_format" : "structured_outputs";
    for (const std::vector<int32_t>& prompt : request.prompts) {
        recipe::RequestSampling asked = request.sampling;
        // The engine generates at least one token; it is not shown.
        if (request.no_tokens) asked.max_tokens = 1;
        std::optional<SamplingParams> sampling = sampling_params(
            state, asked, static_cast<int64_t>(prompt.size()), *asked.max_tokens, &error);
        if (!sampling) {
            error.param = error.param == "messages" ? "prompt" : error.param;
            return error_answer(ErrorShape::kOpenAi, error);
        }
        sampling->stop = request.stop;
        sampling->so_args = asked.so_args;
        sampling->logprobs = request.logprobs;
        if (request.echo && request.logprobs) sampling->prompt_logprobs = request.logprobs;
        plan.prompt_tokens += static_cast<int64_t>(prompt.size());
        Request r;
        r.id = exchange.id;
        r.prompt_token_ids = prompt;
        r.sampling = std::move(*sampling);
        r.tenant = exchange.caller.tenant;
        r.cache_salt = request.cache_salt;
        plan.requests.push_back(std::move(r));
    }
    exchange.record.model = request.model;
    plan.writer = std::make_unique<CompletionsWriter>(
        state.backend()->tokenizer(), std::move(request), state.config.openai_usage_chunk);
    return start_generation(state, exchange, std::move(plan));
}

}  // namespace deepinfer::server
