// The output parser: a state machine over bytes (prompt spec 5.1) with the repairs of 5.3.
//
// Each state owns a list of markers in order of precedence; whatever is not part of a marker is the
// state's "other text". A byte that ends a marker releases what was held before it, then the state
// changes. Without `compat` some states know more markers and arguments are checked.
#include <algorithm>
#include <array>

#include "deepinfer/recipe.h"
#include "recipe/json_value.h"
#include "recipe/marker_matcher.h"
#include "recipe/special_tokens.h"
#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

namespace {

// Values held back for checking, and bodies kept for recovery (prompt spec 5.3 rule 4).
constexpr size_t kMaxHeldBytes = 64 * 1024;
// A stray tag without its ">" ends after this many bytes: what follows is text again.
constexpr size_t kMaxStrayTagBytes = 128;

enum State {
    kReasoning,
    kContent,
    kJsonSearch,  // content in JSON mode, before the JSON
    kJson,
    kAfterJson,
    kStrayTag,  // inside a closing tag that nothing opened
    kCalls,
    kName,
    kArgs,
    kParamName,
    kParamType,
    kParamString,
    kParamJson,
    kParamUntyped,
    kFinished,
    kNumStates,
};

enum class Action {
    kStop,
    kOpenCalls,
    kEndReasoning,
    kDropThink,
    kDropMarker,
    kStray,
    kOpenJsonFence,
    kOpenJsonObject,
    kOpenJsonArray,
    kCloseJson,
    kBeginInvoke,
    kFinish,
    kEndName,
    kBeginParam,
    kEndInvoke,
    kNextInvoke,
    kEndParamName,
    kTypeString,
    kTypeJson,
    kTypeMissing,
    kEndValue,
};

struct Rule {
    MarkerMatcher matcher;
    Action action;
    size_t stop_idx = 0;  // of kStop
};

struct StateRules {
    std::vector<Rule> rules;
    std::array<bool, 256> interesting{};  // bytes that can begin a marker
};

std::string trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return {};
    return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

bool is_json(std::string_view text) {
    JsonLimits limits;
    limits.depth = 512;
    return parse_json(text, limits).ok();
}

}  // namespace

class StreamParser::Impl {
  public:
    explicit Impl(ParsingOptions options) : options_(std::move(options)) {
        build_rules();
        switch (options_.start) {
            case ParserStart::kReasoning:
            case ParserStart::kReasoningContinued:
                state_ = kReasoning;
                break;
            case ParserStart::kCalls:
                state_ = kCalls;
                break;
            default:
                state_ = content_state();
        }
        leading_ =
            options_.start == ParserStart::kReasoning || options_.start == ParserStart::kContent;
    }

    void push(std::string_view bytes, std::vector<Delta>* out) {
        if (done_) return;
        begin_output(out);
        std::string text;
        utf8_.push(bytes, &text);
        read(text);
    }

    void finish(FinishReason reason, std::vector<Delta>* out) {
        if (done_) return;
        begin_output(out);
        std::string text;
        utf8_.finish(&text);
        read(text);
        if (done_) return;
        const bool close = reason == FinishReason::kStop && !options_.compat;
        std::string rest;
        rest.swap(held_);
        if (!rest.empty()) other_text(rest);
        end_open_call(close);
        done_ = true;
        if (reason == FinishReason::kEndOfStream)
            reason = FinishReason::kStop;
        else if (reason == FinishReason::kStop && num_calls_ > 0)
            reason = FinishReason::kToolCalls;
        finish_reason_ = reason;
    }

    bool finished_early() const { return finished_early_; }
    FinishReason finish_reason() const { return finish_reason_; }
    const std::optional<std::string>& stop_sequence() const { return stop_sequence_; }
    bool in_reasoning() const {
        return state_ == kReasoning || (state_ == kStrayTag && back_ == kReasoning);
    }
    int num_calls() const { return num_calls_; }
    const ParserCounters& counters() const { return counters_; }

  private:
    State content_state() const { return options_.json ? kJsonSearch : kContent; }

