// The keywords of JSON Schema as Forms, each in its positive and its negated sense.
#include <algorithm>
#include <functional>

#include "grammar/schema_algebra.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonNode::Type;

constexpr int64_t kMostCount = int64_t{1} << 40;

/// A non-negative count that check() has seen.
int64_t count_of(const JsonNode& v) {
    const std::string whole = v.number.whole();
    return whole.size() > 12 ? kMostCount : std::stoll(whole);
}

std::string at(const JsonNode& s, const std::string& key) {
    return s.pointer + "/" + key;
}

}  // namespace

const std::vector<std::pair<const char*, SchemaAlgebra::Keyword>>& SchemaAlgebra::keywords() {
    using S = SchemaAlgebra;
    // One row per group: the first key that is there is handed over; its function looks at the
    // others.
    static const std::vector<std::pair<const char*, Keyword>> table = {
        {"type", &S::type},
        {"const", &S::constant},
        {"enum", &S::enumeration},
        {"minimum", &S::minimum},
        {"maximum", &S::maximum},
        {"exclusiveMinimum", &S::exclusive_minimum},
        {"exclusiveMaximum", &S::exclusive_maximum},
        {"multipleOf", &S::multiple_of},
        {"minLength", &S::min_length},
        {"maxLength", &S::max_length},
        {"pattern", &S::pattern},
        {"format", &S::format},
        {"prefixItems|items|additionalItems", &S::items},
        {"contains", &S::contains},
        {"minItems", &S::min_items},
        {"maxItems", &S::max_items},
        {"uniqueItems", &S::unique_items},
        {"properties|patternProperties|additionalProperties", &S::members},
        {"required", &S::required},
        {"minProperties", &S::min_properties},
        {"maxProperties", &S::max_properties},
        {"propertyNames", &S::property_names},
        {"dependentRequired|dependentSchemas|dependencies", &S::dependent},
        {"$ref", &S::reference},
        {"$dynamicRef|$recursiveRef", &S::dynamic_reference},
        {"allOf", &S::all_of},
        {"anyOf", &S::any_of},
        {"oneOf", &S::one_of},
        {"not", &S::negation},
        {"if", &S::condition},
        {"unevaluatedProperties", &S::unevaluated_properties},
        {"unevaluatedItems", &S::unevaluated_items},
    };
    return table;
}

// ------------------------------------------------------------------ values

Forms SchemaAlgebra::type(const JsonNode&, const JsonNode& v, bool positive) {
    std::set<std::string> names;
    if (v.is(Type::kString)) names.insert(v.text);
    for (const JsonNode* i : v.items) names.insert(i->text);
    Forms f;
    if (positive) {
        if (names.count("number")) names.erase("integer");
        for (const std::string& n : names) f.unite(Forms::of_type(n));
        return f;
    }
    for (const char* n : {"null", "boolean", "string", "array", "object"}) {
        if (!names.count(n)) f.unite(Forms::of_type(n));
    }
    if (!names.count("number")) {
        NumberPart part;
        if (names.count("integer"))
            part.conditions.push_back(number_not(number_is_integer(limits_), limits_));
        f.numbers.push_back(std::move(part));
    }
    return f;
}

const JsonNode* SchemaAlgebra::constant_schema(const JsonNode& v) {
    const auto known = constants_.find(v.id);
    if (known != constants_.end()) return known->second;
    JsonNode* s = tree_.make(Type::kObject, v.pointer);
    constants_[v.id] = s;
    const auto make = [&](Type t) { return tree_.make(t, v.pointer); };
    const auto number = [&](size_t n) {
        JsonNode* x = make(Type::kNumber);
        x->text = std::to_string(n);
        x->number = Decimal::of(static_cast<int64_t>(n));
        return x;
    };
    JsonNode* type = make(Type::kString);
    type->text = type_name(v.type);
    s->members.emplace_back("type", type);
    if (v.is(Type::kArray)) {
        JsonNode* prefix = make(Type::kArray);
        for (const JsonNode* i : v.items) {
            JsonNode* c = make(Type::kObject);
            c->members.emplace_back("const", i);
            prefix->items.push_back(c);
        }
        if (!v.items.empty()) s->members.emplace_back("prefixItems", prefix);
        s->members.emplace_back("minItems", number(v.items.size()));
        s->members.emplace_back("maxItems", number(v.items.size()));
    } else {
        JsonNode* properties = make(Type::kObject);
        JsonNode* required = make(Type::kArray);
        for (const auto& [key, value] : v.members) {
            JsonNode* c = make(Type::kObject);
            c->members.emplace_back("const", value);
            properties->members.emplace_back(key, c);
            JsonNode* name = make(Type::kString);
            name->text = key;
            required->items.push_back(name);
        }
        s->members.emplace_back("properties", properties);
        s->members.emplace_back("required", required);
        s->members.emplace_back("maxProperties", number(v.members.size()));
    }
    return s;
}

