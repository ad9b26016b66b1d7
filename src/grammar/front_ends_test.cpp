// Hostile input at the front ends: mutations of well-formed constraints and bombs end in
// productions or in a refusal with a reason, within the limits, and the next ordinary constraint
// works.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"

namespace deepinfer::grammar {
namespace {

using Type = StructuredOutputArgs::Type;

const std::vector<std::pair<Type, std::string>>& seeds() {
    static const std::vector<std::pair<Type, std::string>> all = {
        {Type::kJson,
         R"({"type":"object","properties":{"a":{"type":"integer","minimum":-3},"b":{"pattern":"^x[0-9]{2,4}$"}},"required":["a"],"patternProperties":{"^s_":{"enum":[1,"x",null]}},"additionalProperties":false})"},
        {Type::kJson,
         R"({"$defs":{"n":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n2"}]},"n2":{"type":"array","items":{"$ref":"#/$defs/n"},"contains":{"const":[1]},"maxContains":2}},"$ref":"#/$defs/n"})"},
        {Type::kJson,
         R"({"if":{"properties":{"k":{"const":"x"}}},"then":{"required":["v"]},"not":{"required":["z"]},"oneOf":[{"multipleOf":0.5},{"type":["string","object"]}],"unevaluatedProperties":false})"},
        {Type::kRegex, R"((?:ab|[^c-e\d]){2,5}x?\.(foo|\p{Lu}+)$)"},
        {Type::kEbnf,
         "root ::= expr (\",\" expr)* # list\nexpr ::= [a-z]{1,3} | \"(\" expr \")\" | '\\x41' "
         ".\n"},
        {Type::kStructuralTag,
         R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<a"],"tags":[{"type":"tag","begin":"<a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</a>"}]}})"},
        {Type::kStructuralTag,
         R"({"structures":[{"begin":"<f>","schema":{"type":"object"},"end":"</f>"}],"triggers":["<f"]})"}};
    return all;
}

/// Lowers; true if it was taken. A refusal must say why.
bool taken(Type type, const std::string& text, bool strict) {
    StructuredOutputArgs args = StructuredOutputArgs::of(type, text);
    args.strict = strict;
    Limits small;
    small.automaton_states = 300;
    small.grammar_size = 20000;
    try {
        EXPECT_FALSE(lower(args, small).ebnf.empty());
        return true;
    } catch (const Refusal& r) {
        EXPECT_GT(r.reason.size(), 8u) << text;
        return false;
    }
}

TEST(FrontEnds, MutationsAreTakenOrRefused) {
    std::mt19937 random(11);
    const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const std::string alphabet = "\"{}[]()|*+?\\,:0123456789.-^$<>abrefx \n\xC3\xA9";
    int num_taken = 0, refused = 0;
    for (int i = 0; i < 2500; ++i) {
        auto [type, text] = seeds()[pick(seeds().size())];
        for (size_t edits = 1 + pick(4); edits > 0 && !text.empty(); --edits) {
            const size_t at = pick(text.size());
            switch (pick(4)) {
                case 0:
                    text[at] = alphabet[pick(alphabet.size())];
                    break;
                case 1:
                    text.insert(at, 1, alphabet[pick(alphabet.size())]);
                    break;
                case 2:
                    text.erase(at, 1 + pick(6));
                    break;
                default: {  // a piece of another seed
                    const std::string& other = seeds()[pick(seeds().size())].second;
                    const size_t from = pick(other.size());
                    text.insert(at, other.substr(from, pick(24)));
                }
            }
        }
        (taken(type, text, pick(2) == 0) ? num_taken : refused) += 1;
    }
    EXPECT_GT(num_taken, 100);
    EXPECT_GT(refused, 500);
}

std::string repeated(const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += s;
    return out;
}

TEST(FrontEnds, BombsEndInTime) {
    const std::string deep_schema = repeated(R"({"items":)", 5000) + "{}" + repeated("}", 5000);
    std::string wide = R"({"allOf":[)";
    for (int i = 0; i < 40; ++i)
        wide += (i > 0 ? "," : "") + std::string(R"({"anyOf":[{"required":["a)") +
                std::to_string(i) + R"("]},{"required":["b)" + std::to_string(i) + R"("]}]})";
    wide += "]}";
    std::string chain = R"({"$defs":{)";
    for (int i = 0; i < 3000; ++i)
        chain += (i > 0 ? "," : "") + std::string("\"d") + std::to_string(i) +
                 R"(":{"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}";
    chain += R"(,"d3000":{}},"$ref":"#/$defs/d0"})";
    const std::pair<Type, std::string> bombs[] = {
        {Type::kJson, deep_schema},
        {Type::kJson, wide},
        {Type::kJson, chain},
        {Type::kJson,
         R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"},{}]}},"$ref":"#/$defs/a"})"},
        {Type::kJson, R"({"pattern":"(.*a){30}"})"},
        {Type::kJson, R"({"pattern":"a.{200}b"})"},
        {Type::kJson, R"({"minLength":3000000})"},
        {Type::kJson, R"({"contains":{"type":"integer"},"minContains":100000})"},
        {Type::kJson, R"({"multipleOf":0.0000001234567})"},
        {Type::kJson, R"({"minimum":1e100000})"},
        {Type::kJson, "{\"title\":\"" + std::string(300 * 1024, 'x') + "\"}"},
        {Type::kRegex, repeated("(", 4000) + repeated(")", 4000)},
        {Type::kRegex, "((((a{1000}){1000}){1000}){1000}){1000}"},
        {Type::kRegex, "(a*)*(b|c*)*" + repeated("(x|y)?", 3000)},
        {Type::kEbnf, "root ::= " + repeated("(", 4000) + "\"a\"" + repeated(")", 4000)},
        {Type::kEbnf, "root ::= (((\"a\"{1000}){1000}){1000}){1000}"},
        {Type::kEbnf, std::string(300 * 1024, '#')}};
    for (const auto& [type, text] : bombs) {
        const auto before = std::chrono::steady_clock::now();
        const ConstraintReport r = check_constraint(StructuredOutputArgs::of(type, text), {});
        const double s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
        EXPECT_LT(s, 5) << text.substr(0, 60);
        EXPECT_TRUE(r.ok || r.refused.at(0).reason.size() > 8) << text.substr(0, 60);
        EXPECT_TRUE(
            check_constraint(StructuredOutputArgs::of(Type::kRegex, "a"), {"a"}).accepted.at(0));
    }
}

}  // namespace
}  // namespace deepinfer::grammar