    // ---------------------------------------------------------------- rules

    void add(State state, std::string_view marker, Action action, bool with_newlines = false) {
        rules_[state].rules.push_back({MarkerMatcher(std::string(marker), with_newlines), action});
    }

    void add_stops(State state) {
        for (size_t i = 0; i < options_.stop.size(); ++i) {
            if (options_.stop[i].empty()) continue;
            add(state, options_.stop[i], Action::kStop);
            rules_[state].rules.back().stop_idx = i;
        }
    }

    void add_strays(State state) {
        if (options_.compat || !options_.tools) return;
        add(state, "</｜DSML｜", Action::kStray, true);
        add(state, kDsml, Action::kDropMarker);
    }

    void build_rules() {
        const bool repair = !options_.compat;
        const bool calls_here = options_.tools && options_.calls_in_reasoning;
        if (calls_here) add(kReasoning, "<｜DSML｜", Action::kOpenCalls, true);
        add(kReasoning, kThinkEnd, Action::kEndReasoning, true);
        if (calls_here) add_strays(kReasoning);

        add_stops(kContent);
        if (options_.tools) add(kContent, "<｜DSML｜", Action::kOpenCalls, true);
        add(kContent, kThinkEnd, Action::kDropThink);
        add_strays(kContent);

        add(kJsonSearch, "```json\n", Action::kOpenJsonFence);
        add(kJsonSearch, "```\n", Action::kOpenJsonFence);
        add(kJsonSearch, "{", Action::kOpenJsonObject);
        add(kJsonSearch, "[", Action::kOpenJsonArray);
        if (options_.tools) add(kJsonSearch, "<｜DSML｜", Action::kOpenCalls, true);
        add(kJsonSearch, kThinkEnd, Action::kDropThink);

        add_stops(kJson);
        add(kJson, "\n```", Action::kCloseJson);
        if (repair && options_.tools) add(kJson, "<｜DSML｜", Action::kOpenCalls, true);
        add_strays(kJson);
        if (options_.tools) add(kAfterJson, "<｜DSML｜", Action::kOpenCalls);

        add(kCalls, "invoke name=\"", Action::kBeginInvoke);
        add(kCalls, "</｜DSML｜ calls>", Action::kFinish);
        add(kCalls, "</｜DSML｜tool_calls>", Action::kFinish);
        add(kName, "\"", Action::kEndName);
        add(kArgs, "parameter name=\"", Action::kBeginParam);
        add(kArgs, "</｜DSML｜", Action::kEndInvoke);
        if (repair) {  // an invoke that nothing closed ends where the next one begins
            add(kArgs, "<｜DSML｜ invoke name=\"", Action::kNextInvoke);
            add(kArgs, "<｜DSML｜invoke name=\"", Action::kNextInvoke);
        }
        add(kParamName, "\"", Action::kEndParamName);
        add(kParamType, "true\">", Action::kTypeString);
        add(kParamType, "false\">", Action::kTypeJson);
        if (repair) add(kParamType, ">", Action::kTypeMissing);
        for (const State value : {kParamString, kParamJson, kParamUntyped})
            add(value, "</｜DSML｜", Action::kEndValue);

        for (StateRules& state : rules_) {
            for (const Rule& rule : state.rules) {
                state.interesting[static_cast<unsigned char>(rule.matcher.first_byte())] = true;
                if (rule.matcher.with_newlines())
                    state.interesting[static_cast<unsigned char>('\n')] = true;
            }
        }
    }

    // ---------------------------------------------------------------- reading

    void enter(State state, bool leading = false) {
        for (Rule& rule : rules_[state_].rules) rule.matcher.reset();
        for (Rule& rule : rules_[state].rules) rule.matcher.reset();
        state_ = state;
        leading_ = leading;
    }