Forms SchemaAlgebra::value_forms(const JsonNode& v, bool positive) {
    Forms f = positive ? Forms::nothing() : Forms::but(v.type);
    switch (v.type) {
        case Type::kNull:
            f.null = positive;
            return f;
        case Type::kBool:
            f.truth[v.boolean == positive ? 1 : 0] = true;
            return f;
        case Type::kNumber: {
            NumberPart part;
            if (positive) {
                part.list = {v.number};
            } else {
                part.conditions.push_back(number_not(number_equals(v.number, limits_), limits_));
            }
            f.numbers.push_back(std::move(part));
            return f;
        }
        case Type::kString: {
            StringPart part;
            if (positive) {
                part.list = {v.text};
            } else {
                part.conditions.push_back(std::make_shared<Automaton>(
                    Automaton::words({v.text}, limits_).complement(limits_)));
            }
            f.strings.push_back(std::move(part));
            return f;
        }
        default:
            return literal({constant_schema(v), positive});
    }
}

Forms SchemaAlgebra::constant(const JsonNode&, const JsonNode& v, bool positive) {
    return value_forms(v, positive);
}

Forms SchemaAlgebra::enumeration(const JsonNode&, const JsonNode& v, bool positive) {
    Forms f = positive ? Forms::nothing() : Forms::everything();
    NumberPart numbers;
    StringPart strings;
    numbers.list.emplace();
    strings.list.emplace();
    for (const JsonNode* i : v.items) {
        if (i->is(Type::kNumber)) {
            numbers.list->push_back(i->number);
        } else if (i->is(Type::kString)) {
            strings.list->push_back(i->text);
        } else if (positive) {
            f.unite(value_forms(*i, true));
        } else {
            f = f.both(value_forms(*i, false), limits_);
        }
    }
    if (positive) {
        if (!numbers.list->empty()) f.numbers.push_back(std::move(numbers));
        if (!strings.list->empty()) f.strings.push_back(std::move(strings));
        return f;
    }
    if (!strings.list->empty()) {
        StringPart other;
        other.conditions.push_back(std::make_shared<Automaton>(
            Automaton::words(*strings.list, limits_).complement(limits_)));
        f.strings = {other};
    }
    NumberPart other;
    for (const Decimal& d : *numbers.list)
        other.conditions.push_back(number_not(number_equals(d, limits_), limits_));
    f.numbers = {other};
    return f;
}

// ------------------------------------------------------------------ numbers

Forms SchemaAlgebra::numeric(const SharedAutomaton& condition, bool positive) {
    Forms f = positive ? Forms::but(Type::kNumber) : Forms::nothing();
    NumberPart part;
    part.conditions.push_back(positive ? condition : number_not(condition, limits_));
    f.numbers.push_back(std::move(part));
    return f;
}

Forms SchemaAlgebra::minimum(const JsonNode&, const JsonNode& v, bool positive) {
    return numeric(number_at_least(v.number, false, limits_), positive);
}
Forms SchemaAlgebra::maximum(const JsonNode&, const JsonNode& v, bool positive) {
    return numeric(number_at_most(v.number, false, limits_), positive);
}
Forms SchemaAlgebra::exclusive_minimum(const JsonNode&, const JsonNode& v, bool positive) {
    return numeric(number_at_least(v.number, true, limits_), positive);
}
Forms SchemaAlgebra::exclusive_maximum(const JsonNode&, const JsonNode& v, bool positive) {
    return numeric(number_at_most(v.number, true, limits_), positive);
}
Forms SchemaAlgebra::multiple_of(const JsonNode&, const JsonNode& v, bool positive) {
    return numeric(number_multiple_of(v.number, limits_), positive);
}

