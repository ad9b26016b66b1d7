// Responses: output items and the whole response (prompt spec 7.5).
#include <algorithm>
#include <charconv>

#include "recipe/respond_common.h"

namespace deepinfer::recipe {

namespace {

/// Reads {"input": "…"} as it streams and gives the string's text.
class InputDecoder {
  public:
    /// Text that `piece` completed.
    std::string push(std::string_view piece) {
        std::string out;
        for (const char c : piece) {
            if (state_ == kBefore) {
                if (head_.size() < kHead.size()) head_.push_back(c);
                if (head_ == kHead) state_ = kText;
            } else if (state_ == kText) {
                if (c == '\\') {
                    state_ = kEscape;
                } else if (c == '"') {
                    state_ = kAfter;
                } else {
                    out.push_back(c);
                }
            } else if (state_ == kEscape) {
                escape(c, &out);
            } else if (state_ == kHex) {
                hex_.push_back(c);
                if (hex_.size() == 4) {
                    code_unit(&out);
                    state_ = kText;
                }
            }
        }
        return out;
    }

  private:
    enum State { kBefore, kText, kEscape, kHex, kAfter };
    static constexpr std::string_view kHead = "{\"input\": \"";  // the parser's own spelling

    void escape(char c, std::string* out) {
        state_ = kText;
        switch (c) {
            case 'n':
                out->push_back('\n');
                break;
            case 'r':
                out->push_back('\r');
                break;
            case 't':
                out->push_back('\t');
                break;
            case 'b':
                out->push_back('\b');
                break;
            case 'f':
                out->push_back('\f');
                break;
            case 'u':
                hex_.clear();
                state_ = kHex;
                break;
            default:
                out->push_back(c);
        }
    }

    void code_unit(std::string* out) {
        uint32_t unit = 0xFFFD;
        std::from_chars(hex_.data(), hex_.data() + hex_.size(), unit, 16);
        if (unit >= 0xD800 && unit < 0xDC00) {
            high_ = unit;
            return;
        }
        uint32_t point = unit;
        if (unit >= 0xDC00 && unit < 0xE000)
            point = high_ == 0 ? 0xFFFD : 0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00);
        high_ = 0;
        const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
        if (point < 0x80) {
            put(point);
        } else if (point < 0x800) {
            put(0xC0 | (point >> 6));
            put(0x80 | (point & 63));
        } else if (point < 0x10000) {
            put(0xE0 | (point >> 12));
            put(0x80 | ((point >> 6) & 63));
            put(0x80 | (point & 63));
        } else {
            put(0xF0 | (point >> 18));
            put(0x80 | ((point >> 12) & 63));
            put(0x80 | ((point >> 6) & 63));
            put(0x80 | (point & 63));
        }
    }

    State state_ = kBefore;
    std::string head_;
    std::string hex_;
    uint32_t high_ = 0;  // first half of a surrogate pair
};

class ResponsesResponder final : public Responder {
  public:
    ResponsesResponder(const ConvertedRequest& request, ResponseContext context)
        : Responder(request, std::move(context)),
          echo_("{" + request.echo + "}"),
          namespace_tools_(request.namespace_tools),
          custom_tools_(request.custom_tools) {
        if (Result<Json> echo = parse_json(echo_); echo.ok()) echo_json_ = std::move(echo).value();
    }

    std::vector<StreamEvent> start() override {
        std::vector<StreamEvent> events;
        for (const char* type : {"response.created", "response.in_progress"}) {
            Json event = Json::object({{"type", type}});
            event.set("response", whole());
            emit(std::move(event), &events);
        }
        return events;
    }

