// Tokenizer, stream decoder and the recipe's text functions for Python.
#include "bind_common.h"
#include "deepinfer/recipe_protocol.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer::python {

using namespace nb::literals;

nb::list deltas_to_python(const std::vector<recipe::Delta>& deltas) {
    nb::list out;
    for (const recipe::Delta& d : deltas) {
        switch (d.kind) {
            case recipe::Delta::Kind::kReasoning:
                out.append(nb::make_tuple("reasoning", d.text));
                break;
            case recipe::Delta::Kind::kContent:
                out.append(nb::make_tuple("content", d.text));
                break;
            case recipe::Delta::Kind::kCall:
                out.append(nb::make_tuple("call", d.call_idx, d.text));
                break;
            case recipe::Delta::Kind::kArguments:
                out.append(nb::make_tuple("arguments", d.call_idx, d.text));
                break;
        }
    }
    return out;
}

namespace {

[[noreturn]] void refuse(const std::string& message) {
    throw StatusError({StatusCode::kInvalidArgument, message});
}

SpecialTokens special_from(std::string_view word) {
    if (word == "parse") return SpecialTokens::kParse;
    if (word == "plain") return SpecialTokens::kPlain;
    refuse("special is '" + std::string(word) + "', expected parse or plain");
}

void check_id(const Tokenizer& t, int32_t id) {
    if (t.contains(id)) return;
    refuse("token id " + std::to_string(id) + " is outside the vocabulary of " +
           std::to_string(t.vocab_size()));
}

/// StreamParser with names instead of enumerations.
class Parser {
  public:
    Parser(std::string_view start,
           bool tools,
           bool json,
           std::vector<std::string> stop,
           bool parallel_tool_calls,
           bool calls_in_reasoning,
           bool compat)
        : parser_(options(start,
                          tools,
                          json,
                          std::move(stop),
                          parallel_tool_calls,
                          calls_in_reasoning,
                          compat)) {}

    nb::list push(const nb::object& piece) {
        std::vector<recipe::Delta> deltas;
        if (nb::isinstance<nb::bytes>(piece)) {
            const auto bytes = nb::cast<nb::bytes>(piece);
            parser_.push({bytes.c_str(), bytes.size()}, &deltas);
        } else {
            parser_.push(nb::cast<std::string>(piece), &deltas);
        }
        return deltas_to_python(deltas);
    }
    nb::list finish(std::optional<std::string> reason) {
        std::vector<recipe::Delta> deltas;
        parser_.finish(finish_from(reason), &deltas);
        return deltas_to_python(deltas);
    }
    const recipe::StreamParser& get() const { return parser_; }

  private:
    static recipe::ParsingOptions options(std::string_view start,
                                          bool tools,
                                          bool json,
                                          std::vector<std::string> stop,
                                          bool parallel_tool_calls,
                                          bool calls_in_reasoning,
                                          bool compat) {
        using recipe::ParserStart;
        static constexpr std::pair<std::string_view, ParserStart> kStarts[] = {
            {"content", ParserStart::kContent},
            {"reasoning", ParserStart::kReasoning},
            {"reasoning_continued", ParserStart::kReasoningContinued},
            {"content_continued", ParserStart::kContentContinued},
            {"calls", ParserStart::kCalls},
        };
        recipe::ParsingOptions o;
        o.tools = tools;
        o.json = json;
        o.stop = std::move(stop);
        o.parallel_tool_calls = parallel_tool_calls;
        o.calls_in_reasoning = calls_in_reasoning;
        o.compat = compat;
        for (const auto& [name, value] : kStarts) {
            if (name != start) continue;
            o.start = value;
            return o;
        }
        refuse("start is '" + std::string(start) +
               "', expected content, reasoning, reasoning_continued, content_continued or calls");
    }
    static recipe::FinishReason finish_from(const std::optional<std::string>& word) {
        if (!word) return recipe::FinishReason::kEndOfStream;
        if (*word == "stop") return recipe::FinishReason::kStop;
        if (*word == "length") return recipe::FinishReason::kLength;
        if (*word == "content_filter") return recipe::FinishReason::kContentFilter;
        refuse("finish is '" + *word + "', expected stop, length, content_filter or None");
    }