// ------------------------------------------------------------------ strings

Forms SchemaAlgebra::textual(StringPart part, StringPart opposite, bool positive) {
    Forms f = positive ? Forms::but(Type::kString) : Forms::nothing();
    f.strings.push_back(positive ? std::move(part) : std::move(opposite));
    return f;
}

Forms SchemaAlgebra::min_length(const JsonNode&, const JsonNode& v, bool positive) {
    const int64_t n = count_of(v);
    StringPart part, opposite;
    part.min = n;
    opposite.max = n - 1;
    if (n == 0) return positive ? Forms::everything() : Forms::nothing();
    return textual(part, opposite, positive);
}

Forms SchemaAlgebra::max_length(const JsonNode&, const JsonNode& v, bool positive) {
    StringPart part, opposite;
    part.max = count_of(v);
    opposite.min = part.max + 1;
    return textual(part, opposite, positive);
}

SharedAutomaton SchemaAlgebra::compile_pattern(const std::string& text,
                                               const std::string& pointer) {
    SharedAutomaton& a = patterns_[text];
    if (!a)
        a = std::make_shared<Automaton>(
            Automaton::search(parse_regex(text, pointer, limits_), limits_));
    return a;
}

Forms SchemaAlgebra::pattern(const JsonNode& s, const JsonNode& v, bool positive) {
    const SharedAutomaton a = compile_pattern(v.text, at(s, "pattern"));
    StringPart part, opposite;
    part.conditions.push_back(a);
    if (!positive)
        opposite.conditions.push_back(std::make_shared<Automaton>(a->complement(limits_)));
    return textual(part, opposite, positive);
}

Forms SchemaAlgebra::format(const JsonNode& s, const JsonNode& v, bool positive) {
    const std::optional<std::string> known = format_pattern(v.text);
    if (!known) {
        refuse(at(s, "format"),
               "format",
               "the format '" + v.text.substr(0, 60) +
                   "' is not enforced (date, time, date-time, duration, email, hostname, ipv4, "
                   "ipv6, uri, uuid are)");
    }
    if (!positive) refuse(at(s, "format"), "format", "format cannot be negated");
    StringPart part;
    part.conditions.push_back(compile_pattern(*known, at(s, "format")));
    return textual(part, {}, true);
}

// ------------------------------------------------------------------ arrays

Forms SchemaAlgebra::only(ItemForm i) const {
    Forms f;
    f.arrays.push_back(std::move(i));
    return f;
}

Forms SchemaAlgebra::items(const JsonNode& s, const JsonNode&, bool positive) {
    const JsonNode* prefix = s.find("prefixItems");
    const JsonNode* rest = s.find("items");
    if (rest != nullptr && rest->is(Type::kArray)) {  // drafts up to 2019-09
        prefix = rest;
        rest = s.find("additionalItems");
    }
    ItemForm form;
    if (prefix != nullptr) {
        for (const JsonNode* i : prefix->items) form.prefix.push_back({{i, true}});
    }
    if (rest != nullptr) form.rest = {{rest, true}};
    if (positive) {
        Forms f = Forms::but(Type::kArray);
        f.arrays.push_back(std::move(form));
        return f;
    }
    Forms f;
    for (size_t i = 0; i < form.prefix.size(); ++i) {
        ItemForm wrong;
        wrong.prefix.resize(i + 1);
        wrong.prefix[i] = {{prefix->items[i], false}};
        wrong.min = static_cast<int64_t>(i) + 1;
        f.arrays.push_back(std::move(wrong));
    }
    if (rest == nullptr) return f;
    if (rest->is(Type::kBool)) {
        if (rest->boolean) return f;
        ItemForm longer;
        longer.min = static_cast<int64_t>(form.prefix.size()) + 1;
        f.arrays.push_back(std::move(longer));
        return f;
    }
    if (!form.prefix.empty())
        refuse(at(s, "items"), "items", "items behind prefixItems cannot be negated");
    ItemForm wrong;
    wrong.contains.push_back({{rest, false}, 1, -1});
    wrong.pointer = at(s, "items");
    f.arrays.push_back(std::move(wrong));
    return f;
}

