// Forms: what a JSON Schema allows, per type, in a form that can be intersected, united and
// written.
//
// A schema is a Boolean combination of conditions. The algebra pushes "not" down to the single
// keywords and keeps, for every place of the document, a list of alternatives per type. What an
// alternative says of members and items is a Conjunction: the set of subschemas that hold there (or
// must not hold), which is worked out when that place is written; so recursion ends, and
// intersections of recursive schemas too.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/json_tree.h"
#include "grammar/value_language.h"

namespace deepinfer::grammar {

/// "The value satisfies this schema", or does not.
struct Literal {
    const JsonNode* schema = nullptr;
    bool positive = true;

    Literal negated() const { return {schema, !positive}; }
    std::pair<int, bool> key() const { return {schema->id, positive}; }
    bool operator<(const Literal& o) const { return key() < o.key(); }
    bool operator==(const Literal& o) const { return key() == o.key(); }
};

/// All of these hold. Empty: anything.
using Conjunction = std::set<Literal>;

struct ItemForm {
    struct Contains {
        Literal what;
        int64_t min = 1, max = -1;  ///< max −1: no bound
    };
    std::vector<Conjunction> prefix;
    Conjunction rest;  ///< items behind the prefix
    int64_t min = 0, max = -1;
    std::vector<Contains> contains;
    bool unique = false;
    std::string pointer;  ///< of what made it special, for refusals

    Conjunction at(size_t i) const { return i < prefix.size() ? prefix[i] : rest; }
    ItemForm with(const ItemForm& o) const;
};

struct MemberForm {
    /// Which keys must have a value of which form.
    struct Rule {
        enum class Keys {
            kName,     ///< the key `names[0]`
            kPattern,  ///< keys that patterns[0] accepts
            kOther,    ///< keys that are not in `names` and that no pattern accepts
        };
        Keys keys = Keys::kName;
        std::vector<std::string> names;
        std::vector<SharedAutomaton> patterns;
        Conjunction value;

        bool covers(const std::string& key) const;
    };
    std::vector<Rule> rules;
    std::vector<std::string> order;  ///< declared keys, in the order of declaration
    std::set<std::string> required;
    int64_t min = 0, max = -1;
    std::string pointer;

    void declare(const std::string& key);
    Conjunction value_of(const std::string& key) const;
    MemberForm with(const MemberForm& o) const;
};

struct Forms {
    bool null = false;
    bool truth[2] = {false, false};  ///< false, true
    std::vector<NumberPart> numbers;
    std::vector<StringPart> strings;
    std::vector<ItemForm> arrays;
    std::vector<MemberForm> objects;

    static Forms everything();
    static Forms nothing() { return {}; }
    static Forms of_type(const std::string& type);  ///< one of the seven names
    /// Everything but this basic type (number covers integers).
    static Forms but(JsonNode::Type type);

    bool none() const {
        return !null && !truth[0] && !truth[1] && numbers.empty() && strings.empty() &&
               arrays.empty() && objects.empty();
    }
    /// Values that both allow. Refuses more than limits.alternatives of one type.
    Forms both(const Forms& o, const Limits& limits) const;
    void unite(const Forms& o);
};

}  // namespace deepinfer::grammar
