// Messages: content blocks and the whole message (prompt spec 7.4).
#include "recipe/respond_common.h"

namespace deepinfer::recipe {

namespace {

class MessagesResponder final : public Responder {
  public:
    MessagesResponder(const ConvertedRequest& request, ResponseContext context)
        : Responder(request, std::move(context)) {}

    std::vector<StreamEvent> start() override {
        std::vector<StreamEvent> events;
        Json start = Json::object({{"type", "message_start"}});
        start.set("message", message(Json::array(), Json(), Json(), 0));
        emit(std::move(start), &events);
        if (thinking_) open("thinking", "", "", &events);
        return events;
    }

    std::vector<StreamEvent> finish(FinishReason reason) override {
        std::vector<StreamEvent> events;
        if (done_ || failed_) return events;
        std::vector<Delta> deltas;
        parser_.finish(reason, &deltas);
        on_deltas(deltas, &events);
        close(&events);
        done_ = true;
        Json end = Json::object({{"type", "message_delta"}});
        end.set("delta",
                Json::object({{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}));
        end.set("usage", usage(completion_tokens_));
        emit(std::move(end), &events);
        emit(Json::object({{"type", "message_stop"}}), &events);
        return events;
    }

    std::vector<StreamEvent> fail(const ApiError& error) override {
        failed_ = true;
        return {{"error", error_body(Protocol::kMessages, error)}};
    }

    std::string response() const override {
        Json content = Json::array();
        for (const Block& block : blocks_) content.push_back(whole(block));
        return dump_python(
            message(std::move(content), stop_reason(), stop_sequence(), completion_tokens_));
    }

  private:
    struct Block {
        std::string type;  // thinking, text, tool_use
        std::string id;
        std::string name;
        std::string text;  // of a tool_use: its arguments
    };

    void on_deltas(const std::vector<Delta>& deltas, std::vector<StreamEvent>* events) override {
        for (const Delta& d : deltas) {
            switch (d.kind) {
                case Delta::Kind::kReasoning:
                    append("thinking", "thinking_delta", "thinking", d.text, events);
                    break;
                case Delta::Kind::kContent:
                    append("text", "text_delta", "text", d.text, events);
                    break;
                case Delta::Kind::kCall:
                    close(events);
                    open("tool_use",
                         "toolu_" + context_.response_id + "_" + std::to_string(d.call_idx),
                         d.text,
                         events);
                    break;
                case Delta::Kind::kArguments:
                    append("tool_use", "input_json_delta", "partial_json", d.text, events);
                    break;
            }
        }
    }

    void append(const char* type,
                const char* delta_type,
                const char* key,
                const std::string& text,
                std::vector<StreamEvent>* events) {
        if (!is_open_ || blocks_.back().type != type) {
            close(events);
            open(type, "", "", events);
        }
        blocks_.back().text += text;
        block_delta(Json::object({{"type", delta_type}, {key, text}}), events);
    }

    void block_delta(Json delta, std::vector<StreamEvent>* events) {
        Json event = Json::object({{"type", "content_block_delta"}, {"index", index()}});
        event.set("delta", std::move(delta));
        emit(std::move(event), events);
    }

    void open(std::string type,
              std::string id,
              std::string name,
              std::vector<StreamEvent>* events) {
        blocks_.push_back({std::move(type), std::move(id), std::move(name), ""});
        is_open_ = true;
        const Block& block = blocks_.back();
        Json start = Json::object({{"type", block.type}});
        if (block.type == "thinking") {
            start.set("thinking", "");
            start.set("signature", "");
        } else if (block.type == "text") {
            start.set("text", "");
        } else {
            start.set("id", block.id);
            start.set("name", block.name);
            start.set("input", Json::object());
        }
        Json event = Json::object({{"type", "content_block_start"}, {"index", index()}});
        event.set("content_block", std::move(start));
        emit(std::move(event), events);
        if (blocks_.size() == 1) emit(Json::object({{"type", "ping"}}), events);
    }

    void close(std::vector<StreamEvent>* events) {
        if (!is_open_) return;
        if (blocks_.back().type == "thinking")
            block_delta(
                Json::object({{"type", "signature_delta"}, {"signature", context_.response_id}}),
                events);
        emit(Json::object({{"type", "content_block_stop"}, {"index", index()}}), events);
        is_open_ = false;
    }

    int64_t index() const { return static_cast<int64_t>(blocks_.size()) - 1; }

    Json whole(const Block& block) const {
        Json out = Json::object({{"type", block.type}});
        if (block.type == "thinking") {
            out.set("thinking", block.text);
            out.set("signature", context_.response_id);
        } else if (block.type == "text") {
            out.set("text", block.text);
        } else {
            out.set("id", block.id);
            out.set("name", block.name);
            out.set("input", input(block.text));
        }
        return out;
    }

    /// The protocol wants an object. A call that was cut short has none; one whose text cannot be
    /// read must not look like a call without arguments.
    Json input(const std::string& arguments) const {
        const Result<Json> parsed = parse_json(arguments);
        if (parsed.ok() && parsed.value().is_object()) return parsed.value();
        if (compat_ || parser_.finish_reason() != FinishReason::kToolCalls) return Json::object();
        return Json::object({{"arguments", arguments}});
    }

    Json stop_reason() const {
        if (!done_) return {};
        switch (parser_.finish_reason()) {
            case FinishReason::kLength:
                return "max_tokens";
            case FinishReason::kContentFilter:
                return "refusal";
            case FinishReason::kToolCalls:
                return "tool_use";
            default:
                return parser_.stop_sequence() ? "stop_sequence" : "end_turn";
        }
    }
    Json stop_sequence() const {
        return parser_.stop_sequence() ? Json(*parser_.stop_sequence()) : Json();
    }

    Json usage(int64_t output_tokens) const {
        Json out =
            Json::object({{"input_tokens", context_.prompt_tokens - context_.cached_tokens}});
        out.set("cache_creation_input_tokens", 0);
        out.set("cache_read_input_tokens", context_.cached_tokens);
        out.set("output_tokens", output_tokens);
        out.set("service_tier", "standard");
        return out;
    }

    Json message(Json content, Json reason, Json sequence, int64_t output_tokens) const {
        Json out = Json::object({{"id", context_.response_id},
                                 {"type", "message"},
                                 {"role", "assistant"},
                                 {"model", context_.model}});
        out.set("content", std::move(content));
        out.set("stop_reason", std::move(reason));
        out.set("stop_sequence", std::move(sequence));
        out.set("usage", usage(output_tokens));
        add_constraint_notes(context_, &out);
        return out;
    }

    static void emit(Json event, std::vector<StreamEvent>* events) {
        events->push_back({event.find("type")->as_string(), dump_python(event)});
    }

    std::vector<Block> blocks_;
    bool is_open_ = false;
    bool done_ = false;
    bool failed_ = false;
};

}  // namespace

std::unique_ptr<Responder> make_messages_responder(const ConvertedRequest& request,
                                                   ResponseContext context) {
    return std::make_unique<MessagesResponder>(request, std::move(context));
}

}  // namespace deepinfer::recipe
