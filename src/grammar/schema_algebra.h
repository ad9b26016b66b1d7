// SchemaAlgebra: from schema text to Forms, keyword by keyword.
//
// Knows every keyword of drafts 2020-12 and 7. What cannot be expressed exactly is refused with its
// pointer; with strict off it is left out and noted instead.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "grammar/schema_forms.h"

namespace deepinfer::grammar {

class SchemaAlgebra {
  public:
    SchemaAlgebra(JsonTree& tree, const JsonNode* root, bool strict, const Limits& limits);

    /// Checks that the document is a schema: types of keywords, unknown keywords, anchors. Throws
    /// Refusal.
    void check();
    Forms forms(const Conjunction& all);
    /// True only if nothing satisfies it (looks `depth` levels into required members and items).
    bool surely_empty(const Forms& f, int depth);
    bool surely_empty(const Conjunction& c, int depth) { return surely_empty(forms(c), depth); }

    Conjunction whole() const { return {{root_, true}}; }
    Conjunction never() const { return {{false_, true}}; }
    bool is_never(const Conjunction& c) const { return c.count({false_, true}) > 0; }
    /// Strict: throws; else notes it and returns.
    void give_up(const Refusal& r);
    bool strict() const { return strict_; }
    const Limits& limits() const { return limits_; }
    /// What strict:false left out, and how keywords were read.
    const std::vector<Refusal>& notes() const { return notes_; }
    JsonTree& tree() { return tree_; }

  private:
    struct Resource {
        const JsonNode* root;
        std::map<std::string, const JsonNode*> anchors;
    };
    void check_one(const JsonNode* s, std::vector<const JsonNode*>* open);
    void note(std::string pointer, std::string keyword, std::string text);

    Forms literal(const Literal& l);
    Forms compute(const Literal& l);
    using Keyword = Forms (SchemaAlgebra::*)(const JsonNode& schema,
                                             const JsonNode& value,
                                             bool positive);
    static const std::vector<std::pair<const char*, Keyword>>& keywords();

    Forms type(const JsonNode& s, const JsonNode& v, bool positive);
    Forms constant(const JsonNode& s, const JsonNode& v, bool positive);
    Forms enumeration(const JsonNode& s, const JsonNode& v, bool positive);
    Forms value_forms(const JsonNode& v, bool positive);
    Forms minimum(const JsonNode& s, const JsonNode& v, bool positive);
    Forms maximum(const JsonNode& s, const JsonNode& v, bool positive);
    Forms exclusive_minimum(const JsonNode& s, const JsonNode& v, bool positive);
    Forms exclusive_maximum(const JsonNode& s, const JsonNode& v, bool positive);
    Forms multiple_of(const JsonNode& s, const JsonNode& v, bool positive);
    Forms numeric(const SharedAutomaton& condition, bool positive);
    Forms textual(StringPart part, StringPart opposite, bool positive);
    Forms min_length(const JsonNode& s, const JsonNode& v, bool positive);
    Forms max_length(const JsonNode& s, const JsonNode& v, bool positive);
    Forms pattern(const JsonNode& s, const JsonNode& v, bool positive);
    Forms format(const JsonNode& s, const JsonNode& v, bool positive);
    Forms items(const JsonNode& s, const JsonNode& v, bool positive);
    Forms contains(const JsonNode& s, const JsonNode& v, bool positive);
    Forms min_items(const JsonNode& s, const JsonNode& v, bool positive);
    Forms max_items(const JsonNode& s, const JsonNode& v, bool positive);
    Forms unique_items(const JsonNode& s, const JsonNode& v, bool positive);
    Forms members(const JsonNode& s, const JsonNode& v, bool positive);
    Forms not_members(const JsonNode& s);
    Forms required(const JsonNode& s, const JsonNode& v, bool positive);
    Forms min_properties(const JsonNode& s, const JsonNode& v, bool positive);
    Forms max_properties(const JsonNode& s, const JsonNode& v, bool positive);
    Forms property_names(const JsonNode& s, const JsonNode& v, bool positive);
    Forms dependent(const JsonNode& s, const JsonNode& v, bool positive);
    Forms reference(const JsonNode& s, const JsonNode& v, bool positive);
    Forms dynamic_reference(const JsonNode& s, const JsonNode& v, bool positive);
    Forms all_of(const JsonNode& s, const JsonNode& v, bool positive);
    Forms any_of(const JsonNode& s, const JsonNode& v, bool positive);
    Forms one_of(const JsonNode& s, const JsonNode& v, bool positive);
    Forms negation(const JsonNode& s, const JsonNode& v, bool positive);
    Forms condition(const JsonNode& s, const JsonNode& v, bool positive);
    Forms unevaluated_properties(const JsonNode& s, const JsonNode& v, bool positive);
    Forms unevaluated_items(const JsonNode& s, const JsonNode& v, bool positive);

    Forms only(MemberForm m) const;
    Forms only(ItemForm i) const;
    Forms lacks(const std::string& key) const;
    Forms has(const std::vector<std::string>& keys) const;
    SharedAutomaton compile_pattern(const std::string& text, const std::string& pointer);
    SharedAutomaton string_set(const Forms& f);
    const JsonNode* resolve(const JsonNode& at, const std::string& ref, const std::string& keyword);
    const JsonNode* walk_pointer(const JsonNode* from,
                                 const std::string& pointer,
                                 const JsonNode& at);
    std::string base_of(const JsonNode* at) const;
    /// A schema made of constants, equal to `v`.
    const JsonNode* constant_schema(const JsonNode& v);

    JsonTree& tree_;
    const JsonNode* root_;
    const JsonNode* false_;
    const bool strict_;
    const Limits limits_;
    bool draft7_ = false;
    std::vector<Refusal> notes_;
    std::set<std::pair<std::string, std::string>> noted_;
    std::map<std::string, const JsonNode*> resources_;  ///< absolute $id → schema
    std::map<std::pair<std::string, std::string>, const JsonNode*> anchors_;  ///< (base, name)
    std::map<std::string, std::vector<const JsonNode*>> dynamic_anchors_;
    std::set<const JsonNode*> known_schemas_;
    std::map<std::pair<int, bool>, Forms> memo_;
    std::set<std::pair<int, bool>> active_;
    std::map<std::string, SharedAutomaton> patterns_;
    std::map<int, const JsonNode*> constants_;
    std::set<int> seen_dynamic_;
};

/// base + reference of RFC 3986, as far as identifiers of schemas go.
std::string join_uri(const std::string& base, const std::string& reference);

}  // namespace deepinfer::grammar
