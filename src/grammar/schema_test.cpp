// The gate: what is enforced exactly, what is refused with which pointer, what strict:false leaves
// out.
#include <gtest/gtest.h>

#include "deepinfer/structured_output.h"

namespace deepinfer {
namespace {

using Type = StructuredOutputArgs::Type;

struct Texts {
    const char* schema;
    std::vector<std::string> accept, reject;
};

void expect(const Texts& t, bool any_whitespace = true) {
    StructuredOutputArgs args = StructuredOutputArgs::of(Type::kJson, t.schema);
    args.any_whitespace = any_whitespace;
    std::vector<std::string> texts = t.accept;
    texts.insert(texts.end(), t.reject.begin(), t.reject.end());
    const ConstraintReport r = check_constraint(args, texts);
    ASSERT_TRUE(r.ok) << t.schema << ": " << (r.refused.empty() ? "" : r.refused[0].reason);
    for (size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(r.accepted[i], i < t.accept.size()) << t.schema << " " << texts[i];
}

TEST(Schema, NumbersByDecimalDigits) {
    expect({R"({"type":"integer","minimum":-3,"maximum":120})",
            {"-3", "0", "9", "120", "77"},
            {"-4", "121", "1.5", "007", "-0", "+1"}});
    expect({R"({"type":"number","exclusiveMinimum":-1.25,"maximum":3.5})",
            {"-1.24999", "-1", "0.0", "3.5", "3.50", "2"},
            {"-1.25", "3.500001", "4", "-2"}});
    expect({R"({"type":"number","multipleOf":0.01})",
            {"1.23", "7", "0.5", "-12.30", "0.010"},
            {"1.234", "0.001"}});
    expect({R"({"type":"integer","multipleOf":7,"minimum":1})",
            {"7", "14", "7000"},
            {"0", "8", "-7"}});
    expect({R"({"type":"number","minimum":0.1,"maximum":0.2,"not":{"const":0.15}})",
            {"0.1", "0.149", "0.1500001", "0.2"},
            {"0.15", "0.150", "0.21"}});
    expect({R"({"type":"number","not":{"type":"integer"}})", {"1.5", "-0.25"}, {"1", "1.0", "0"}});
    expect({R"({"enum":[1.0,2.50,12345678901234567890123]})",
            {"1", "2.5", "12345678901234567890123"},
            {"12345678901234567890124", "2"}});
}

TEST(Schema, StringsAsLanguages) {
    expect({R"({"type":"string","pattern":"b+"})",
            {R"("b")", R"("abba")", R"("\u0000b")"},
            {R"("a")", R"("")"}});
    expect({R"({"type":"string","pattern":"^[a-c]+$","minLength":2,"maxLength":3})",
            {R"("ab")", R"("cab")"},
            {R"("a")", R"("abca")", R"("xx")"}});
    expect({R"({"type":"string","pattern":"^a","not":{"pattern":"b"}})",
            {R"("a")", R"("acc")"},
            {R"("ab")", R"("c")"}});
    expect({R"x({"type":"string","pattern":"^(a|b$)"})x", {R"("ax")", R"("b")"}, {R"("bx")"}});
    expect({R"({"type":"string","minLength":2,"maxLength":2})",
            {R"("é🙂")", R"("\n\"")", R"("\ud83d\ude42x")"},
            {R"("a")", R"("\ud83d\ude42")", R"("\ud83dx")"}});
    expect({R"({"type":"string","format":"date"})",
            {R"("2024-02-29")", R"("1999-12-31")"},
            {R"("2023-02-29")", R"("2024-13-01")", R"("2024-1-1")"}});
    expect({R"({"type":"string","format":"ipv6"})",
            {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::1:2")", R"("::")"},
            {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"("12345::")", R"("1:2:3:4:5:6:7:8::")"}});
    expect({R"({"type":"string","pattern":"^\\p{Lu}\\p{Ll}*$"})",
            {R"("Émile")", R"("A")"},
            {R"("émile")", R"("AB")"}});
}

TEST(Schema, ObjectsKeepDeclaredOrderAndAllKeys) {
    expect(
        {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b","c"]})",
         {R"({"b":"x","c":null})", R"({"a": 1, "b": "x", "c": [], "d": {}})"},
         {R"({"b":"x"})",
          R"({"a":"1","b":"x","c":0})",
          R"({"b":"x","c":1,"a":1,"a":2})",
          R"({"b":"x","c":1,"a":"1"})"}});
    expect(
        {R"({"type":"object","patternProperties":{"^s_":{"type":"string"},"_n$":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
         {R"({"s_a":"x","b_n":1,"z":true})", "{}"},
         {R"({"s_a":1})", R"({"b_n":"1"})", R"({"z":0})", R"({"s_n":"x"})", R"({"s_n":1})"}});
    expect({R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"maxProperties":2})",
            {R"({"a":1,"b":2})"},
            {R"({"A":1})", R"({"a":1,"b":2,"c":3})"}});
    expect(
        {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2})",
         {R"({"a":1,"c":2})", R"({"a":1,"b":2,"c":3})"},
         {R"({"a":1})", "{}"}});
    expect({R"({"type":"object","properties":{"a":false,"b":true}})",
            {R"({"b":1})", "{}", R"({"x":1})"},
            {R"({"a":1})"}});
    expect({R"({"const":{"k":[1,{"z":null}]}})",
            {R"({"k":[1,{"z":null}]})", R"({ "k" : [ 1 , {"z": null} ] })"},
            {R"({"k":[1,{}]})", R"({"k":[1,{"z":null}],"x":1})"}});
}

