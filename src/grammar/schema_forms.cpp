#include "grammar/schema_forms.h"

#include <algorithm>

#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

int64_t least(int64_t a, int64_t b) {  // of two upper bounds, −1 being none
    if (a < 0) return b;
    return b < 0 ? a : std::min(a, b);
}

Conjunction join(const Conjunction& a, const Conjunction& b) {
    Conjunction out = a;
    out.insert(b.begin(), b.end());
    return out;
}

bool dead(const NumberPart& p) {
    return p.list && p.values().empty();
}
bool dead(const StringPart& p) {
    return (p.max != StringPart::kNoEnd && p.min > p.max) || (p.list && p.values().empty());
}
bool dead(const ItemForm& p) {
    return p.max >= 0 && p.min > p.max;
}
bool dead(const MemberForm& p) {
    return p.max >= 0 && (p.min > p.max || static_cast<int64_t>(p.required.size()) > p.max);
}

template <typename Part>
std::vector<Part> product(const std::vector<Part>& a,
                          const std::vector<Part>& b,
                          const Limits& limits) {
    std::vector<Part> out;
    for (const Part& x : a) {
        for (const Part& y : b) {
            WorkBudget::tick();
            Part both = x.with(y);
            if (dead(both)) continue;
            if (out.size() >= limits.alternatives) {
                refuse("",
                       "",
                       "the combination of alternatives has more than " +
                           std::to_string(limits.alternatives) + " cases of one type");
            }
            out.push_back(std::move(both));
        }
    }
    return out;
}

template <typename T>
void append(std::vector<T>* to, const std::vector<T>& from) {
    to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

ItemForm ItemForm::with(const ItemForm& o) const {
    ItemForm out;
    for (size_t i = 0; i < std::max(prefix.size(), o.prefix.size()); ++i)
        out.prefix.push_back(join(at(i), o.at(i)));
    out.rest = join(rest, o.rest);
    out.min = std::max(min, o.min);
    out.max = least(max, o.max);
    out.contains = contains;
    append(&out.contains, o.contains);
    out.unique = unique || o.unique;
    out.pointer = pointer.empty() ? o.pointer : pointer;
    return out;
}

bool MemberForm::Rule::covers(const std::string& key) const {
    switch (keys) {
        case Keys::kName:
            return names[0] == key;
        case Keys::kPattern:
            return patterns[0]->accepts(key);
        case Keys::kOther:
            return std::find(names.begin(), names.end(), key) == names.end() &&
                   std::none_of(patterns.begin(), patterns.end(), [&](const SharedAutomaton& a) {
                       return a->accepts(key);
                   });
    }
    return false;
}

void MemberForm::declare(const std::string& key) {
    WorkBudget::tick();
    if (std::find(order.begin(), order.end(), key) == order.end()) order.push_back(key);
}

Conjunction MemberForm::value_of(const std::string& key) const {
    Conjunction out;
    for (const Rule& r : rules) {
        if (r.covers(key)) out.insert(r.value.begin(), r.value.end());
    }
    return out;
}

MemberForm MemberForm::with(const MemberForm& o) const {
    MemberForm out = *this;
    append(&out.rules, o.rules);
    std::set<std::string> known(order.begin(), order.end());
    for (const std::string& key : o.order) {
        if (known.insert(key).second) out.order.push_back(key);
    }
    out.required.insert(o.required.begin(), o.required.end());
    out.min = std::max(min, o.min);
    out.max = least(max, o.max);
    if (out.pointer.empty()) out.pointer = o.pointer;
    return out;
}

Forms Forms::everything() {
    Forms f;
    f.null = f.truth[0] = f.truth[1] = true;
    f.numbers.resize(1);
    f.strings.resize(1);
    f.arrays.resize(1);
    f.objects.resize(1);
    return f;
}

Forms Forms::of_type(const std::string& type) {
    Forms f;
    if (type == "null") f.null = true;
    if (type == "boolean") f.truth[0] = f.truth[1] = true;
    if (type == "number" || type == "integer") {
        f.numbers.resize(1);
        f.numbers[0].integer = type == "integer";
    }
    if (type == "string") f.strings.resize(1);
    if (type == "array") f.arrays.resize(1);
    if (type == "object") f.objects.resize(1);
    return f;
}

Forms Forms::but(JsonNode::Type type) {
    Forms f = everything();
    switch (type) {
        case JsonNode::Type::kNull:
            f.null = false;
            break;
        case JsonNode::Type::kBool:
            f.truth[0] = f.truth[1] = false;
            break;
        case JsonNode::Type::kNumber:
            f.numbers.clear();
            break;
        case JsonNode::Type::kString:
            f.strings.clear();
            break;
        case JsonNode::Type::kArray:
            f.arrays.clear();
            break;
        case JsonNode::Type::kObject:
            f.objects.clear();
            break;
    }
    return f;
}

Forms Forms::both(const Forms& o, const Limits& limits) const {
    Forms f;
    f.null = null && o.null;
    for (int i = 0; i < 2; ++i) f.truth[i] = truth[i] && o.truth[i];
    f.numbers = product(numbers, o.numbers, limits);
    f.strings = product(strings, o.strings, limits);
    f.arrays = product(arrays, o.arrays, limits);
    f.objects = product(objects, o.objects, limits);
    return f;
}

void Forms::unite(const Forms& o) {
    null = null || o.null;
    for (int i = 0; i < 2; ++i) truth[i] = truth[i] || o.truth[i];
    // "Anything of the type" swallows the rest, so that a union of conditions on other types stays
    // small.
    const auto add = [](auto* mine, const auto& theirs, const auto& plain) {
        if (std::any_of(mine->begin(), mine->end(), plain)) return;
        const auto all = std::find_if(theirs.begin(), theirs.end(), plain);
        if (all != theirs.end()) {
            *mine = {*all};
        } else {
            append(mine, theirs);
        }
    };
    add(&numbers, o.numbers, [](const NumberPart& p) { return p.plain(); });
    add(&strings, o.strings, [](const StringPart& p) { return p.plain(); });
    add(&arrays, o.arrays, [](const ItemForm& p) {
        return p.prefix.empty() && p.rest.empty() && p.min == 0 && p.max < 0 &&
               p.contains.empty() && !p.unique;
    });
    add(&objects, o.objects, [](const MemberForm& p) {
        return p.rules.empty() && p.required.empty() && p.min == 0 && p.max < 0;
    });
}

}  // namespace deepinfer::grammar