    recipe::StreamParser parser_;
};

/// Takes the tokenizer by value (a shared pointer inside), so that work goes on without the lock.
std::vector<int32_t> encode(const Tokenizer& t, const std::string& text, std::string_view special) {
    const SpecialTokens mode = special_from(special);
    nb::gil_scoped_release release;
    return t.encode(text, mode);
}

void bind_tokenizer(nb::module_& module) {
    nb::class_<Tokenizer>(module, "Tokenizer")
        .def(
            "__init__",
            [](Tokenizer* self, const std::string& path) {
                new (self) Tokenizer(take(Tokenizer::load(path)));
            },
            "path"_a)
        .def("encode", &encode, "text"_a, "special"_a = "parse")
        .def(
            "decode",
            [](const Tokenizer& t, const std::vector<int32_t>& ids) { return take(t.decode(ids)); },
            "ids"_a)
        .def(
            "id_of",
            [](const Tokenizer& t, const std::string& token) { return t.id_of(token); },
            "token"_a)
        .def(
            "token_bytes",
            [](const Tokenizer& t, int32_t id) {
                check_id(t, id);
                const std::string_view bytes = t.token_bytes(id);
                return nb::bytes(bytes.data(), bytes.size());
            },
            "id"_a)
        .def(
            "token_text",
            [](const Tokenizer& t, int32_t id) {
                check_id(t, id);
                return t.token_text(id);
            },
            "id"_a)
        .def(
            "is_special",
            [](const Tokenizer& t, int32_t id) {
                check_id(t, id);
                return t.is_special(id);
            },
            "id"_a)
        .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
        .def_prop_ro("bos_id", &Tokenizer::bos_id)
        .def_prop_ro("eos_id", &Tokenizer::eos_id)
        .def("__len__", &Tokenizer::vocab_size);

    nb::class_<StreamDecoder>(module, "StreamDecoder")
        .def(nb::init<const Tokenizer&>(), "tokenizer"_a)
        .def(
            "push", [](StreamDecoder& d, int32_t id) { return take(d.push(id)); }, "id"_a)
        .def(
            "push",
            [](StreamDecoder& d, const std::vector<int32_t>& ids) {
                return take(d.push(std::span<const int32_t>(ids)));
            },
            "ids"_a)
        .def("finish", &StreamDecoder::finish);
}

}  // namespace

void bind_text(nb::module_& module) {
    bind_tokenizer(module);
    module.def(
        "encode_json_line",
        [](const Tokenizer& t, const std::string& line) {
            nb::gil_scoped_release release;
            return recipe::encode_json_line(t, line);
        },
        "tokenizer"_a,
        "line"_a);
    module.def(
        "parse_json_line",
        [](const Tokenizer* t, const std::string& line) {
            nb::gil_scoped_release release;
            return recipe::parse_json_line(t, line);
        },
        "tokenizer"_a.none(),
        "line"_a);
    nb::class_<Parser>(module, "StreamParser")
        .def(nb::init<std::string_view, bool, bool, std::vector<std::string>, bool, bool, bool>(),
             "start"_a = "content",
             nb::kw_only(),
             "tools"_a = true,
             "json"_a = false,
             "stop"_a = std::vector<std::string>(),
             "parallel_tool_calls"_a = true,
             "calls_in_reasoning"_a = true,
             "compat"_a = false)
        .def("push", &Parser::push, "piece"_a)
        .def("finish", &Parser::finish, "reason"_a.none() = "stop")
        .def_prop_ro("finished", [](const Parser& p) { return p.get().finished(); })
        .def_prop_ro(
            "finish_reason",
            [](const Parser& p) { return recipe::finish_reason_name(p.get().finish_reason()); })
        .def_prop_ro("stop_sequence", [](const Parser& p) { return p.get().stop_sequence(); })
        .def_prop_ro("in_reasoning", [](const Parser& p) { return p.get().in_reasoning(); })
        .def_prop_ro("num_calls", [](const Parser& p) { return p.get().num_calls(); });
}

}  // namespace deepinfer::python