    void read(std::string_view text) {
        size_t i = 0;
        while (i < text.size() && !done_) {
            if (state_ == kStrayTag) {
                if (text[i++] == '>') {
                    enter(back_, true);
                } else if (++num_stray_bytes_ >= kMaxStrayTagBytes) {
                    enter(back_);
                }
                continue;
            }
            if (held_.empty()) {
                if (leading_ && text[i] == '\n' && !stop_on_newline()) {
                    for (Rule& rule : rules_[state_].rules) rule.matcher.reset();
                    ++i;
                    continue;
                }
                const std::array<bool, 256>& interesting = rules_[state_].interesting;
                size_t end = i;
                while (end < text.size() && !interesting[static_cast<unsigned char>(text[end])])
                    ++end;
                if (end > i) {
                    // At rest every matcher is: such bytes change none of them.
                    const std::string_view span = text.substr(i, end - i);
                    i = end;
                    leading_ = false;
                    other_text(span);
                    continue;
                }
            }
            read_byte(text[i++]);
        }
        if (done_ && i < text.size()) ++counters_.num_invalid_markers;
    }

    /// A stop sequence of one newline comes before the rule that drops leading newlines.
    bool stop_on_newline() const {
        return state_ == kContent &&
               std::find(options_.stop.begin(), options_.stop.end(), "\n") != options_.stop.end();
    }

    void read_byte(char c) {
        held_.push_back(c);
        size_t num_held = 0;
        for (Rule& rule : rules_[state_].rules) {
            if (rule.matcher.feed(c)) {
                const size_t length = rule.matcher.match_length();
                const std::string before = held_.substr(0, held_.size() - length);
                held_.clear();
                const Action action = rule.action;
                const size_t stop_idx = rule.stop_idx;
                if (!before.empty()) {
                    leading_ = false;
                    other_text(before);
                }
                act(action, stop_idx);
                return;
            }
            num_held = std::max(num_held, rule.matcher.num_held());
        }
        if (num_held < held_.size()) {
            std::string free = held_.substr(0, held_.size() - num_held);
            held_.erase(0, free.size());
            leading_ = false;
            other_text(free);
        } else if (leading_ && c != '\n') {
            leading_ = false;
        }
    }

    void act(Action action, size_t stop_idx) {
        switch (action) {
            case Action::kStop:
                stop_sequence_ = options_.stop[stop_idx];
                end_early(FinishReason::kStop);
                break;
            case Action::kOpenCalls:
                enter(kCalls);
                break;
            case Action::kEndReasoning:
                enter(content_state(), true);
                break;
            case Action::kDropThink:
            case Action::kDropMarker:
                ++counters_.num_invalid_markers;
                enter(state_);
                break;
            case Action::kStray:
                ++counters_.num_invalid_markers;
                back_ = state_;
                num_stray_bytes_ = 0;
                enter(kStrayTag);
                break;
            case Action::kOpenJsonFence:
                enter(kJson);
                break;
            case Action::kOpenJsonObject:
            case Action::kOpenJsonArray:  // the bracket belongs to the JSON
                enter(kJson);
                other_text(action == Action::kOpenJsonObject ? "{" : "[");
                break;
            case Action::kCloseJson:
                enter(kAfterJson);
                break;
            case Action::kBeginInvoke:
                name_.clear();
                enter(kName);
                break;
            case Action::kFinish:
                enter(kFinished);
                break;
            case Action::kEndName:
                begin_call();
                break;
            case Action::kBeginParam:
                arguments(first_parameter_ ? "{\"" : ", \"");
                first_parameter_ = false;
                parameter_.clear();
                enter(kParamName);
                break;
            case Action::kEndInvoke:
                end_invoke(kCalls);
                break;
            case Action::kNextInvoke:
                ++counters_.num_repaired_arguments;
                end_invoke(kName);
                name_.clear();
                break;
            case Action::kEndParamName:
                arguments("\": ");
                enter(kParamType);
                break;
            case Action::kTypeString:
                arguments("\"");
                enter(kParamString);
                break;
            case Action::kTypeJson:
                begin_value(kParamJson);
                break;
            case Action::kTypeMissing:
                ++counters_.num_repaired_arguments;
                if (schema_says_not_string()) {
                    begin_value(kParamUntyped);
                } else {
                    arguments("\"");
                    enter(kParamString);
                }
                break;
            case Action::kEndValue:
                end_value();
                enter(kArgs);
                break;
        }
    }