    std::vector<StreamEvent> finish(FinishReason reason) override {
        std::vector<StreamEvent> events;
        if (done_) return events;
        std::vector<Delta> deltas;
        parser_.finish(reason, &deltas);
        on_deltas(deltas, &events);
        done_ = true;
        const FinishReason result = parser_.finish_reason();
        incomplete_ = result == FinishReason::kLength || result == FinishReason::kContentFilter;
        close(incomplete_ ? "incomplete" : "completed", false, &events);
        completed_at_ = context_.now ? context_.now() : context_.created;
        Json event =
            Json::object({{"type", incomplete_ ? "response.incomplete" : "response.completed"}});
        event.set("response", whole());
        emit(std::move(event), &events);
        return events;
    }

    std::vector<StreamEvent> fail(const ApiError& error) override {
        std::vector<StreamEvent> events;
        if (done_) return events;
        close("incomplete", false, &events);
        done_ = true;
        failed_ = Json::object({{"code", "server_error"}, {"message", error.message}});
        completed_at_ = context_.now ? context_.now() : context_.created;
        Json event = Json::object({{"type", "response.failed"}});
        event.set("response", whole());
        emit(std::move(event), &events);
        return events;
    }

    std::string response() const override { return dump_python(whole()); }

  private:
    enum class Kind { kReasoning, kMessage, kFunction, kCustom };
    struct Item {
        Kind kind = Kind::kMessage;
        std::string id;
        std::string status = "in_progress";
        std::string text;  // of a call: arguments, or the decoded input
        std::string call_id;
        std::string name;
        std::string name_space;
        size_t logprobs_begin = 0;  // of a message: its part of content_logprobs_
        size_t logprobs_end = 0;
        bool commentary = false;
        bool has_part = true;  // false in the event that adds the item
    };

    void on_deltas(const std::vector<Delta>& deltas, std::vector<StreamEvent>* events) override {
        for (const Delta& d : deltas) {
            switch (d.kind) {
                case Delta::Kind::kReasoning:
                    text_delta(Kind::kReasoning, d.text, events);
                    break;
                case Delta::Kind::kContent:
                    text_delta(Kind::kMessage, d.text, events);
                    break;
                case Delta::Kind::kCall:
                    begin_call(d, events);
                    break;
                case Delta::Kind::kArguments:
                    arguments(d.text, events);
                    break;
            }
        }
    }

    int64_t output_index() const { return static_cast<int64_t>(items_.size()) - 1; }

    // ---------------------------------------------------------------- items

    void open(Item item, std::vector<StreamEvent>* events) {
        static constexpr const char* kPrefixes[] = {"rs_", "msg_", "fc_", "ctc_"};
        item.id = kPrefixes[static_cast<int>(item.kind)] + context_.response_id + "_" +
                  std::to_string(items_.size());
        items_.push_back(std::move(item));
        is_open_ = true;
        Item added = items_.back();
        added.has_part = false;
        Json event = Json::object({{"type", "response.output_item.added"}});
        event.set("item", item_json(added));
        event.set("output_index", output_index());
        emit(std::move(event), events);
        const Kind kind = items_.back().kind;
        if (kind == Kind::kReasoning || kind == Kind::kMessage)
            part_event("response.content_part.added", events);
    }

    void close(const char* status, bool call_follows, std::vector<StreamEvent>* events) {
        if (!is_open_) return;
        is_open_ = false;
        Item& item = items_.back();
        item.status = status;
        switch (item.kind) {
            case Kind::kReasoning: {
                emit(place(Json::object(
                               {{"type", "response.reasoning_text.done"}, {"text", item.text}}),
                           true),
                     events);
                part_event("response.content_part.done", events);
                break;
            }
            case Kind::kMessage: {
                item.commentary = call_follows;
                Json done =
                    Json::object({{"type", "response.output_text.done"}, {"text", item.text}});
                item.logprobs_end = content_logprobs_.size();
                done.set("logprobs", logprobs_of(item.logprobs_begin, item.logprobs_end));
                emit(place(std::move(done), true), events);
                part_event("response.content_part.done", events);
                break;
            }
            case Kind::kFunction:
                emit(place(Json::object({{"type", "response.function_call_arguments.done"},
                                         {"arguments", item.text}}),
                           false),
                     events);
                break;
            case Kind::kCustom:
                emit(place(Json::object({{"type", "response.custom_tool_call_input.done"},
                                         {"input", item.text}}),
                           false),
                     events);
                break;
        }
        Json event = Json::object({{"type", "response.output_item.done"}});
        event.set("item", item_json(item));
        event.set("output_index", output_index());
        emit(std::move(event), events);
    }

