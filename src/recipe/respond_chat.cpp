// Chat Completions: chunks and the whole completion (prompt spec 7.2).
//
// Chunks are most of what a server sends, one a token: they are put together from a prepared
// beginning instead of a JSON tree.
#include "recipe/respond_common.h"

namespace deepinfer::recipe {

namespace {

class ChatResponder final : public Responder {
  public:
    ChatResponder(const ConvertedRequest& request, ResponseContext context)
        : Responder(request, std::move(context)),
          include_usage_(request.include_usage && request.stream),
          wants_logprobs_(request.sampling.logprobs) {
        Json head = chunk_head();
        head.set("choices", Json::array());
        head_ = dump_python(head);
        head_.resize(head_.size() - 2);  // "]}"
        head_ += "{\"index\": " + std::to_string(context_.choice_idx) + ", \"delta\": ";
    }

    std::vector<StreamEvent> start() override {
        std::string delta = "{\"role\": \"assistant\", \"content\": ";
        delta += thinking_ ? "null, \"reasoning_content\": \"\"}" : "\"\"}";
        StreamEvent first = chunk(delta, false);
        if (!context_.constraint_notes.empty() && context_.choice_idx == 0) {
            Json notes = Json::object();
            add_constraint_notes(context_, &notes);
            first.data.back() = ',';
            first.data += " " + dump_python(notes).substr(1);
        }
        return {std::move(first)};
    }

    std::vector<StreamEvent> finish(FinishReason reason) override {
        std::vector<StreamEvent> events;
        if (done_) return events;
        done_ = true;
        std::vector<Delta> deltas;
        parser_.finish(reason, &deltas);
        on_deltas(deltas, &events);
        if (context_.group) --context_.group->num_unfinished;
        const bool last = !context_.group || context_.group->num_unfinished == 0;
        const char* delta =
            thinking_ ? "{\"content\": \"\", \"reasoning_content\": null}" : "{\"content\": \"\"}";
        const bool own_chunk = context_.usage_chunk && include_usage_;
        events.push_back(final_chunk(delta, last && !own_chunk && !context_.usage_chunk));
        if (last && own_chunk) {
            Json out = chunk_head();
            out.set("choices", Json::array());
            out.set("usage", usage());
            events.push_back({"", dump_python(out)});
        }
        return events;
    }

    std::vector<StreamEvent> fail(const ApiError& error) override {
        done_ = true;
        return {{"", error_body(Protocol::kChatCompletions, error)}};
    }

    std::string response() const override {
        Json message = Json::object({{"role", "assistant"}, {"content", content_}});
        if (thinking_) message.set("reasoning_content", reasoning_);
        if (!calls_.empty()) {
            Json list = Json::array();
            for (size_t i = 0; i < calls_.size(); ++i) {
                Json call = Json::object({{"index", static_cast<int64_t>(i)},
                                          {"id", calls_[i].id},
                                          {"type", "function"}});
                call.set(
                    "function",
                    Json::object({{"name", calls_[i].name}, {"arguments", calls_[i].arguments}}));
                list.push_back(std::move(call));
            }
            message.set("tool_calls", std::move(list));
        }
        Json choice = Json::object({{"index", context_.choice_idx}});
        choice.set("message", std::move(message));
        choice.set("logprobs", Json::raw(logprobs(0, 0)));
        choice.set("finish_reason",
                   done_ ? Json(finish_reason_name(parser_.finish_reason())) : Json());
        Json out = head("chat.completion");
        out.set("choices", Json::array({std::move(choice)}));
        out.set("usage", usage());
        out.set("system_fingerprint", context_.system_fingerprint);
        add_constraint_notes(context_, &out);
        return dump_python(out);
    }

  private:
    void on_deltas(const std::vector<Delta>& deltas, std::vector<StreamEvent>* events) override {
        for (const Delta& d : deltas) {
            std::string delta;
            switch (d.kind) {
                case Delta::Kind::kReasoning:
                    reasoning_ += d.text;
                    delta = "{\"content\": null, \"reasoning_content\": \"";
                    json_escape(d.text, &delta);
                    delta += "\"}";
                    break;
                case Delta::Kind::kContent:
                    content_ += d.text;
                    delta = "{\"content\": \"";
                    json_escape(d.text, &delta);
                    delta += thinking_ ? "\", \"reasoning_content\": null}" : "\"}";
                    break;
                case Delta::Kind::kCall:
                    calls_.push_back(
                        {"call_" + context_.response_id + "_" + std::to_string(d.call_idx),
                         d.text,
                         ""});
                    delta =
                        "{\"tool_calls\": [{\"index\": " + std::to_string(d.call_idx) +
                        ", \"id\": " + json_quote(calls_.back().id) +
                        ", \"type\": \"function\", \"function\": {\"name\": " + json_quote(d.text) +
                        ", \"arguments\": \"\"}}]}";
                    break;
                case Delta::Kind::kArguments:
                    calls_.back().arguments += d.text;
                    delta = "{\"tool_calls\": [{\"index\": " + std::to_string(d.call_idx) +
                            ", \"function\": {\"arguments\": \"";
                    json_escape(d.text, &delta);
                    delta += "\"}}]}";
                    break;
            }
            events->push_back(chunk(delta, false));
        }
    }