    void other_text(std::string_view text) {
        switch (state_) {
            case kReasoning:
                emit(Delta::Kind::kReasoning, 0, text);
                break;
            case kContent:
            case kJson:
                filler_ = false;
                emit(Delta::Kind::kContent, 0, text);
                break;
            case kJsonSearch:
            case kAfterJson:
                if (!filler_) emit(Delta::Kind::kContent, 0, " ");
                filler_ = true;
                break;
            case kName:
                name_.append(text);
                break;
            case kArgs:
                if (first_parameter_ && skipped_.size() < kMaxHeldBytes) skipped_.append(text);
                break;
            case kParamName: {
                parameter_.append(text);
                std::string escaped;
                json_escape(text, &escaped);
                arguments(escaped);
                break;
            }
            case kParamString: {
                std::string escaped;
                json_escape(text, &escaped);
                arguments(escaped);
                break;
            }
            case kParamJson:
            case kParamUntyped:
                value_text(text);
                break;
            case kFinished:
                ++counters_.num_invalid_markers;
                break;
            default:
                break;  // kCalls, kParamType: markup between the parts
        }
    }

    // ---------------------------------------------------------------- calls

    void begin_call() {
        if (!options_.parameters.empty() &&
            options_.parameters.find(name_) == options_.parameters.end())
            ++counters_.num_undeclared_calls;
        ++num_calls_;
        emit(Delta::Kind::kCall, num_calls_ - 1, name_);
        first_parameter_ = true;
        skipped_.clear();
        enter(kArgs);
    }

    void arguments(std::string_view text) { emit(Delta::Kind::kArguments, num_calls_ - 1, text); }

    void end_invoke(State next) {
        if (first_parameter_) {
            arguments(body_without_parameters());
        } else {
            arguments("}");
        }
        enter(next);
        if (!options_.parallel_tool_calls) end_early(FinishReason::kToolCalls);
    }

    /// Arguments of an invoke without parameter tags: nothing, a JSON object written instead of
    /// tags, or text that cannot be read. The last is passed on as it stands (it is no JSON), so
    /// that nobody takes the call for one without arguments.
    std::string body_without_parameters() {
        if (options_.compat) return "{}";
        std::string body = trimmed(skipped_);
        if (!body.empty() && body.front() == '/') body.erase(0, 1);  // self-closing tag
        if (!body.empty() && body.front() == '>') body.erase(0, 1);
        body = trimmed(body);
        if (body.empty()) return "{}";
        ++counters_.num_repaired_arguments;
        if (body.front() == '{' && is_json(body)) return body;
        ++counters_.num_incomplete_calls;
        return body;
    }

    bool checks_values() const { return !options_.compat && options_.strict_arguments; }

    void begin_value(State state) {
        value_.clear();
        passing_ = state == kParamJson && !checks_values();
        enter(state);
    }

    void value_text(std::string_view text) {
        if (passing_) {
            arguments(text);
            return;
        }
        value_.append(text);
        if (value_.size() <= kMaxHeldBytes) return;
        arguments(value_);  // too long to hold: from here on it goes out unchecked
        value_.clear();
        passing_ = true;
    }

    void end_value() {
        if (state_ == kParamString) {
            arguments("\"");
        } else if (!passing_) {
            if (is_json(value_)) {
                arguments(value_);
            } else {
                ++counters_.num_repaired_arguments;
                arguments(json_quote(value_));
            }
        }
    }

    /// The declared schema gives this parameter a type, and it is not a string.
    bool schema_says_not_string() const {
        const auto found = options_.parameters.find(name_);
        if (found == options_.parameters.end()) return false;
        const Result<Json> schema = parse_json(found->second);
        if (!schema.ok()) return false;
        const Json* properties = schema.value().find("properties");
        const Json* property = properties == nullptr ? nullptr : properties->find(parameter_);
        const Json* type = property == nullptr ? nullptr : property->find("type");
        if (type == nullptr) return false;
        if (type->is_string()) return type->as_string() != "string";
        if (!type->is_array() || type->items().empty()) return false;
        return std::none_of(type->items().begin(), type->items().end(), [](const Json& item) {
            return item.is_string() && item.as_string() == "string";
        });
    }