    Json place(Json event, bool in_content) const {
        if (in_content) event.set("content_index", 0);
        event.set("item_id", items_.back().id);
        event.set("output_index", output_index());
        return event;
    }

    void text_delta(Kind kind, const std::string& text, std::vector<StreamEvent>* events) {
        if (!is_open_ || items_.back().kind != kind) {
            close("completed", false, events);
            Item item;
            item.kind = kind;
            item.logprobs_begin = item.logprobs_end = shown_logprobs_;
            open(std::move(item), events);
        }
        items_.back().text += text;
        Json event = Json::object({{"type",
                                    kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                                             : "response.output_text.delta"}});
        event.set("delta", text);
        if (kind == Kind::kMessage) {
            event.set("logprobs", logprobs_of(shown_logprobs_, content_logprobs_.size()));
            shown_logprobs_ = items_.back().logprobs_end = content_logprobs_.size();
        }
        emit(place(std::move(event), true), events);
    }

    void begin_call(const Delta& d, std::vector<StreamEvent>* events) {
        close("completed", true, events);
        Item item;
        item.call_id = "call_" + context_.response_id + "_" + std::to_string(d.call_idx);
        item.name = d.text;
        const bool custom =
            std::find(custom_tools_.begin(), custom_tools_.end(), d.text) != custom_tools_.end();
        item.kind = custom ? Kind::kCustom : Kind::kFunction;
        if (const auto found = namespace_tools_.find(d.text); found != namespace_tools_.end()) {
            item.name_space = found->second.first;
            item.name = found->second.second;
        }
        input_ = InputDecoder();
        open(std::move(item), events);
    }

    void arguments(const std::string& text, std::vector<StreamEvent>* events) {
        Item& item = items_.back();
        const bool custom = item.kind == Kind::kCustom;
        const std::string piece = custom ? input_.push(text) : text;
        if (piece.empty()) return;
        item.text += piece;
        Json event = Json::object({{"type",
                                    custom ? "response.custom_tool_call_input.delta"
                                           : "response.function_call_arguments.delta"}});
        event.set("delta", piece);
        emit(place(std::move(event), false), events);
    }

    /// A stretch of content_logprobs_ as a list.
    Json logprobs_of(size_t begin, size_t end) const {
        std::string_view text(content_logprobs_);
        text = text.substr(begin, end - begin);
        if (text.substr(0, 2) == ", ") text.remove_prefix(2);
        return Json::raw("[" + std::string(text) + "]");
    }

    Json part_json(const Item& item, const std::string& text) const {
        if (item.kind == Kind::kReasoning)
            return Json::object({{"type", "reasoning_text"}, {"text", text}});
        Json part = Json::object({{"type", "output_text"}});
        part.set("annotations", Json::array());
        part.set("logprobs", logprobs_of(item.logprobs_begin, item.logprobs_end));
        part.set("text", text);
        return part;
    }

    void part_event(const char* type, std::vector<StreamEvent>* events) {
        Json event = Json::object({{"type", type}});
        event.set("part", part_json(items_.back(), items_.back().text));
        emit(place(std::move(event), true), events);
    }

