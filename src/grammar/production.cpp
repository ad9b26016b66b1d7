#include "grammar/production.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

void put_code_point(uint32_t c, std::string* out) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == ' ' || c == '_' || c == ',' || c == ':' || c == '{' || c == '}';
    if (plain) {
        out->push_back(static_cast<char>(c));
        return;
    }
    char text[16];
    if (c > 0xFFFF) {
        std::snprintf(text, sizeof text, "\\U%08X", c);
    } else {
        std::snprintf(text, sizeof text, "\\u%04X", c);
    }
    *out += text;
}

/// Almost everything is written as what it is not, marker and surrogate code points included: of
/// such classes the library counts repetitions without a state for each.
void write_class(const CharSet& set, std::string* out) {
    constexpr uint64_t kFew = 64;
    CharSet shown = set;
    *out += '[';
    CharSet missing = set.complement();
    if (missing.size() <= kFew) {
        *out += '^';
        missing.add(0xD800, 0xDFFF);
        missing.add(kMarkerBase, kMaxCodePoint);
        shown = missing;
    }
    for (const auto& [lo, hi] : shown.intervals()) {
        put_code_point(lo, out);
        if (hi == lo) continue;
        if (hi > lo + 1) *out += '-';
        put_code_point(hi, out);
    }
    *out += ']';
}

}  // namespace

