#include "grammar/schema_algebra.h"

#include <algorithm>

#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonNode::Type;
constexpr size_t kMostActive = 200;  ///< references and combinations within one place

}  // namespace

SchemaAlgebra::SchemaAlgebra(JsonTree& tree,
                             const JsonNode* root,
                             bool strict,
                             const Limits& limits)
    : tree_(tree), root_(root), strict_(strict), limits_(limits) {
    JsonNode* no = tree.make(Type::kBool, "");
    no->boolean = false;
    false_ = no;
}

void SchemaAlgebra::note(std::string pointer, std::string keyword, std::string text) {
    if (!noted_.emplace(pointer, keyword).second) return;
    notes_.push_back({std::move(pointer), std::move(keyword), std::move(text)});
}

void SchemaAlgebra::give_up(const Refusal& r) {
    if (strict_) throw r;
    note(r.pointer, r.keyword, "not enforced: " + r.reason);
}

Forms SchemaAlgebra::forms(const Conjunction& all) {
    Forms f = Forms::everything();
    for (const Literal& l : all) {
        try {
            f = f.both(literal(l), limits_);
        } catch (const Refusal& r) {
            if (strict_) throw;
            give_up({r.pointer.empty() ? l.schema->pointer : r.pointer, r.keyword, r.reason});
        }
    }
    return f;
}

Forms SchemaAlgebra::literal(const Literal& l) {
    WorkBudget::tick();
    const auto known = memo_.find(l.key());
    if (known != memo_.end()) return known->second;
    if (!active_.insert(l.key()).second) {
        refuse(l.schema->pointer,
               "$ref",
               "the reference leads back to itself without going into a member or item");
    }
    if (active_.size() > kMostActive) {
        active_.erase(l.key());
        refuse(l.schema->pointer,
               "$ref",
               "more than " + std::to_string(kMostActive) +
                   " references and combinations in one place");
    }
    Forms f;
    try {
        f = compute(l);
    } catch (...) {
        active_.erase(l.key());
        throw;
    }
    active_.erase(l.key());
    memo_[l.key()] = f;
    return f;
}

Forms SchemaAlgebra::compute(const Literal& l) {
    const JsonNode& s = *l.schema;
    if (s.is(Type::kBool)) return s.boolean == l.positive ? Forms::everything() : Forms::nothing();
    Forms f = l.positive ? Forms::everything() : Forms::nothing();
    const bool reference_alone = draft7_ && s.find("$ref") != nullptr;
    for (const auto& [names, function] : keywords()) {
        const std::string list = names;
        std::string key;
        const JsonNode* value = nullptr;
        for (size_t at = 0; value == nullptr && at <= list.size();) {
            const size_t end = std::min(list.find('|', at), list.size());
            key = list.substr(at, end - at);
            value = s.find(key);
            at = end + 1;
        }
        if (value == nullptr || (reference_alone && key != "$ref")) continue;
        try {
            const Forms part = (this->*function)(s, *value, l.positive);
            if (l.positive) {
                f = f.both(part, limits_);
            } else {
                f.unite(part);
            }
        } catch (Refusal r) {
            if (r.pointer.empty()) r.pointer = s.pointer + "/" + key;
            if (r.keyword.empty()) r.keyword = key;
            if (!l.positive || strict_) throw r;
            give_up(r);
        }
    }
    return f;
}

bool SchemaAlgebra::surely_empty(const Forms& f, int depth) {
    WorkBudget::tick();
    if (f.null || f.truth[0] || f.truth[1]) return false;
    for (const NumberPart& p : f.numbers) {
        if (p.list ? !p.values().empty() : p.conditions.empty() || !p.language(limits_).empty())
            return false;
    }
    for (const StringPart& p : f.strings) {
        if (p.list ? !p.values().empty() : p.conditions.empty() || !p.language(limits_).empty())
            return false;
    }
    for (const ItemForm& a : f.arrays) {
        if (depth == 0) return false;
        bool dead = false;
        for (int64_t i = 0; i < std::min<int64_t>(a.min, 8) && !dead; ++i) {
            dead = surely_empty(a.at(static_cast<size_t>(i)), depth - 1);
        }
        if (!dead) return false;
    }
    for (const MemberForm& m : f.objects) {
        if (depth == 0) return false;
        const bool dead =
            std::any_of(m.required.begin(), m.required.end(), [&](const std::string& key) {
                const Conjunction c = m.value_of(key);
                return is_never(c) || surely_empty(c, depth - 1);
            });
        if (!dead) return false;
    }
    return true;
}