Forms SchemaAlgebra::contains(const JsonNode& s, const JsonNode& v, bool positive) {
    const JsonNode* least = s.find("minContains");
    const JsonNode* most = s.find("maxContains");
    if (draft7_) least = most = nullptr;
    const int64_t min = least == nullptr ? 1 : count_of(*least);
    const int64_t max = most == nullptr ? -1 : count_of(*most);
    const auto counted = [&](int64_t lo, int64_t hi) {
        ItemForm form;
        form.contains.push_back({{&v, true}, lo, hi});
        form.pointer = at(s, "contains");
        return form;
    };
    if (positive) {
        Forms f = Forms::but(Type::kArray);
        if (max < 0 || min <= max) f.arrays.push_back(counted(min, max));
        return f;
    }
    Forms f;
    if (min > 0) f.arrays.push_back(counted(0, min - 1));
    if (max >= 0) f.arrays.push_back(counted(max + 1, -1));
    return f;
}

Forms SchemaAlgebra::min_items(const JsonNode&, const JsonNode& v, bool positive) {
    const int64_t n = count_of(v);
    ItemForm form;
    if (positive) {
        form.min = n;
        Forms f = Forms::but(Type::kArray);
        f.arrays.push_back(std::move(form));
        return f;
    }
    form.max = n - 1;
    return n == 0 ? Forms::nothing() : only(std::move(form));
}

Forms SchemaAlgebra::max_items(const JsonNode&, const JsonNode& v, bool positive) {
    ItemForm form;
    if (positive) {
        form.max = count_of(v);
        Forms f = Forms::but(Type::kArray);
        f.arrays.push_back(std::move(form));
        return f;
    }
    form.min = count_of(v) + 1;
    return only(std::move(form));
}

Forms SchemaAlgebra::unique_items(const JsonNode& s, const JsonNode& v, bool positive) {
    if (!v.boolean) return positive ? Forms::everything() : Forms::nothing();
    if (!positive) refuse(at(s, "uniqueItems"), "uniqueItems", "uniqueItems cannot be negated");
    ItemForm form;
    form.unique = true;
    form.pointer = at(s, "uniqueItems");
    Forms f = Forms::but(Type::kArray);
    f.arrays.push_back(std::move(form));
    return f;
}

// ------------------------------------------------------------------ objects

Forms SchemaAlgebra::only(MemberForm m) const {
    Forms f;
    f.objects.push_back(std::move(m));
    return f;
}

Forms SchemaAlgebra::lacks(const std::string& key) const {
    MemberForm m;
    m.rules.push_back({MemberForm::Rule::Keys::kName, {key}, {}, never()});
    m.declare(key);
    return only(std::move(m));
}

Forms SchemaAlgebra::has(const std::vector<std::string>& keys) const {
    MemberForm m;
    for (const std::string& k : keys) {
        m.declare(k);
        m.required.insert(k);
    }
    return only(std::move(m));
}

Forms SchemaAlgebra::members(const JsonNode& s, const JsonNode&, bool positive) {
    using Keys = MemberForm::Rule::Keys;
    if (!positive) return not_members(s);
    MemberForm m;
    MemberForm::Rule other{Keys::kOther, {}, {}, {}};
    if (const JsonNode* properties = s.find("properties")) {
        for (const auto& [key, value] : properties->members) {
            m.rules.push_back({Keys::kName, {key}, {}, {{value, true}}});
            m.order.push_back(key);
            other.names.push_back(key);
        }
    }
    if (const JsonNode* patterns = s.find("patternProperties")) {
        for (const auto& [text, value] : patterns->members) {
            const SharedAutomaton a = compile_pattern(text, at(s, "patternProperties"));
            m.rules.push_back({Keys::kPattern, {}, {a}, {{value, true}}});
            other.patterns.push_back(a);
        }
    }
    if (const JsonNode* rest = s.find("additionalProperties")) {
        const bool no = rest->is(Type::kBool) && !rest->boolean;
        other.value = no ? never() : Conjunction{{rest, true}};
        if (!rest->is(Type::kBool) || no) m.rules.push_back(std::move(other));
    }
    Forms f = Forms::but(Type::kObject);
    f.objects.push_back(std::move(m));
    return f;
}