    Json item_json(const Item& item) const {
        static constexpr const char* kTypes[] = {
            "reasoning", "message", "function_call", "custom_tool_call"};
        Json out = Json::object({{"type", kTypes[static_cast<int>(item.kind)]},
                                 {"id", item.id},
                                 {"status", item.status}});
        Json content = Json::array();
        if (item.has_part) content.push_back(part_json(item, item.text));
        switch (item.kind) {
            case Kind::kReasoning:
                out.set("content", std::move(content));
                out.set("summary", Json::array());
                out.set("encrypted_content",
                        context_.response_id + "-" + item.id.substr(item.id.rfind('_') + 1));
                break;
            case Kind::kMessage:
                out.set("role", "assistant");
                out.set("phase", item.commentary ? "commentary" : "final_answer");
                out.set("content", std::move(content));
                break;
            case Kind::kFunction:
            case Kind::kCustom:
                out.set("call_id", item.call_id);
                out.set("name", item.name);
                if (!item.name_space.empty()) out.set("namespace", item.name_space);
                out.set(item.kind == Kind::kFunction ? "arguments" : "input",
                        item.has_part ? item.text : "");
                break;
        }
        return out;
    }

    // ---------------------------------------------------------------- the response

    Json whole() const {
        Json out = Json::object({{"id", context_.response_id},
                                 {"object", "response"},
                                 {"created_at", context_.created}});
        out.set("status",
                !done_               ? "in_progress"
                : !failed_.is_null() ? "failed"
                : incomplete_        ? "incomplete"
                                     : "completed");
        out.set("background", false);
        out.set("completed_at", done_ && failed_.is_null() ? Json(completed_at_) : Json());
        out.set("content_filters", Json());
        out.set("error", failed_);
        out.set("frequency_penalty", 0.0);
        const bool length = parser_.finish_reason() == FinishReason::kLength;
        out.set("incomplete_details",
                incomplete_
                    ? Json::object({{"reason", length ? "max_output_tokens" : "content_filter"}})
                    : Json());
        out.set("max_tool_calls", Json());
        out.set("model", context_.model);
        out.set("moderation", Json());
        Json output = Json::array();
        if (done_)
            for (const Item& item : items_) output.push_back(item_json(item));
        out.set("output", std::move(output));
        out.set("parallel_tool_calls", true);
        out.set("presence_penalty", 0.0);
        out.set("prompt_cache_key", Json());
        out.set("prompt_cache_retention", Json());
        out.set("safety_identifier", Json());
        out.set("service_tier", "default");
        out.set("truncation", "disabled");
        out.set("usage", done_ ? usage() : Json());
        out.set("metadata", Json::object());
        for (const Json::Member& member : echo_json_.members())
            out.set(member.first, member.second);
        add_constraint_notes(context_, &out);
        return out;
    }

    Json usage() const {
        Json out = Json::object({{"input_tokens", context_.prompt_tokens}});
        out.set("input_tokens_details", Json::object({{"cached_tokens", context_.cached_tokens}}));
        out.set("output_tokens", completion_tokens_);
        out.set("output_tokens_details", Json::object({{"reasoning_tokens", reasoning_tokens_}}));
        out.set("total_tokens", context_.prompt_tokens + completion_tokens_);
        return out;
    }

    void emit(Json event, std::vector<StreamEvent>* events) {
        event.set("sequence_number", sequence_number_++);
        events->push_back({event.find("type")->as_string(), dump_python(event)});
    }

    const std::string echo_;
    Json echo_json_;
    const std::map<std::string, std::pair<std::string, std::string>> namespace_tools_;
    const std::vector<std::string> custom_tools_;
    std::vector<Item> items_;
    bool is_open_ = false;
    InputDecoder input_;
    size_t shown_logprobs_ = 0;  // how much of content_logprobs_ the events have said
    int64_t sequence_number_ = 0;
    bool done_ = false;
    bool incomplete_ = false;
    Json failed_;  // the error, once it failed
    int64_t completed_at_ = 0;
};

}  // namespace

std::unique_ptr<Responder> make_responses_responder(const ConvertedRequest& request,
                                                    ResponseContext context) {
    return std::make_unique<ResponsesResponder>(request, std::move(context));
}

}  // namespace deepinfer::recipe