TEST(Schema, CombinationsAreIntersections) {
    expect(
        {R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
         {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
         {"{}", R"({"a":"x","b":1})"}});
    expect({R"({"oneOf":[{"multipleOf":2,"type":"integer"},{"multipleOf":3,"type":"integer"}]})",
            {"2", "3", "9"},
            {"6", "0", "1"}});
    expect(
        {R"({"type":"object","properties":{"k":{"enum":["x","y"]}},"required":["k"],"if":{"properties":{"k":{"const":"x"}}},"then":{"required":["v"]},"else":{"properties":{"v":false}}})",
         {R"({"k":"x","v":1})", R"({"k":"y"})"},
         {R"({"k":"x"})", R"({"k":"y","v":1})"}});
    expect({R"({"type":"object","dependentRequired":{"card":["name","zip"]}})",
            {"{}", R"({"card":1,"name":2,"zip":3})", R"({"name":1})"},
            {R"({"card":1})", R"({"card":1,"name":2})"}});
    expect(
        {R"({"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":"integer"}},"required":["v"]}},"$ref":"#/$defs/n","properties":{"v":{"minimum":5}}})",
         {R"({"v":5})", R"({"v":9,"next":{"v":1}})"},
         {R"({"v":4})", R"({"v":9,"next":{}})"}});
    expect({R"({"type":["integer","null"],"not":{"enum":[1,2]}})",
            {"3", "null", "-1"},
            {"1", "2", "\"x\""}});
}

TEST(Schema, ArraysCountAndContain) {
    expect(
        {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":1})",
         {"[1]", R"([1, "a"])"},
         {"[]", R"([1,"a",2])", R"(["a"])"}});
    expect(
        {R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":10},"maxContains":2})",
         {"[10]", "[1, 11, 2, 12]"},
         {"[1]", "[10,11,12]", "[]", R"([10,"x"])"}});
    expect({R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})",
            {R"(["a","c"])", R"(["c","b","a"])"},
            {R"(["a","a"])", R"(["a"])", R"(["a","b","a"])"}});
    expect({R"({"type":"array","items":{"type":"boolean"},"minItems":3,"maxItems":4})",
            {"[true,false,true]", "[true,true,true,true]"},
            {"[true,true]", "[true,true,true,true,true]"}});
}

TEST(Schema, BlanksAreBounded) {
    const std::string twenty(20, ' ');
    expect(
        {R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"required":["a"],"additionalProperties":false})",
         {"{" + twenty + "\"a\"\n:\t[1 , 2]\r\n}"},
         {"{" + twenty + " \"a\":[1]}", " {\"a\":[]}", "{\"a\":[]} "}});
    expect(
        {R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}},"required":["a"]})",
         {R"({"a": [1, 2], "b": {}})"},
         {R"({"a":[1, 2]})", R"({"a": [1,2]})", R"({ "a": []})"}},
        false);
}

struct Refused {
    const char* schema;
    const char* pointer;
    const char* keyword;
};

