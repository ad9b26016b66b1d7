// Chat Completions: chunks and the whole completion (prompt spec 7.2).
#include "recipe/respond_common.h"

namespace deepinfer::recipe {

namespace {

class ChatResponder final : public Responder {
  public:
    ChatResponder(const ConvertedRequest& request, ResponseContext context)
        : Responder(request, std::move(context)),
          include_usage_(request.include_usage && request.stream) {}

    std::vector<StreamEvent> start() override {
        Json delta = Json::object({{"role", "assistant"}});
        delta.set("content", thinking_ ? Json() : Json(""));
        if (thinking_) delta.set("reasoning_content", "");
        return {chunk(std::move(delta), Json(), false)};
    }

    std::vector<StreamEvent> finish(FinishReason reason) override {
        std::vector<StreamEvent> events;
        if (done_) return events;
        done_ = true;
        std::vector<Delta> deltas;
        parser_.finish(reason, &deltas);
        on_deltas(deltas, &events);
        Json delta = Json::object({{"content", ""}});
        if (thinking_) delta.set("reasoning_content", Json());
        events.push_back(
            chunk(std::move(delta), finish_reason_name(parser_.finish_reason()), true));
        return events;
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
        choice.set("logprobs", Json());
        choice.set("finish_reason",
                   done_ ? Json(finish_reason_name(parser_.finish_reason())) : Json());
        Json out = head("chat.completion");
        out.set("choices", Json::array({std::move(choice)}));
        out.set("usage", usage());
        out.set("system_fingerprint", context_.system_fingerprint);
        return dump_python(out);
    }

  private:
    void on_deltas(const std::vector<Delta>& deltas, std::vector<StreamEvent>* events) override {
        for (const Delta& d : deltas) {
            Json delta = Json::object();
            switch (d.kind) {
                case Delta::Kind::kReasoning:
                    reasoning_ += d.text;
                    delta.set("content", Json());
                    delta.set("reasoning_content", d.text);
                    break;
                case Delta::Kind::kContent:
                    content_ += d.text;
                    delta.set("content", d.text);
                    if (thinking_) delta.set("reasoning_content", Json());
                    break;
                case Delta::Kind::kCall: {
                    calls_.push_back(
                        {"call_" + context_.response_id + "_" + std::to_string(d.call_idx),
                         d.text,
                         ""});
                    Json call = Json::object(
                        {{"index", d.call_idx}, {"id", calls_.back().id}, {"type", "function"}});
                    call.set("function", Json::object({{"name", d.text}, {"arguments", ""}}));
                    delta.set("tool_calls", Json::array({std::move(call)}));
                    break;
                }
                case Delta::Kind::kArguments: {
                    calls_.back().arguments += d.text;
                    Json call = Json::object({{"index", d.call_idx}});
                    call.set("function", Json::object({{"arguments", d.text}}));
                    delta.set("tool_calls", Json::array({std::move(call)}));
                    break;
                }
            }
            events->push_back(chunk(std::move(delta), Json(), false));
        }
    }

    Json head(const char* object) const {
        return Json::object({{"id", context_.response_id},
                             {"object", object},
                             {"created", context_.created},
                             {"model", context_.model}});
    }

    StreamEvent chunk(Json delta, Json finish_reason, bool with_usage) const {
        Json choice = Json::object({{"index", context_.choice_idx}});
        choice.set("delta", std::move(delta));
        choice.set("logprobs", Json());
        choice.set("finish_reason", std::move(finish_reason));
        Json out = head("chat.completion.chunk");
        out.set("system_fingerprint", context_.system_fingerprint);
        out.set("choices", Json::array({std::move(choice)}));
        if (with_usage) {
            out.set("usage", usage());
        } else if (include_usage_) {
            out.set("usage", Json());
        }
        return {"", dump_python(out)};
    }

    Json usage() const {
        Json out = Json::object(
            {{"prompt_tokens", context_.prompt_tokens}, {"completion_tokens", completion_tokens_}});
        out.set("total_tokens", context_.prompt_tokens + completion_tokens_);
        out.set("prompt_tokens_details", Json::object({{"cached_tokens", context_.cached_tokens}}));
        if (thinking_)
            out.set("completion_tokens_details",
                    Json::object({{"reasoning_tokens", reasoning_tokens_}}));
        out.set("prompt_cache_hit_tokens", context_.cached_tokens);
        out.set("prompt_cache_miss_tokens", context_.prompt_tokens - context_.cached_tokens);
        return out;
    }

    const bool include_usage_;
    std::string reasoning_;
    std::string content_;
    std::vector<ToolCall> calls_;
    bool done_ = false;
};

}  // namespace

std::unique_ptr<Responder> make_chat_responder(const ConvertedRequest& request,
                                               ResponseContext context) {
    return std::make_unique<ChatResponder>(request, std::move(context));
}

}  // namespace deepinfer::recipe
