// The field cases of structured output (tests/data/cases/structured.json) that need no model: what
// is refused, with which pointer, and which texts are complete outputs.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "deepinfer/structured_output.h"

namespace deepinfer {
namespace {

// Ordered: the declared order of a schema's members counts.
using json = nlohmann::ordered_json;

json case_rows(const std::string& id) {
    std::ifstream file(DEEPINFER_SOURCE_DIR "/tests/data/cases/structured.json");
    const json all = json::parse(file);
    for (const json& c : all) {
        if (c["id"] == id) return c["rows"];
    }
    ADD_FAILURE() << "no case " << id;
    return json::array();
}

/// so_args of a row's input; the file is read without reordering, so that declared order stays.
std::optional<StructuredOutputArgs> args_of(const json& in) {
    using Type = StructuredOutputArgs::Type;
    if (in.contains("ebnf")) return StructuredOutputArgs::of(Type::kEbnf, in["ebnf"]);
    if (in.contains("schema")) return StructuredOutputArgs::of(Type::kJson, in["schema"].dump());
    if (!in.contains("response_format")) return std::nullopt;
    const json& format = in["response_format"];
    if (format["type"] == "regex") return StructuredOutputArgs::of(Type::kRegex, format["regex"]);
    if (format["type"] == "json_schema")
        return StructuredOutputArgs::of(Type::kJson, format["json_schema"]["schema"].dump());
    return std::nullopt;
}

void expect_texts(const StructuredOutputArgs& args, const json& want, const std::string& what) {
    std::vector<std::string> texts;
    for (const char* kind : {"accept", "reject"}) {
        if (!want.contains(kind)) continue;
        for (const json& t : want[kind]) texts.push_back(t);
    }
    const ConstraintReport report = check_constraint(args, texts);
    ASSERT_TRUE(report.ok) << what << ": "
                           << (report.refused.empty() ? "" : report.refused[0].reason);
    const size_t num_accept = want.contains("accept") ? want["accept"].size() : 0;
    for (size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(report.accepted[i], i < num_accept) << what << ": " << texts[i];
}

/// Every row of a case that gives texts or a verdict; rows that need a running model are left to
/// the engine's tests and counted.
int run_case(const std::string& id) {
    int rows = 0;
    for (const json& row : case_rows(id)) {
        const std::optional<StructuredOutputArgs> args = args_of(row["in"]);
        if (!args || row["in"].contains("logit_hook") || row["in"].contains("thinking")) continue;
        const json& want = row["want"];
        const std::string what = id + " " + row["in"].dump();
        ++rows;
        if (want.contains("accept") || want.contains("reject")) {
            expect_texts(*args, want, what);
            continue;
        }
        if (!want.contains("status") || !want["status"].is_number()) {
            --rows;
            continue;
        }
        const ConstraintReport report = check_constraint(*args, {});
        EXPECT_EQ(report.ok, want["status"] == 200) << what;
        if (report.ok) continue;
        const std::string said = report.refused.at(0).pointer + " " + report.refused[0].reason;
        EXPECT_GT(report.refused[0].reason.size(), 10u) << what;
        if (!want.contains("message_mentions")) continue;
        EXPECT_NE(said.find(want["message_mentions"]), std::string::npos) << said;
    }
    return rows;
}

TEST(StructuredCases, C037BadSchemasAreThisRequestsError) {
    EXPECT_GE(run_case("C-037"), 14);
}
TEST(StructuredCases, C040LongRepeatsAndEmptySchemas) {
    EXPECT_EQ(run_case("C-040"), 5);
}
TEST(StructuredCases, C041LeftRecursionAndNullableLoops) {
    EXPECT_EQ(run_case("C-041"), 7);
}
TEST(StructuredCases, C042KeywordsAreEnforcedNotIgnored) {
    EXPECT_EQ(run_case("C-042"), 9);
}
TEST(StructuredCases, C045SmallFeatures) {
    EXPECT_EQ(run_case("C-045"), 7);
}

double seconds_of(const StructuredOutputArgs& args,
                  ConstraintReport* report,
                  const std::vector<std::string>& texts = {}) {
    const auto before = std::chrono::steady_clock::now();
    *report = check_constraint(args, texts);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

TEST(StructuredCases, C037LargeSchemasEndInTime) {
    using Type = StructuredOutputArgs::Type;
    json keys = json::array();
    for (int i = 0; i < 50000; ++i) keys.push_back("k" + std::to_string(i));
    std::string nested = "{\"type\":\"integer\"}";
    for (int i = 0; i < 2000; ++i) nested = "{\"type\":\"array\",\"items\":" + nested + "}";
    json properties = json::object();
    for (int i = 0; i < 2000; ++i) properties["p" + std::to_string(i)] = {{"type", "integer"}};
    const json optional = {
        {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    ConstraintReport report;
    EXPECT_LT(
        seconds_of(StructuredOutputArgs::of(Type::kJson, json{{"enum", keys}}.dump()), &report), 5);
    EXPECT_LT(seconds_of(StructuredOutputArgs::of(Type::kJson, nested), &report), 5);
    EXPECT_FALSE(report.ok);
    EXPECT_LT(seconds_of(StructuredOutputArgs::of(Type::kJson, optional.dump()),
                         &report,
                         {"{\"p3\": 1, \"p1999\": 2}"}),
              5);
    EXPECT_TRUE(!report.ok || report.accepted[0]);
}

TEST(StructuredCases, C040LengthsAtTheirLimit) {
    using Type = StructuredOutputArgs::Type;
    const auto quoted = [](size_t n) { return "\"" + std::string(n, 'y') + "\""; };
    ConstraintReport r = check_constraint(
        StructuredOutputArgs::of(Type::kJson, R"({"type":"string","maxLength":100000})"),
        {quoted(100000), quoted(100001)});
    ASSERT_TRUE(r.ok);
    EXPECT_EQ(r.accepted, (std::vector<bool>{true, false}));
    const auto ones = [](int n) {
        std::string s = "[1";
        for (int i = 1; i < n; ++i) s += ",1";
        return s + "]";
    };
    r = check_constraint(
        StructuredOutputArgs::of(Type::kJson,
                                 R"({"type":"array","items":{"type":"integer"},"maxItems":1000})"),
        {ones(1000), ones(1001)});
    ASSERT_TRUE(r.ok);
    EXPECT_EQ(r.accepted, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace deepinfer