Forms SchemaAlgebra::not_members(const JsonNode& s) {
    using Keys = MemberForm::Rule::Keys;
    Forms f;
    const JsonNode* properties = s.find("properties");
    if (properties != nullptr) {
        for (const auto& [key, value] : properties->members) {
            MemberForm m;
            m.rules.push_back({Keys::kName, {key}, {}, {{value, false}}});
            m.declare(key);
            m.required.insert(key);
            f.objects.push_back(std::move(m));
        }
    }
    const JsonNode* patterns = s.find("patternProperties");
    if (patterns != nullptr && !patterns->members.empty()) {
        refuse(
            at(s, "patternProperties"), "patternProperties", "patternProperties cannot be negated");
    }
    const JsonNode* rest = s.find("additionalProperties");
    if (rest == nullptr || (rest->is(Type::kBool) && rest->boolean)) return f;
    const bool bare = properties == nullptr || properties->members.empty();
    if (!bare || !rest->is(Type::kBool)) {
        refuse(at(s, "additionalProperties"),
               "additionalProperties",
               "additionalProperties cannot be negated here");
    }
    MemberForm some;
    some.min = 1;
    f.objects.push_back(std::move(some));
    return f;
}

Forms SchemaAlgebra::required(const JsonNode&, const JsonNode& v, bool positive) {
    std::vector<std::string> keys;
    for (const JsonNode* i : v.items) keys.push_back(i->text);
    Forms f;
    if (positive) {
        f = Forms::but(Type::kObject);
        f.unite(has(keys));
        return f;
    }
    for (const std::string& k : keys) f.unite(lacks(k));
    return f;
}

Forms SchemaAlgebra::min_properties(const JsonNode& s, const JsonNode& v, bool positive) {
    MemberForm m;
    m.pointer = at(s, "minProperties");
    const int64_t n = count_of(v);
    if (!positive) {
        m.max = n - 1;
        return n == 0 ? Forms::nothing() : only(std::move(m));
    }
    if (n == 0) return Forms::everything();
    m.min = n;
    Forms f = Forms::but(Type::kObject);
    f.objects.push_back(std::move(m));
    return f;
}

Forms SchemaAlgebra::max_properties(const JsonNode& s, const JsonNode& v, bool positive) {
    MemberForm m;
    m.pointer = at(s, "maxProperties");
    if (!positive) {
        m.min = count_of(v) + 1;
        return only(std::move(m));
    }
    m.max = count_of(v);
    Forms f = Forms::but(Type::kObject);
    f.objects.push_back(std::move(m));
    return f;
}

SharedAutomaton SchemaAlgebra::string_set(const Forms& f) {
    Automaton all = Automaton::nothing();
    for (const StringPart& p : f.strings) {
        const Automaton one = p.list ? Automaton::words(p.values(), limits_) : p.language(limits_);
        all = all.combine(one, SetOperation::kOr, limits_);
    }
    return std::make_shared<Automaton>(std::move(all));
}

Forms SchemaAlgebra::property_names(const JsonNode& s, const JsonNode& v, bool positive) {
    if (!positive)
        refuse(at(s, "propertyNames"), "propertyNames", "propertyNames cannot be negated");
    const SharedAutomaton good = string_set(forms({{&v, true}}));
    MemberForm m;
    m.pointer = at(s, "propertyNames");
    // Keys that the set does not accept have no value at all.
    m.rules.push_back({MemberForm::Rule::Keys::kOther, {}, {good}, never()});
    Forms f = Forms::but(Type::kObject);
    f.objects.push_back(std::move(m));
    return f;
}