// ------------------------------------------------------------------ what was evaluated

namespace {

/// One way in which a schema can hold, and what its keywords then looked at.
struct World {
    Forms forms = Forms::everything();
    bool all = false;                ///< every member (item)
    std::vector<std::string> names;  ///< members
    std::vector<std::string> pattern_texts;
    size_t prefix = 0;  ///< items
};

constexpr size_t kMostWorlds = 64;

std::vector<World> cross(const std::vector<World>& a,
                         const std::vector<World>& b,
                         const Limits& limits,
                         const std::string& pointer) {
    std::vector<World> out;
    for (const World& x : a) {
        for (const World& y : b) {
            WorkBudget::tick();
            World w = x;
            w.forms = x.forms.both(y.forms, limits);
            if (w.forms.none()) continue;
            w.all = x.all || y.all;
            w.names.insert(w.names.end(), y.names.begin(), y.names.end());
            w.pattern_texts.insert(
                w.pattern_texts.end(), y.pattern_texts.begin(), y.pattern_texts.end());
            w.prefix = std::max(x.prefix, y.prefix);
            out.push_back(std::move(w));
            if (out.size() > kMostWorlds) {
                refuse(pointer,
                       "unevaluated",
                       "more than " + std::to_string(kMostWorlds) + " combinations of branches");
            }
        }
    }
    return out;
}

}  // namespace

/// Walks one schema for unevaluatedProperties (items false) or unevaluatedItems (items true).
class EvaluationWalk {
  public:
    using Forming = std::function<Forms(const JsonNode*, bool)>;
    using Resolving = std::function<const JsonNode*(const JsonNode&)>;
    EvaluationWalk(bool items, bool draft7, const Limits& limits, Forming form, Resolving resolve)
        : items_(items),
          draft7_(draft7),
          limits_(limits),
          form_(std::move(form)),
          resolve_(std::move(resolve)) {}

    /// `rest` makes the forms of the keywords that evaluate nothing beyond this place.
    std::vector<World> worlds(const JsonNode* s, bool top, int depth) {
        if (depth > 24) refuse(s->pointer, "unevaluated", "references are nested too deep");
        World w;
        w.forms = top ? Forms::everything() : form_(s, true);
        if (s->is(Type::kBool)) return {w};
        own(*s, top, &w);
        std::vector<World> out = {w};
        const auto add = [&](const std::vector<World>& more) {
            out = cross(out, more, limits_, s->pointer);
        };
        if (const JsonNode* ref = s->find("$ref")) add(worlds(resolve_(*ref), false, depth + 1));
        if (s->find("$dynamicRef") != nullptr)
            refuse(s->pointer, "$dynamicRef", "$dynamicRef beside unevaluated keywords");
        if (const JsonNode* all = s->find("allOf")) {
            for (const JsonNode* i : all->items) add(worlds(i, false, depth + 1));
        }
        if (const JsonNode* any = s->find("anyOf")) {
            for (const JsonNode* i : any->items) add(either(i, depth));
        }
        if (const JsonNode* one = s->find("oneOf")) {
            for (const JsonNode* i : one->items) add(either(i, depth));
        }
        if (const JsonNode* condition = s->find("if")) add(branches(*s, condition, depth));
        if (const JsonNode* table = s->find("dependentSchemas")) {
            if (!items_ && !table->members.empty()) {
                refuse(s->pointer + "/dependentSchemas",
                       "dependentSchemas",
                       "dependentSchemas beside unevaluatedProperties");
            }
        }
        return out;
    }

  private:
    void own(const JsonNode& s, bool top, World* w) {
        if (items_) {
            const JsonNode* prefix = s.find("prefixItems");
            const JsonNode* rest = s.find("items");
            if (rest != nullptr && rest->is(Type::kArray)) {
                prefix = rest;
                rest = s.find("additionalItems");
            }
            if (prefix != nullptr) w->prefix = prefix->items.size();
            if (rest != nullptr || (!top && s.find("unevaluatedItems") != nullptr)) w->all = true;
            if (s.find("contains") != nullptr && !w->all) {
                refuse(s.pointer + "/contains", "contains", "contains beside unevaluatedItems");
            }
            return;
        }
        if (const JsonNode* properties = s.find("properties")) {
            for (const auto& [key, value] : properties->members) w->names.push_back(key);
        }
        if (const JsonNode* patterns = s.find("patternProperties")) {
            for (const auto& [text, value] : patterns->members) w->pattern_texts.push_back(text);
        }
        if (s.find("additionalProperties") != nullptr ||
            (!top && s.find("unevaluatedProperties") != nullptr))
            w->all = true;
    }