TEST(Schema, RefusesWithPointerAndKeyword) {
    const Refused rows[] = {
        {R"({"type":"objekt"})", "/type", "type"},
        {R"({"properties":{"a":{"propertys":{}}}})", "/properties/a/propertys", "propertys"},
        {R"({"type":"array","uniqueItems":true})", "/uniqueItems", "uniqueItems"},
        {R"({"properties":{"a":{"format":"color"}}})", "/properties/a/format", "format"},
        {R"({"$ref":"https://example.invalid/s.json"})", "/$ref", "$ref"},
        {R"({"$ref":"#"})", "/$ref", "$ref"},
        {R"({"properties":{"a":{"$ref":"#/$defs/x"}}})", "/properties/a/$ref", "$ref"},
        {R"({"items":{"pattern":"(?=a)b"}})", "/items/pattern", "pattern"},
        {R"({"items":{"pattern":"\\bx"}})", "/items/pattern", "pattern"},
        {R"({"required":["a","a"]})", "/required", "required"},
        {R"({"type":"object","a":1,"a":2})", "", "a"},
        {R"({"type":"integer","minimum":5,"maximum":4})", "", ""},
        {R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"allOf":[{"properties":{"a":{"type":"null"}}}]})",
         "",
         ""},
        {R"({"type":"object","minProperties":3})", "/minProperties", "minProperties"},
        {R"({"multipleOf":1234567})", "/multipleOf", "multipleOf"},
        {R"({"$schema":"http://example.invalid/dialect"})", "/$schema", "$schema"},
        {"7", "", ""},
        {"{", "", ""},
        {R"({"enum":[]})", "/enum", "enum"},
    };
    for (const Refused& row : rows) {
        const ConstraintReport r =
            check_constraint(StructuredOutputArgs::of(Type::kJson, row.schema), {"1"});
        ASSERT_FALSE(r.ok) << row.schema;
        ASSERT_EQ(r.refused.size(), 1u);
        EXPECT_EQ(r.refused[0].pointer, row.pointer) << row.schema << ": " << r.refused[0].reason;
        EXPECT_EQ(r.refused[0].keyword, row.keyword) << row.schema << ": " << r.refused[0].reason;
        EXPECT_TRUE(r.accepted.empty());
    }
}

TEST(Schema, LenientLeavesOutAndTells) {
    StructuredOutputArgs args = StructuredOutputArgs::of(
        Type::kJson,
        R"({"type":"object","properties":{"c":{"type":"string","format":"color"},"l":{"type":"array","uniqueItems":true}},"nullable":true})");
    args.strict = false;
    const ConstraintReport r = check_constraint(args, {R"({"c":"red","l":[1,1]})", R"({"c":1})"});
    ASSERT_TRUE(r.ok);
    EXPECT_EQ(r.accepted, (std::vector<bool>{true, false}));
    std::vector<std::string> pointers;
    for (const ConstraintFinding& f : r.notes) pointers.push_back(f.pointer);
    std::sort(pointers.begin(), pointers.end());
    EXPECT_EQ(pointers,
              (std::vector<std::string>{
                  "/nullable", "/properties/c/format", "/properties/l/uniqueItems"}));
    // What is no schema at all stays refused.
    args.value = R"({"type":"objekt"})";
    EXPECT_FALSE(check_constraint(args, {}).ok);
}

TEST(StructuredOutputJson, BothSpellings) {
    const auto read = [](const char* text) { return structured_output_from_json(text); };
    EXPECT_EQ(read(R"({"type":"regex","value":"a+"})").value(), read(R"({"regex":"a+"})").value());
    EXPECT_EQ(read(R"({"json":{"b":1,"a":12345678901234567890123}})")->value,
              R"({"b":1,"a":12345678901234567890123})");
    EXPECT_EQ(read(R"({"choice":["a","b"],"in_reasoning":true})")->choices.size(), 2u);
    EXPECT_EQ(read(R"({"type":"json_object","strict":false})")->type, Type::kJsonObject);
    for (const char* bad : {"[]",
                            "{}",
                            R"({"regex":"a","ebnf":"b"})",
                            R"({"type":"xml","value":"a"})",
                            R"({"type":"regex"})",
                            R"({"regex":1})",
                            R"({"choice":[]})",
                            R"({"regex":"a","strict":1})",
                            R"({"regex":"a","backtrack":"full"})",
                            R"({"value":"a"})",
                            R"({"regex":"a","speed":1})"}) {
        EXPECT_EQ(read(bad).status().code(), StatusCode::kInvalidArgument) << bad;
    }
    for (const char* good :
         {R"({"type":"choice","value":["a|\"b"]})", R"({"regex":"é\\n","any_whitespace":false})"}) {
        EXPECT_EQ(read(structured_output_to_json(read(good).value()).c_str()).value(),
                  read(good).value());
    }
}

}  // namespace
}  // namespace deepinfer