Forms SchemaAlgebra::dependent(const JsonNode& s, const JsonNode&, bool positive) {
    Forms all = positive ? Forms::everything() : Forms::nothing();
    const auto add = [&](const std::string& key, const Forms& consequence, const Forms& opposite) {
        if (positive) {
            Forms f = Forms::but(Type::kObject);
            f.unite(lacks(key));
            Forms held = has({key}).both(consequence, limits_);
            f.objects.insert(f.objects.end(), held.objects.begin(), held.objects.end());
            all = all.both(f, limits_);
        } else {
            all.unite(has({key}).both(opposite, limits_));
        }
    };
    for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
        const JsonNode* table = s.find(keyword);
        if (table == nullptr) continue;
        for (const auto& [key, value] : table->members) {
            if (value->is(Type::kArray)) {
                std::vector<std::string> keys;
                Forms missing;
                for (const JsonNode* i : value->items) {
                    keys.push_back(i->text);
                    missing.unite(lacks(i->text));
                }
                add(key, has(keys), missing);
            } else {
                add(key, literal({value, true}), positive ? Forms() : literal({value, false}));
            }
        }
    }
    return all;
}

// ------------------------------------------------------------------ combinations

Forms SchemaAlgebra::all_of(const JsonNode&, const JsonNode& v, bool positive) {
    Forms f = positive ? Forms::everything() : Forms::nothing();
    for (const JsonNode* i : v.items) {
        if (positive) {
            f = f.both(literal({i, true}), limits_);
        } else {
            f.unite(literal({i, false}));
        }
    }
    return f;
}

Forms SchemaAlgebra::any_of(const JsonNode& s, const JsonNode& v, bool positive) {
    if (!positive) {
        Forms f = Forms::everything();
        for (const JsonNode* i : v.items) f = f.both(literal({i, false}), limits_);
        return f;
    }
    Forms f;
    for (const JsonNode* i : v.items) f.unite(literal({i, true}));
    if (f.objects.size() > limits_.alternatives || f.arrays.size() > limits_.alternatives) {
        refuse(at(s, "anyOf"),
               "anyOf",
               "more than " + std::to_string(limits_.alternatives) + " alternatives");
    }
    return f;
}

Forms SchemaAlgebra::one_of(const JsonNode& s, const JsonNode& v, bool positive) {
    constexpr int kDepth = 3;
    constexpr size_t kMost = 64;
    if (v.items.size() > kMost) {
        refuse(at(s, "oneOf"), "oneOf", "more than " + std::to_string(kMost) + " branches");
    }
    std::vector<Forms> branch;
    for (const JsonNode* i : v.items) branch.push_back(literal({i, true}));
    // Branches that share no value need no negation; most oneOf in the field are of that kind.
    std::vector<std::pair<size_t, size_t>> overlaps;
    std::vector<Forms> shared;
    for (size_t i = 0; i < branch.size(); ++i) {
        for (size_t j = i + 1; j < branch.size(); ++j) {
            Forms both = branch[i].both(branch[j], limits_);
            if (surely_empty(both, kDepth)) continue;
            overlaps.emplace_back(i, j);
            shared.push_back(std::move(both));
        }
    }
    Forms f;
    if (positive) {
        for (size_t i = 0; i < branch.size(); ++i) {
            Forms mine = branch[i];
            for (const auto& [a, b] : overlaps) {
                if (a == i) mine = mine.both(literal({v.items[b], false}), limits_);
                if (b == i) mine = mine.both(literal({v.items[a], false}), limits_);
            }
            f.unite(mine);
        }
        return f;
    }
    f = Forms::everything();
    for (const JsonNode* i : v.items) f = f.both(literal({i, false}), limits_);
    for (const Forms& both : shared) f.unite(both);
    return f;
}

Forms SchemaAlgebra::negation(const JsonNode&, const JsonNode& v, bool positive) {
    return literal({&v, !positive});
}

Forms SchemaAlgebra::condition(const JsonNode& s, const JsonNode& v, bool positive) {
    const JsonNode* yes = s.find("then");
    const JsonNode* no = s.find("else");
    if (yes == nullptr && no == nullptr) return positive ? Forms::everything() : Forms::nothing();
    const auto branch = [&](const JsonNode* b, bool condition_holds) {
        if (b == nullptr && !positive) return Forms::nothing();
        const Forms held = literal({&v, condition_holds});
        return b == nullptr ? held : held.both(literal({b, positive}), limits_);
    };
    Forms f = branch(yes, true);
    f.unite(branch(no, false));
    return f;
}

}  // namespace deepinfer::grammar
