// All golden vectors through the JSON Lines doors (tests/data/recipe/README.md). The comparison:
//   encode   text, ids, images, parsing, stream and conversation equal (arguments as JSON values,
//   null in
//            a tool the same as absent); numbers of sampling up to 1e-5
//   parse    everything equal, and after each chunk at least as much said as the reference had said
//   respond  neighbouring deltas of one text joined, ids by order of appearance, times 0, more keys
//   allowed error    the status
#include <cmath>
#include <functional>
#include <map>

#include "recipe/recipe_test_util.h"

namespace deepinfer::recipe {
namespace {

using Value = nlohmann::json;
using ::deepinfer::testing::read_packed;
using ::deepinfer::testing::released_tokenizer;

bool same(const Value& want, const Value& got) {
    if (want.is_number() && got.is_number()) {
        if (want.is_number_integer() && got.is_number_integer()) return want == got;
        const double a = want.get<double>();
        const double b = got.get<double>();
        return std::abs(a - b) <= std::max(1e-5 * std::max(std::abs(a), std::abs(b)), 1e-9);
    }
    if (want.type() != got.type() || want.size() != got.size()) return false;
    if (want.is_object()) {
        for (const auto& item : want.items())
            if (!got.contains(item.key()) || !same(item.value(), got[item.key()])) return false;
        return true;
    }
    if (want.is_array()) {
        for (size_t i = 0; i < want.size(); ++i)
            if (!same(want[i], got[i])) return false;
        return true;
    }
    return want == got;
}

void check(const char* name, const Value& want, const Value& got) {
    if (!same(want, got))
        ADD_FAILURE() << name << "\n  want " << want.dump().substr(0, 1500) << "\n  got  "
                      << got.dump().substr(0, 1500);
}

Value canonical_conversation(Value c) {
    const auto clean_tools = [](Value* owner) {
        if (!owner->contains("tools")) return;
        for (Value& tool : (*owner)["tools"]) {
            std::vector<std::string> nulls;
            for (const auto& item : tool.items())
                if (item.value().is_null()) nulls.push_back(item.key());
            for (const std::string& key : nulls) tool.erase(key);
        }
    };
    clean_tools(&c);
    for (Value& message : c["messages"]) {
        clean_tools(&message);
        if (!message.contains("tool_calls")) continue;
        for (Value& call : message["tool_calls"]) {
            const Value parsed = Value::parse(call["arguments"].get<std::string>(), nullptr, false);
            if (!parsed.is_discarded()) call["arguments"] = parsed;
        }
    }
    return c;
}

// ---------------------------------------------------------------- parse

Value merged(const Value& events) {
    Value out = Value::array();
    for (const Value& e : events) {
        const bool joins = !out.empty() && e[0] != "call" && out.back().size() == e.size() &&
                           out.back()[0] == e[0] && (e.size() == 2 || out.back()[1] == e[1]);
        if (joins) {
            out.back().back() = out.back().back().get<std::string>() + e.back().get<std::string>();
        } else {
            out.push_back(e);
        }
    }
    return out;
}

bool same_head(const Value& a, const Value& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i + 1 < a.size(); ++i)
        if (a[i] != b[i]) return false;
    return true;
}

/// Never later than the reference.
void check_timing(const Value& want, const Value& got) {
    ASSERT_EQ(want.size(), got.size()) << "one list per chunk that was read, and one for the end";
    Value said = Value::array();
    Value heard = Value::array();
    for (size_t i = 0; i < want.size(); ++i) {
        for (const Value& e : want[i]) said.push_back(e);
        for (const Value& e : got[i]) heard.push_back(e);
        said = merged(said);
        heard = merged(heard);
        for (size_t k = 0; k < said.size(); ++k) {
            const bool last = k + 1 == said.size();
            std::string text = said[k].back().is_string() ? said[k].back().get<std::string>() : "";
            if (last &&
                said[k][0] == "arguments") {  // the reference opens a parameter before its quote
                if (text.size() >= 2 && text.compare(text.size() - 2, 2, ", ") == 0) {
                    text.resize(text.size() - 2);
                } else if (!text.empty() && text.back() == '{') {
                    text.pop_back();
                }
                if (text.empty() && k >= heard.size()) continue;
            }
            const bool there = k < heard.size() && same_head(said[k], heard[k]);
            const std::string mine = there ? heard[k].back().get<std::string>() : "";
            const bool enough =
                there && (last && said[k][0] != "call" ? mine.compare(0, text.size(), text) == 0
                                                       : mine == text);
            if (!enough)
                ADD_FAILURE() << "after chunk " << i << ": want at least " << said.dump()
                              << ", got " << heard.dump();
        }
    }
}

std::string stripped(const Value& text) {
    const std::string s = text.get<std::string>();
    const size_t begin = s.find_first_not_of(' ');
    return begin == std::string::npos ? "" : s.substr(begin, s.find_last_not_of(' ') - begin + 1);
}

Value without_content(const Value& events) {
    Value out = Value::array();
    for (const Value& e : events)
        if (e[0] != "content") out.push_back(e);
    return out;
}

void check_parse(const Value& request, const Value& want, const Value& got) {
    const bool json = request.value("json", false);
    // A call that the reference reports only at the end comes too late for its own finish reason.
    bool late = false;
    if (want.contains("deltas"))
        for (const Value& e : want["deltas"].back()) late = late || e[0] == "call";
    if (json) {
        check("events", without_content(want["events"]), without_content(got["events"]));
        EXPECT_EQ(stripped(want["content"]), stripped(got["content"]));
    } else {
        check("events", want["events"], got["events"]);
        check("content", want["content"], got["content"]);
    }
    check("reasoning", want["reasoning"], got["reasoning"]);
    check("tool_calls", want["tool_calls"], got["tool_calls"]);
    if (!late) check("finish_reason", want["finish_reason"], got["finish_reason"]);
    if (!want.contains("deltas")) return;
    check("finished_at", want["finished_at"], got["finished_at"]);
    if (!json) check_timing(want["deltas"], got["deltas"]);
}

// ---------------------------------------------------------------- respond

/// The text that an event carries and may be cut anywhere: a pointer to it and what it belongs to.
std::pair<Value*, std::string> delta_text(Value* e) {
    const std::string type = e->value("type", "");
    if (e->value("object", "") == "chat.completion.chunk" && !(*e)["choices"].empty()) {
        Value& choice = (*e)["choices"][0];
        Value& d = choice["delta"];
        if (d.contains("tool_calls")) {
            Value& call = d["tool_calls"][0];
            if (call.contains("id")) return {nullptr, ""};
            return {&call["function"]["arguments"], "call" + call["index"].dump()};
        }
        if (d.contains("role") || !choice["finish_reason"].is_null()) return {nullptr, ""};
        for (const char* key : {"content", "reasoning_content"})
            if (d.contains(key) && d[key].is_string() && !d[key].get<std::string>().empty())
                return {&d[key], key};
        return {nullptr, ""};
    }
    if (type == "content_block_delta") {
        static const std::map<std::string, std::string> keys = {
            {"input_json_delta", "partial_json"},
            {"text_delta", "text"},
            {"thinking_delta", "thinking"}};
        const auto found = keys.find((*e)["delta"]["type"].get<std::string>());
        if (found == keys.end()) return {nullptr, ""};
        return {&(*e)["delta"][found->second], found->second + (*e)["index"].dump()};
    }
    if (type == "response.function_call_arguments.delta" ||
        type == "response.custom_tool_call_input.delta" || type == "response.output_text.delta" ||
        type == "response.reasoning_text.delta")
        return {&(*e)["delta"], type + (*e)["output_index"].dump()};
    return {nullptr, ""};
}

Value merged_events(const Value& events) {
    Value out = Value::array();
    std::string group;
    for (Value e : events) {
        e.erase("sequence_number");
        const auto text = delta_text(&e);
        if (text.first != nullptr && !group.empty() && group == text.second) {
            Value* before = delta_text(&out.back()).first;
            *before = before->get<std::string>() + text.first->get<std::string>();
            continue;
        }
        group = text.first == nullptr ? "" : text.second;
        out.push_back(e);
    }
    return out;
}

Value neutral(const Value& value, std::map<std::string, std::string>* names) {
    if (value.is_array()) {
        Value out = Value::array();
        for (const Value& item : value) out.push_back(neutral(item, names));
        return out;
    }
    if (!value.is_object()) return value;
    Value out = Value::object();
    for (const auto& item : value.items()) {
        const std::string& key = item.key();
        const bool id = key == "id" || key == "item_id" || key == "call_id" || key == "signature" ||
                        key == "encrypted_content";
        if (id && item.value().is_string()) {
            out[key] =
                names
                    ->emplace(item.value().get<std::string>(), "id" + std::to_string(names->size()))
                    .first->second;
        } else if ((key == "created" || key == "created_at" || key == "completed_at") &&
                   item.value().is_number()) {
            out[key] = 0;
        } else {
            out[key] = neutral(item.value(), names);
        }
    }
    return out;
}

/// `got` without the keys that `want` does not have.
Value subset(const Value& want, const Value& got) {
    if (want.is_object() && got.is_object()) {
        Value out = Value::object();
        for (const auto& item : want.items())
            if (got.contains(item.key())) out[item.key()] = subset(item.value(), got[item.key()]);
        return out;
    }
    if (want.is_array() && got.is_array() && want.size() == got.size()) {
        Value out = Value::array();
        for (size_t i = 0; i < want.size(); ++i) out.push_back(subset(want[i], got[i]));
        return out;
    }
    return got;
}

void check_neutral(const char* name, const Value& want, const Value& got) {
    std::map<std::string, std::string> a;
    std::map<std::string, std::string> b;
    const Value w = neutral(want, &a);
    check(name, w, subset(w, neutral(got, &b)));
}

void check_respond(const Value& want, const Value& got) {
    check_neutral("events", merged_events(want["events"]), merged_events(got["events"]));
    check_neutral("response", want["response"], got["response"]);
    for (size_t i = 0; i < got["events"].size(); ++i)
        if (got["events"][i].contains("sequence_number")) {
            EXPECT_EQ(got["events"][i]["sequence_number"], i);
        }
}

// ---------------------------------------------------------------- all

void check_case(const Value& test_case, const std::string& line) {
    const Value& request = test_case["request"];
    const Value& want = test_case["expect"];
    SCOPED_TRACE(request["id"].get<std::string>() + " " + test_case.value("name", ""));
    const std::string op = request["op"].get<std::string>();
    const std::string text = op == "encode" ? encode_json_line(released_tokenizer(), line)
                                            : parse_json_line(&released_tokenizer(), line);
    const Value got = Value::parse(text, nullptr, false);
    ASSERT_TRUE(got.is_object()) << text;
    EXPECT_EQ(got["id"], request["id"]);
    if (want.contains("error") || got.contains("error")) {
        const auto status = [](const Value& v) {
            return v.contains("error") ? v["error"]["status"].get<int>() : 200;
        };
        EXPECT_EQ(status(want), status(got)) << text.substr(0, 400);
        return;
    }
    if (op == "encode") {
        for (const char* key : {"text", "ids", "images", "parsing", "sampling", "stream"})
            if (want.contains(key)) check(key, want[key], got.value(key, Value()));
        if (want.contains("conversation")) {
            ASSERT_TRUE(got.contains("conversation"));
            check("conversation",
                  canonical_conversation(want["conversation"]),
                  canonical_conversation(got["conversation"]));
        }
    } else if (op == "parse") {
        check_parse(request, want, got);
    } else {
        check_respond(want, got);
    }
}

void run_file(const std::string& name, size_t num_cases) {
    const TestJson ordered = TestJson::parse(read_packed("recipe/" + name + "_cases.json.gz"));
    ASSERT_EQ(ordered["cases"].size(), num_cases);
    size_t i = 0;
    for (const TestJson& test_case : ordered["cases"]) {
        // Every second line in plain UTF-8, the others with escapes: both must be read.
        const std::string line = test_case["request"].dump(-1, ' ', i++ % 2 == 1);
        check_case(Value(test_case), line);
    }
}

TEST(RecipeGolden, EncodeCases) {
    run_file("encode", 170);
}
TEST(RecipeGolden, ConvertCases) {
    run_file("convert", 110);
}
TEST(RecipeGolden, ErrorCases) {
    run_file("error", 124);
}
TEST(RecipeGolden, ParseCases) {
    run_file("parse", 129);
}
TEST(RecipeGolden, RespondCases) {
    run_file("respond", 32);
}
TEST(RecipeGolden, ModelCases) {
    run_file("model", 40);
}
TEST(RecipeGolden, OwnCases) {
    run_file("own", 21);
}

}  // namespace
}  // namespace deepinfer::recipe