    std::vector<World> either(const JsonNode* branch, int depth) {
        std::vector<World> out = worlds(branch, false, depth + 1);
        // A branch that evaluates nothing needs no second case.
        const bool silent = std::all_of(out.begin(), out.end(), [](const World& w) {
            return !w.all && w.names.empty() && w.pattern_texts.empty() && w.prefix == 0;
        });
        if (silent) return {World()};
        World no;
        no.forms = form_(branch, false);
        if (!no.forms.none()) out.push_back(std::move(no));
        return out;
    }

    std::vector<World> branches(const JsonNode& s, const JsonNode* condition, int depth) {
        std::vector<World> yes = worlds(condition, false, depth + 1);
        if (const JsonNode* then = s.find("then"))
            yes = cross(yes, worlds(then, false, depth + 1), limits_, s.pointer);
        World no;
        no.forms = form_(condition, false);
        std::vector<World> other = {no};
        if (const JsonNode* els = s.find("else"))
            other = cross(other, worlds(els, false, depth + 1), limits_, s.pointer);
        for (World& w : other) {
            if (!w.forms.none()) yes.push_back(std::move(w));
        }
        return yes;
    }

    const bool items_, draft7_;
    const Limits& limits_;
    Forming form_;
    Resolving resolve_;
};

Forms SchemaAlgebra::unevaluated_properties(const JsonNode& s, const JsonNode& v, bool positive) {
    if (v.is(Type::kBool) && v.boolean) return positive ? Forms::everything() : Forms::nothing();
    if (!positive)
        refuse(s.pointer + "/unevaluatedProperties",
               "unevaluatedProperties",
               "unevaluatedProperties cannot be negated");
    EvaluationWalk walk(
        false,
        draft7_,
        limits_,
        [this](const JsonNode* n, bool sign) {
            return literal({n, sign});
        },
        [this](const JsonNode& ref) { return resolve(ref, ref.text, "$ref"); });
    Forms out;
    for (World& w : walk.worlds(&s, true, 0)) {
        if (!w.all) {
            MemberForm m;
            m.pointer = s.pointer + "/unevaluatedProperties";
            MemberForm::Rule other{MemberForm::Rule::Keys::kOther, w.names, {}, {{&v, true}}};
            if (v.is(Type::kBool)) other.value = never();
            for (const std::string& text : w.pattern_texts)
                other.patterns.push_back(compile_pattern(text, s.pointer));
            m.rules.push_back(std::move(other));
            Forms open = Forms::but(Type::kObject);
            open.objects.push_back(std::move(m));
            w.forms = w.forms.both(open, limits_);
        }
        out.unite(w.forms);
    }
    return out;
}

Forms SchemaAlgebra::unevaluated_items(const JsonNode& s, const JsonNode& v, bool positive) {
    if (v.is(Type::kBool) && v.boolean) return positive ? Forms::everything() : Forms::nothing();
    if (!positive)
        refuse(s.pointer + "/unevaluatedItems",
               "unevaluatedItems",
               "unevaluatedItems cannot be negated");
    EvaluationWalk walk(
        true,
        draft7_,
        limits_,
        [this](const JsonNode* n, bool sign) {
            return literal({n, sign});
        },
        [this](const JsonNode& ref) { return resolve(ref, ref.text, "$ref"); });
    Forms out;
    for (World& w : walk.worlds(&s, true, 0)) {
        if (!w.all) {
            ItemForm form;
            form.prefix.resize(w.prefix);
            form.rest = v.is(Type::kBool) ? never() : Conjunction{{&v, true}};
            Forms open = Forms::but(Type::kArray);
            open.arrays.push_back(std::move(form));
            w.forms = w.forms.both(open, limits_);
        }
        out.unite(w.forms);
    }
    return out;
}

}  // namespace deepinfer::grammar