ExprId Productions::add(Expr e) {
    WorkBudget::tick();
    WorkBudget::take_bytes(
        static_cast<int64_t>(sizeof(Expr) + e.text.size() + e.parts.size() * sizeof(ExprId)));
    exprs_.push_back(std::move(e));
    return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId Productions::literal(std::string text) {
    Expr e;
    e.text = std::move(text);
    return add(std::move(e));
}

ExprId Productions::chars(CharSet set) {
    if (set.empty()) return never();
    if (set.size() == 1) return literal(utf8_of(set.intervals()[0].first));
    Expr e;
    e.kind = Kind::kChars;
    e.set = std::move(set);
    return add(std::move(e));
}

ExprId Productions::sequence(std::vector<ExprId> parts) {
    std::vector<ExprId> flat;
    for (const ExprId p : parts) {
        const Expr& x = at(p);
        if (x.kind == Kind::kLiteral && x.text.empty()) continue;
        if (is_never(p)) return p;
        if (x.kind == Kind::kSequence) {
            flat.insert(flat.end(), x.parts.begin(), x.parts.end());
        } else {
            flat.push_back(p);
        }
    }
    std::vector<ExprId> joined;
    for (const ExprId p : flat) {  // neighbouring literals become one
        if (!joined.empty() && at(p).kind == Kind::kLiteral &&
            at(joined.back()).kind == Kind::kLiteral) {
            joined.back() = literal(at(joined.back()).text + at(p).text);
        } else {
            joined.push_back(p);
        }
    }
    if (joined.empty()) return empty();
    if (joined.size() == 1) return joined[0];
    Expr e;
    e.kind = Kind::kSequence;
    e.parts = std::move(joined);
    return add(std::move(e));
}

ExprId Productions::choice(std::vector<ExprId> alternatives) {
    std::vector<ExprId> flat;
    for (const ExprId p : alternatives) {
        if (at(p).kind == Kind::kChoice) {
            flat.insert(flat.end(), at(p).parts.begin(), at(p).parts.end());
        } else {
            flat.push_back(p);
        }
    }
    if (flat.size() == 1) return flat[0];
    Expr e;
    e.kind = Kind::kChoice;
    e.parts = std::move(flat);
    return add(std::move(e));
}

ExprId Productions::repeat(ExprId part, int min, int max) {
    DI_CHECK(min >= 0 && (max == kNoMax || max >= min));
    if (max == 0) return empty();
    if (min == 1 && max == 1) return part;
    const Expr& x = at(part);
    if (x.kind == Kind::kLiteral && x.text.empty()) return part;
    if (is_never(part)) return min == 0 ? empty() : part;
    // (p*)* and friends would be ambiguous without end.
    if (x.kind == Kind::kRepeat && x.max == kNoMax && x.min <= 1 &&
        (min == 0 || x.min == 0 || min == 1) && max == kNoMax) {
        return repeat(x.parts[0], std::min(min, x.min), kNoMax);
    }
    Expr e;
    e.kind = Kind::kRepeat;
    e.parts = {part};
    e.min = min;
    e.max = max;
    return add(std::move(e));
}

ExprId Productions::ref(RuleId rule) {
    Expr e;
    e.kind = Kind::kRef;
    e.rule = rule;
    return add(std::move(e));
}

RuleId Productions::add_rule(std::string name_hint) {
    rules_.push_back({std::move(name_hint), -1});
    return static_cast<RuleId>(rules_.size() - 1);
}

RuleId Productions::rule(std::string name_hint, ExprId body) {
    const RuleId r = add_rule(std::move(name_hint));
    set_body(r, body);
    return r;
}

bool Productions::productive(ExprId id, const std::vector<bool>& rules) const {
    WorkBudget::tick();
    const Expr& e = at(id);
    const auto good = [&](ExprId p) { return productive(p, rules); };
    switch (e.kind) {
        case Kind::kLiteral:
        case Kind::kChars:
            return true;
        case Kind::kSequence:
            return std::all_of(e.parts.begin(), e.parts.end(), good);
        case Kind::kChoice:
            return std::any_of(e.parts.begin(), e.parts.end(), good);
        case Kind::kRepeat:
            return e.min == 0 || good(e.parts[0]);
        case Kind::kRef:
            return rules[static_cast<size_t>(e.rule)];
    }
    return false;
}

std::vector<bool> Productions::productive_rules() const {
    std::vector<bool> good(rules_.size(), false);
    // Rules mostly refer to later-made ones or earlier ones; sweeping both ways settles in few
    // rounds.
    for (bool changed = true, backwards = true; changed; backwards = !backwards) {
        changed = false;
        for (size_t k = 0; k < rules_.size(); ++k) {
            const size_t i = backwards ? rules_.size() - 1 - k : k;
            if (good[i] || rules_[i].body < 0 || !productive(rules_[i].body, good)) continue;
            good[i] = changed = true;
        }
    }
    return good;
}

ExprId Productions::pruned(ExprId id, const std::vector<bool>& rules) {
    const Expr e = at(id);
    switch (e.kind) {
        case Kind::kLiteral:
        case Kind::kChars:
        case Kind::kRef:
            return id;
        case Kind::kRepeat: {
            if (!productive(e.parts[0], rules)) return empty();
            return repeat(pruned(e.parts[0], rules), e.min, e.max);
        }
        case Kind::kSequence: {
            std::vector<ExprId> parts;
            for (const ExprId p : e.parts) parts.push_back(pruned(p, rules));
            return sequence(std::move(parts));
        }
        case Kind::kChoice: {
            std::vector<ExprId> parts;
            for (const ExprId p : e.parts) {
                if (productive(p, rules)) parts.push_back(pruned(p, rules));
            }
            return choice(std::move(parts));
        }
    }
    return id;
}

bool Productions::prune() {
    const std::vector<bool> good = productive_rules();
    if (root_ < 0 || !good[static_cast<size_t>(root_)]) return false;
    for (size_t i = 0; i < rules_.size(); ++i) {
        if (good[i]) rules_[i].body = pruned(rules_[i].body, good);
    }
    return true;
}

std::vector<bool> Productions::reached() const {
    std::vector<bool> seen(rules_.size(), false);
    std::vector<RuleId> open = {root_};
    seen[static_cast<size_t>(root_)] = true;
    std::vector<ExprId> stack;
    while (!open.empty()) {
        stack.push_back(rules_[static_cast<size_t>(open.back())].body);
        open.pop_back();
        while (!stack.empty()) {
            const Expr& e = at(stack.back());
            stack.pop_back();
            stack.insert(stack.end(), e.parts.begin(), e.parts.end());
            if (e.kind == Kind::kRef && !seen[static_cast<size_t>(e.rule)]) {
                seen[static_cast<size_t>(e.rule)] = true;
                open.push_back(e.rule);
            }
        }
    }
    return seen;
}

size_t Productions::size_of(ExprId id) const {
    WorkBudget::tick();
    const Expr& e = at(id);
    size_t n = 1;
    if (e.kind == Kind::kLiteral) n = e.text.size();
    if (e.kind == Kind::kChars) n = 1 + e.set.intervals().size() / 8;
    for (const ExprId p : e.parts) n += size_of(p);
    if (e.kind == Kind::kRepeat) {
        // The library unrolls so many copies and counts the others.
        constexpr int kUnrolled = 128;
        const int copies = e.max == kNoMax ? std::max(1, e.min) : e.max;
        n *= static_cast<size_t>(std::min(copies, kUnrolled * 2));
    }
    // Nested repetitions must not come round to a small number.
    constexpr size_t kEnough = size_t{1} << 40;
    return std::min(n, kEnough);
}

size_t Productions::size() const {
    const std::vector<bool> seen = reached();
    size_t n = 0;
    for (size_t i = 0; i < rules_.size(); ++i) {
        if (seen[i]) n += 1 + size_of(rules_[i].body);
    }
    return n;
}

size_t Productions::depth_of(ExprId id) const {
    size_t deepest = 0;
    for (const ExprId p : at(id).parts) deepest = std::max(deepest, depth_of(p));
    return deepest + 1;
}

size_t Productions::depth() const {
    size_t deepest = 0;
    for (const Rule& r : rules_) {
        if (r.body >= 0) deepest = std::max(deepest, depth_of(r.body));
    }
    return deepest;
}

std::string Productions::rule_name(RuleId r) const {
    if (r == root_) return "root";
    return rules_[static_cast<size_t>(r)].name + "_" + std::to_string(r);
}

// binding: 0 choice allowed, 1 sequence allowed, 2 one element wanted
void Productions::write(ExprId id, int binding, std::string* out) const {
    WorkBudget::tick();
    const Expr& e = at(id);
    switch (e.kind) {
        case Kind::kLiteral:
            *out += '"';
            for (const uint32_t c : code_points(e.text)) put_code_point(c, out);
            *out += '"';
            return;
        case Kind::kChars:
            write_class(e.set, out);
            return;
        case Kind::kRef:
            *out += rule_name(e.rule);
            return;
        case Kind::kSequence:
        case Kind::kChoice: {
            const bool is_choice = e.kind == Kind::kChoice;
            const bool group = binding > (is_choice ? 0 : 1);
            if (group) *out += '(';
            for (size_t i = 0; i < e.parts.size(); ++i) {
                if (i > 0) *out += is_choice ? " | " : " ";
                write(e.parts[i], is_choice ? 1 : 2, out);
            }
            if (group) *out += ')';
            return;
        }
        case Kind::kRepeat: {
            const bool nested = at(e.parts[0]).kind == Kind::kRepeat;
            if (nested) *out += '(';
            write(e.parts[0], 2, out);
            if (nested) *out += ')';
            if (e.min == 0 && e.max == kNoMax) {
                *out += '*';
            } else if (e.min == 1 && e.max == kNoMax) {
                *out += '+';
            } else if (e.min == 0 && e.max == 1) {
                *out += '?';
            } else {
                *out += '{' + std::to_string(e.min);
                if (e.max != e.min) *out += ',' + (e.max == kNoMax ? "" : std::to_string(e.max));
                *out += '}';
            }
            return;
        }
    }
}

std::string Productions::to_ebnf() const {
    const std::vector<bool> seen = reached();
    std::string out;
    const auto put = [&](RuleId r) {
        out += rule_name(r) + " ::= ";
        write(rules_[static_cast<size_t>(r)].body, 0, &out);
        out += '\n';
    };
    put(root_);
    for (size_t i = 0; i < rules_.size(); ++i) {
        if (seen[i] && static_cast<RuleId>(i) != root_) put(static_cast<RuleId>(i));
    }
    return out;
}

}  // namespace deepinfer::grammar
