#include "deepinfer/structured_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "deepinfer/structured_output.h"
#include "grammar/token_matcher.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;
using Args = StructuredOutputArgs;

const char* const kPrompts[] = {"What is the capital of France?",
                                "Name a number between 1 and 9.",
                                "Describe the weather in one word."};

/// [A-Z][a-z]{1,11}( [0-9]{1,3})?
bool valid_word(const std::string& s) {
    size_t i = 0;
    const auto run = [&](char lo, char hi) {
        size_t n = 0;
        while (i < s.size() && s[i] >= lo && s[i] <= hi) {
            ++i;
            ++n;
        }
        return n;
    };
    if (s.empty() || s[0] < 'A' || s[0] > 'Z') return false;
    i = 1;
    const size_t letters = run('a', 'z');
    if (letters < 1 || letters > 11) return false;
    if (i == s.size()) return true;
    if (s[i++] != ' ') return false;
    const size_t digits = run('0', '9');
    return digits >= 1 && digits <= 3 && i == s.size();
}

/// {"answer": string of at most 12 characters, "sure": boolean, "score": integer 0..10}, nothing
/// else.
bool valid_object(const std::string& s) {
    const ordered_json j = ordered_json::parse(s, nullptr, false);
    if (!j.is_object() || j.size() != 3) return false;
    if (!j.contains("answer") || !j.contains("sure") || !j.contains("score")) return false;
    if (!j["answer"].is_string() || !j["sure"].is_boolean() || !j["score"].is_number_integer())
        return false;
    size_t length = 0;
    for (const char c : j["answer"].get<std::string>())
        length += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
    const auto score = j["score"].get<int64_t>();
    return length <= 12 && score >= 0 && score <= 10;
}

/// sum ::= product ([+-] product)? ; product ::= number | "(" sum ")"; number of one or two digits.
class SumReader {
  public:
    explicit SumReader(const std::string& s) : s_(s) {}
    bool whole() { return sum(0) && at_ == s_.size(); }

  private:
    bool sum(int depth) {
        if (depth > 100 || !product(depth)) return false;
        if (at_ < s_.size() && (s_[at_] == '+' || s_[at_] == '-')) {
            ++at_;
            return product(depth);
        }
        return true;
    }
    bool product(int depth) {
        if (at_ < s_.size() && s_[at_] == '(') {
            ++at_;
            if (!sum(depth + 1) || at_ >= s_.size() || s_[at_] != ')') return false;
            ++at_;
            return true;
        }
        size_t digits = 0;
        while (digits < 2 && at_ < s_.size() && s_[at_] >= '0' && s_[at_] <= '9') {
            ++at_;
            ++digits;
        }
        return digits > 0;
    }
    const std::string& s_;
    size_t at_ = 0;
};

struct Form {
    const char* kind;
    Args args;
    bool (*valid)(const std::string&);
};

const std::vector<Form>& forms() {
    static const std::vector<Form> all = {
        {"regex", Args::of(Args::Type::kRegex, "[A-Z][a-z]{1,11}( [0-9]{1,3})?"), valid_word},
        {"json",
         Args::of(
             Args::Type::kJson,
             R"({"type":"object","properties":{"answer":{"type":"string","maxLength":12},"sure":{"type":"boolean"},"score":{"type":"integer","minimum":0,"maximum":10}},"required":["answer","sure","score"],"additionalProperties":false})"),
         valid_object},
        {"ebnf",
         Args::of(Args::Type::kEbnf,
                  "root ::= sum\nsum ::= product ([+-] product)?\nproduct ::= [0-9]{1,2} | \"(\" "
                  "sum \")\""),
         [](const std::string& s) { return SumReader(s).whole(); }}};
    return all;
}

}  // namespace

bool StructuredCheck::ok() const {
    std::set<std::string> judged;
    for (const StructuredCheckRow& r : rows) {
        if (!r.finished) continue;
        if (!r.valid) return false;
        judged.insert(r.kind);
    }
    return judged.size() == forms().size();
}

Result<StructuredCheck> check_structured_output(Engine& engine) {
    StructuredCheck check;
    const grammar::MaskCounters before = grammar::mask_counters();
    for (const char* prompt : kPrompts) {
        for (const Form& form : forms()) {
            Request r;
            r.prompt_token_ids =
                engine.tokenizer().encode("<｜begin▁of▁sentence｜><｜User｜>" +
                                          std::string(prompt) + "<｜Assistant｜></think>");
            r.sampling.temperature = 0;
            r.sampling.max_tokens = 96;
            r.sampling.so_args = form.args;
            r.sampling.so_args.any_whitespace = false;
            const Result<Completion> done = engine.generate(std::move(r));
            if (!done.ok()) return done.status();
            const CompletionChoice& c = done->choices[0];
            StructuredCheckRow row;
            row.prompt = prompt;
            row.kind = form.kind;
            row.text = c.text;
            row.tokens = static_cast<int64_t>(c.token_ids.size());
            row.finished = c.finish_reason == FinishReason::kStop;
            row.valid = row.finished && form.valid(c.text);
            check.rows.push_back(std::move(row));
        }
    }
    const grammar::MaskCounters after = grammar::mask_counters();
    check.masks = after.masks - before.masks;
    check.mask_us = after.mask_us - before.mask_us;
    check.refused_drafts = after.refused - before.refused;
    return check;
}

std::string structured_check_json(const StructuredCheck& check) {
    ordered_json rows = ordered_json::array();
    for (const StructuredCheckRow& r : check.rows) {
        rows.push_back({{"prompt", r.prompt},
                        {"kind", r.kind},
                        {"text", r.text},
                        {"finished", r.finished},
                        {"valid", r.valid},
                        {"tokens", r.tokens}});
    }
    const ordered_json j = {{"ok", check.ok()},
                            {"masks", check.masks},
                            {"mask_us", check.mask_us},
                            {"refused_drafts", check.refused_drafts},
                            {"rows", rows}};
    return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace deepinfer