    /// The stream ended. Inside a call: `close` makes the arguments parse, otherwise they stay cut.
    void end_open_call(bool close) {
        switch (state_) {
            case kParamName:
                if (close) arguments("\": null}");
                break;
            case kParamType:
                if (close) arguments("null}");
                break;
            case kParamString:
                if (close) arguments("\"}");
                break;
            case kParamJson:
            case kParamUntyped:
                if (close) {
                    end_value();
                    arguments("}");
                } else if (!passing_) {
                    arguments(value_);
                }
                break;
            case kArgs:
                if (close) arguments(first_parameter_ ? body_without_parameters() : "}");
                break;
            default:
                return;
        }
        if (close) ++counters_.num_repaired_arguments;
    }

    void end_early(FinishReason reason) {
        enter(kFinished);
        finish_reason_ = reason;
        finished_early_ = done_ = true;
    }

    // ---------------------------------------------------------------- output

    void begin_output(std::vector<Delta>* out) {
        out_ = out;
        num_old_ = out->size();
    }

    void emit(Delta::Kind kind, int call_idx, std::string_view text) {
        if (text.empty() && kind != Delta::Kind::kCall) return;
        if (out_->size() > num_old_ && kind != Delta::Kind::kCall && out_->back().kind == kind &&
            out_->back().call_idx == call_idx) {
            out_->back().text.append(text);
        } else {
            out_->push_back({kind, call_idx, std::string(text)});
        }
    }

    const ParsingOptions options_;
    std::array<StateRules, kNumStates> rules_;
    Utf8Stream utf8_;
    State state_ = kContent;
    State back_ = kContent;  // where a stray tag returns to
    bool leading_ = false;   // no text yet: newlines are dropped
    std::string held_;       // may be the beginning of a marker
    bool filler_ = false;    // JSON mode: the last content was a blank in place of text
    size_t num_stray_bytes_ = 0;

    std::string name_;       // of the current call
    std::string parameter_;  // of the current parameter
    std::string skipped_;    // between the name and the first parameter
    std::string value_;      // held back until it is complete
    bool passing_ = false;   // the value goes out as it comes
    bool first_parameter_ = true;
    int num_calls_ = 0;

    bool done_ = false;
    bool finished_early_ = false;
    FinishReason finish_reason_ = FinishReason::kEndOfStream;
    std::optional<std::string> stop_sequence_;
    ParserCounters counters_;
    std::vector<Delta>* out_ = nullptr;  // during push() and finish()
    size_t num_old_ = 0;
};

StreamParser::StreamParser(ParsingOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
StreamParser::~StreamParser() = default;
StreamParser::StreamParser(StreamParser&&) noexcept = default;
StreamParser& StreamParser::operator=(StreamParser&&) noexcept = default;

void StreamParser::push(std::string_view bytes, std::vector<Delta>* out) {
    impl_->push(bytes, out);
}
void StreamParser::finish(FinishReason reason, std::vector<Delta>* out) {
    impl_->finish(reason, out);
}
bool StreamParser::finished() const {
    return impl_->finished_early();
}
FinishReason StreamParser::finish_reason() const {
    return impl_->finish_reason();
}
const std::optional<std::string>& StreamParser::stop_sequence() const {
    return impl_->stop_sequence();
}
bool StreamParser::in_reasoning() const {
    return impl_->in_reasoning();
}
int StreamParser::num_calls() const {
    return impl_->num_calls();
}
const ParserCounters& StreamParser::counters() const {
    return impl_->counters();
}

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::kLength:
            return "length";
        case FinishReason::kContentFilter:
            return "content_filter";
        case FinishReason::kToolCalls:
            return "tool_calls";
        case FinishReason::kStop:
        case FinishReason::kEndOfStream:
            break;
    }
    return "stop";
}

}  // namespace deepinfer::recipe