    Json head(const char* object) const {
        return Json::object({{"id", context_.response_id},
                             {"object", object},
                             {"created", context_.created},
                             {"model", context_.model}});
    }
    Json chunk_head() const {
        Json out = head("chat.completion.chunk");
        out.set("system_fingerprint", context_.system_fingerprint);
        return out;
    }

    /// The tokens since the given places of the two lists, or null if nobody asked.
    std::string logprobs(size_t content_begin, size_t reasoning_begin) const {
        if (!wants_logprobs_) return "null";
        const auto list = [](std::string_view all, size_t begin) {
            std::string_view text = all.substr(begin);
            if (text.substr(0, 2) == ", ") text.remove_prefix(2);
            return "[" + std::string(text) + "]";
        };
        std::string out = "{\"content\": " + list(content_logprobs_, content_begin);
        if (thinking_)
            out += ", \"reasoning_content\": " + list(reasoning_logprobs_, reasoning_begin);
        return out + ", \"refusal\": null}";
    }

    /// `delta` is JSON.
    StreamEvent chunk(std::string_view delta, bool last) {
        std::string out;
        out.reserve(head_.size() + delta.size() + 80);
        out += head_;
        out += delta;
        out += ", \"logprobs\": ";
        const bool any = content_logprobs_.size() > shown_content_ ||
                         reasoning_logprobs_.size() > shown_reasoning_;
        out += any ? logprobs(shown_content_, shown_reasoning_) : std::string("null");
        shown_content_ = content_logprobs_.size();
        shown_reasoning_ = reasoning_logprobs_.size();
        out += ", \"finish_reason\": ";
        if (last) {
            out += json_quote(finish_reason_name(parser_.finish_reason())) + "}]";
        } else {
            out += include_usage_ ? "null}], \"usage\": null}" : "null}]}";
        }
        return {"", std::move(out)};
    }
    StreamEvent final_chunk(std::string_view delta, bool with_usage) {
        StreamEvent event = chunk(delta, true);
        if (with_usage) {
            event.data += ", \"usage\": " + dump_python(usage());
        } else if (include_usage_) {
            event.data += ", \"usage\": null";
        }
        event.data += "}";
        return event;
    }

    Json usage() const {
        const int64_t completion =
            context_.group ? context_.group->completion_tokens : completion_tokens_;
        const int64_t reasoning =
            context_.group ? context_.group->reasoning_tokens : reasoning_tokens_;
        Json out = Json::object(
            {{"prompt_tokens", context_.prompt_tokens}, {"completion_tokens", completion}});
        out.set("total_tokens", context_.prompt_tokens + completion);
        out.set("prompt_tokens_details", Json::object({{"cached_tokens", context_.cached_tokens}}));
        if (thinking_)
            out.set("completion_tokens_details", Json::object({{"reasoning_tokens", reasoning}}));
        out.set("prompt_cache_hit_tokens", context_.cached_tokens);
        out.set("prompt_cache_miss_tokens", context_.prompt_tokens - context_.cached_tokens);
        return out;
    }

    const bool include_usage_;
    const bool wants_logprobs_;
    std::string head_;  // a chunk up to its delta
    std::string reasoning_;
    std::string content_;
    std::vector<ToolCall> calls_;
    size_t shown_content_ = 0;  // of the lists of log-probabilities
    size_t shown_reasoning_ = 0;
    bool done_ = false;
};

}  // namespace

std::unique_ptr<Responder> make_chat_responder(const ConvertedRequest& request,
                                               ResponseContext context) {
    return std::make_unique<ChatResponder>(request, std::move(context));
}

std::string join_chat_choices(const std::vector<std::string>& responses) {
    Json whole;
    Json choices = Json::array();
    for (const std::string& text : responses) {
        Result<Json> one = parse_json(text);
        if (!one.ok()) return "{}";
        whole = std::move(one).value();
        for (const Json& choice : whole.find("choices")->items()) choices.push_back(choice);
    }
    whole.set("choices", std::move(choices));
    return dump_python(whole);
}

}  // namespace deepinfer::recipe
