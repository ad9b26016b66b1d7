#include "grammar/json_writer.h"

#include <algorithm>
#include <tuple>

#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kMostArrayStates = 4000;
constexpr size_t kMostKeyClasses = 64;
constexpr size_t kMostMembers = 1000;  ///< optional ones are all predicted at each place

CharSet set_of(const char* chars) {
    CharSet s;
    for (const char* c = chars; *c != 0; ++c)
        s.add(static_cast<uint8_t>(*c), static_cast<uint8_t>(*c));
    return s;
}

}  // namespace

// ------------------------------------------------------------------ text

ExprId JsonText::shared(RuleId* rule, const char* name, ExprId (JsonText::*body)()) {
    if (*rule < 0) {
        *rule = p_.add_rule(name);
        p_.set_body(*rule, (this->*body)());
    }
    return p_.ref(*rule);
}

namespace {

constexpr uint32_t kBar = 0xFF5C;  ///< of the spelling of markers
constexpr const char* kEscapedBar = "\\uff5c";

}  // namespace

CharSet JsonText::must_be_escaped() const {
    CharSet s = CharSet::of(0, 0x1F);
    s.add('"', '"');
    s.add('\\', '\\');
    if (between_markup_) s.add(kBar, kBar);
    return s;
}

std::string JsonText::quoted(const std::string& value) const {
    std::string text = quote_json(value);
    if (!between_markup_) return text;
    const std::string bar = utf8_of(kBar);
    for (size_t at = 0; (at = text.find(bar, at)) != std::string::npos;)
        text.replace(at, bar.size(), kEscapedBar);
    return text;
}

ExprId JsonText::any_escape() {
    const ExprId h = p_.chars(set_of("0123456789ABCDEFabcdef"));
    const ExprId d = p_.chars(set_of("Dd"));
    const ExprId bmp = p_.choice({p_.sequence({p_.chars(set_of("0123456789ABCEFabcef")), h, h, h}),
                                  p_.sequence({d, p_.chars(set_of("01234567")), h, h})});
    const ExprId pair = p_.sequence({d,
                                     p_.chars(set_of("89ABab")),
                                     h,
                                     h,
                                     p_.literal("\\u"),
                                     d,
                                     p_.chars(set_of("CDEFcdef")),
                                     h,
                                     h});
    return p_.choice(
        {p_.chars(set_of("\"\\/bfnrt")), p_.sequence({p_.literal("u"), p_.choice({bmp, pair})})});
}

std::vector<ExprId> JsonText::character(const CharSet& set) {
    if (set == CharSet::universe()) {
        return {p_.chars(must_be_escaped().complement()),
                p_.sequence({p_.literal("\\"), shared(&escape_, "escape", &JsonText::any_escape)})};
    }
    static const std::vector<std::pair<uint32_t, char>> kShort = {{'"', '"'},
                                                                  {'\\', '\\'},
                                                                  {'/', '/'},
                                                                  {'\b', 'b'},
                                                                  {'\f', 'f'},
                                                                  {'\n', 'n'},
                                                                  {'\r', 'r'},
                                                                  {'\t', 't'}};
    std::vector<ExprId> ways;
    const CharSet raw = set.minus(must_be_escaped());
    if (!raw.empty()) ways.push_back(p_.chars(raw));
    CharSet letters;
    for (const auto& [c, letter] : kShort) {
        // A solidus needs no escape; the short class edges of patterns stay one way.
        if (c != '/' && set.contains(c))
            letters.add(static_cast<uint8_t>(letter), static_cast<uint8_t>(letter));
    }
    if (!letters.empty()) ways.push_back(p_.sequence({p_.literal("\\"), p_.chars(letters)}));
    if (between_markup_ && set.contains(kBar)) ways.push_back(p_.literal(kEscapedBar));
    for (uint32_t high = 0; high < 2; ++high) {
        CharSet low;
        for (uint32_t c = high * 16; c < high * 16 + 16; ++c) {
            if (!set.contains(c)) continue;
            const uint32_t nibble = c & 15;
            if (nibble < 10) {
                low.add('0' + nibble, '0' + nibble);
            } else {
                low.add('a' + nibble - 10, 'a' + nibble - 10);
                low.add('A' + nibble - 10, 'A' + nibble - 10);
            }
        }
        if (!low.empty())
            ways.push_back(
                p_.sequence({p_.literal(high == 0 ? "\\u000" : "\\u001"), p_.chars(low)}));
    }
    return ways;
}

ExprId JsonText::tail_body() {
    std::vector<ExprId> ways = {p_.literal("\"")};
    for (const ExprId c : character(CharSet::universe()))
        ways.push_back(p_.sequence({c, p_.ref(tail_)}));
    return p_.choice(std::move(ways));
}
ExprId JsonText::string_body() {
    return p_.sequence({p_.literal("\""), shared(&tail_, "tail", &JsonText::tail_body)});
}
ExprId JsonText::any_string() {
    return shared(&string_, "string", &JsonText::string_body);
}

ExprId JsonText::bounded_tail(int64_t min, int64_t max) {
    if (min == 0 && max < 0) return shared(&tail_, "tail", &JsonText::tail_body);
    if (max == 0) return p_.literal("\"");
    const auto [it, added] = tails_.emplace(std::make_pair(min, max), -1);
    if (added) {
        const RuleId r = it->second = p_.add_rule("tail");
        std::vector<ExprId> ways;
        if (min == 0) ways.push_back(p_.literal("\""));
        const ExprId next = bounded_tail(std::max<int64_t>(0, min - 1), max < 0 ? max : max - 1);
        for (const ExprId c : character(CharSet::universe()))
            ways.push_back(p_.sequence({c, next}));
        p_.set_body(r, p_.choice(std::move(ways)));
    }
    return p_.ref(tails_.at({min, max}));
}

ExprId JsonText::bounded_string(int64_t min, int64_t max) {
    constexpr int64_t kMost = 1000000;
    if (min > kMost || max > kMost)
        refuse("", "maxLength", "a length above " + std::to_string(kMost));
    if (std::max(min, max) <= kCountedWithEscapes)
        return p_.sequence({p_.literal("\""), bounded_tail(min, max)});
    const ExprId raw = p_.chars(must_be_escaped().complement());
    // Without an upper bound escapes may come once the least length is there.
    const ExprId end = max < 0 ? bounded_tail(0, -1) : p_.literal("\"");
    const int least = static_cast<int>(min), most = static_cast<int>(max < 0 ? min : max);
    return p_.sequence({p_.literal("\""), p_.repeat(raw, least, most), end});
}

ExprId JsonText::string_of(const Automaton& language) {
    const auto one = [this](const CharSet& s) { return character(s); };
    return p_.sequence({p_.literal("\""), language.expr(p_, one, p_.literal("\""), "text")});
}

ExprId JsonText::integer_body() {
    const ExprId digit = p_.chars(CharSet::of('0', '9'));
    const ExprId whole =
        p_.choice({p_.literal("0"),
                   p_.sequence({p_.chars(CharSet::of('1', '9')), p_.repeat(digit, 0, kNoMax)})});
    return p_.sequence({p_.optional(p_.literal("-")), whole});
}
ExprId JsonText::any_integer() {
    return shared(&integer_, "integer", &JsonText::integer_body);
}

ExprId JsonText::number_body() {
    const ExprId digit = p_.chars(CharSet::of('0', '9'));
    const ExprId fraction = p_.sequence({p_.literal("."), p_.repeat(digit, 1, kNoMax)});
    // Two exponent digits: no number that overflows a double by its exponent.
    const ExprId exponent = p_.sequence(
        {p_.chars(set_of("eE")), p_.optional(p_.chars(set_of("+-"))), p_.repeat(digit, 1, 2)});
    return p_.sequence({integer_body(), p_.optional(fraction), p_.optional(exponent)});
}
ExprId JsonText::any_number() {
    return shared(&number_, "number", &JsonText::number_body);
}

ExprId JsonText::blanks_body() {
    return p_.repeat(p_.chars(set_of(" \t\n\r")), 0, kMostBlanks);
}
ExprId JsonText::blanks() {
    return any_whitespace_ ? shared(&blanks_, "blanks", &JsonText::blanks_body) : p_.empty();
}
ExprId JsonText::comma() {
    return any_whitespace_ ? p_.sequence({blanks(), p_.literal(","), blanks()}) : p_.literal(", ");
}
ExprId JsonText::colon() {
    return any_whitespace_ ? p_.sequence({blanks(), p_.literal(":"), blanks()}) : p_.literal(": ");
}

// ------------------------------------------------------------------ values

JsonWriter::JsonWriter(SchemaAlgebra& algebra,
                       Productions& p,
                       bool any_whitespace,
                       bool between_markup)
    : algebra_(algebra), p_(p), text_(p, any_whitespace, between_markup) {}

RuleId JsonWriter::whole() {
    const ExprId e = value(algebra_.whole());
    const RuleId r = p_.rule("document", e);
    return r;
}

ExprId JsonWriter::value(const Conjunction& c) {
    if (algebra_.is_never(c)) return p_.never();
    const auto known = rules_.find(c);
    if (known != rules_.end()) return p_.ref(known->second);
    if (p_.num_rules() > algebra_.limits().rules) {
        refuse("",
               "",
               "the schema needs more than " + std::to_string(algebra_.limits().rules) + " rules");
    }
    const RuleId r = p_.add_rule("value");
    rules_[c] = r;
    open_.push_back(c);
    return p_.ref(r);
}

void JsonWriter::finish() {
    while (!open_.empty()) {
        const Conjunction c = open_.back();
        open_.pop_back();
        const RuleId r = rules_.at(c);
        try {
            p_.set_body(r, forms(algebra_.forms(c)));
        } catch (Refusal refusal) {
            if (refusal.pointer.empty() && !c.empty())
                refusal.pointer = c.rbegin()->schema->pointer;
            throw refusal;
        }
        if (p_.num_rules() > algebra_.limits().rules) {
            refuse(
                c.empty() ? "" : c.rbegin()->schema->pointer,
                "",
                "the schema needs more than " + std::to_string(algebra_.limits().rules) + " rules");
        }
    }
}

ExprId JsonWriter::forms(const Forms& f) {
    std::vector<ExprId> ways;
    for (const MemberForm& m : f.objects) ways.push_back(object(m));
    for (const ItemForm& a : f.arrays) ways.push_back(array(a));
    for (const StringPart& s : f.strings) ways.push_back(string(s));
    for (const NumberPart& n : f.numbers) ways.push_back(number(n));
    if (f.truth[1]) ways.push_back(p_.literal("true"));
    if (f.truth[0]) ways.push_back(p_.literal("false"));
    if (f.null) ways.push_back(p_.literal("null"));
    return p_.choice(std::move(ways));
}

ExprId JsonWriter::number(const NumberPart& part) {
    if (part.list) {
        std::vector<ExprId> ways;
        for (const Decimal& d : part.values()) ways.push_back(p_.literal(d.text()));
        return p_.choice(std::move(ways));
    }
    if (part.conditions.empty()) return part.integer ? text_.any_integer() : text_.any_number();
    const auto one = [this](const CharSet& s) { return std::vector<ExprId>{p_.chars(s)}; };
    return part.language(algebra_.limits()).expr(p_, one, p_.empty(), "number");
}

ExprId JsonWriter::string(const StringPart& part) {
    if (part.list) {
        std::vector<ExprId> ways;
        for (const std::string& s : part.values()) ways.push_back(p_.literal(text_.quoted(s)));
        return p_.choice(std::move(ways));
    }
    if (part.conditions.empty()) return text_.bounded_string(part.min, part.max);
    return text_.string_of(part.language(algebra_.limits()));
}

// ------------------------------------------------------------------ arrays

ExprId JsonWriter::array(const ItemForm& form) {
    if (form.unique && !(form.max >= 0 && form.max <= 1)) {
        const ExprId e = distinct_array(form);
        if (e >= 0) return e;
        algebra_.give_up({form.pointer,
                          "uniqueItems",
                          "uniqueItems is enforced only where the items have few possible values"});
    }
    if (!form.contains.empty()) return counted_array(form);
    return plain_array(form);
}

ExprId JsonWriter::plain_array(const ItemForm& form) {
    const ExprId blanks = text_.blanks();
    const auto wrap = [&](ExprId inside) {
        return p_.sequence({p_.literal("["), blanks, inside, blanks, p_.literal("]")});
    };
    const ExprId none = p_.sequence({p_.literal("["), blanks, p_.literal("]")});
    const auto k = static_cast<int64_t>(form.prefix.size());
    if (form.max == 0) return none;
    const bool closed = algebra_.is_never(form.rest) || (form.max >= 0 && form.max <= k);
    const int64_t most_explicit = form.max >= 0 ? std::min(k, form.max) : k;
    constexpr int64_t kMostCounted = 1000000;
    if (form.min > kMostCounted || form.max > kMostCounted)
        refuse(form.pointer, "maxItems", "more than " + std::to_string(kMostCounted) + " items");
    // tail(i): what may follow the first i items. Built from the end.
    ExprId tail = p_.empty();
    if (!closed && k > 0) {
        const int64_t least = std::max<int64_t>(0, form.min - k);
        const int64_t most = form.max < 0 ? kNoMax : form.max - k;
        tail = p_.repeat(p_.sequence({text_.comma(), value(form.rest)}),
                         static_cast<int>(least),
                         static_cast<int>(most));
    } else if (closed && form.min > most_explicit) {
        tail = p_.never();
    }
    for (int64_t i = most_explicit - 1; i >= 1; --i) {
        const ExprId item =
            p_.sequence({text_.comma(), value(form.prefix[static_cast<size_t>(i)]), tail});
        tail = i >= form.min ? p_.optional(item) : item;
        if (most_explicit > 8)
            tail = p_.ref(p_.rule("items", tail));  // no deep nesting in one rule
    }
    ExprId first;
    if (k > 0) {
        first = p_.sequence({value(form.prefix[0]), tail});
    } else {
        if (closed) return form.min > 0 ? p_.never() : none;
        const int64_t least = std::max<int64_t>(0, form.min - 1);
        const int64_t most = form.max < 0 ? kNoMax : form.max - 1;
        first = p_.sequence({value(form.rest),
                             p_.repeat(p_.sequence({text_.comma(), value(form.rest)}),
                                       static_cast<int>(least),
                                       static_cast<int>(most))});
    }
    return form.min > 0 ? wrap(first) : p_.choice({wrap(first), none});
}

/// Arrays with contains: an automaton over (position, how many of each kind so far).
ExprId JsonWriter::counted_array(const ItemForm& form) {
    const size_t kinds = form.contains.size();
    if (kinds > 3) refuse(form.pointer, "contains", "more than three contains in one place");
    const int64_t last = std::max({static_cast<int64_t>(form.prefix.size()), form.min, form.max});
    std::vector<int64_t> caps;
    size_t total = static_cast<size_t>(std::min<int64_t>(last, 1000000)) + 1;
    for (const ItemForm::Contains& c : form.contains) {
        caps.push_back(std::max(c.min, c.max + 1));
        total *= static_cast<size_t>(std::min<int64_t>(caps.back(), 1000000)) + 1;
        if (total > kMostArrayStates)
            refuse(form.pointer,
                   "contains",
                   "the counts of contains need more than " + std::to_string(kMostArrayStates) +
                       " states");
    }
    struct Key {
        int64_t at;
        std::vector<int64_t> found;
        bool operator<(const Key& o) const { return std::tie(at, found) < std::tie(o.at, o.found); }
    };
    std::map<Key, RuleId> rules;
    std::vector<Key> open;
    const auto rule_of = [&](const Key& k) {
        const auto [it, added] = rules.emplace(k, -1);
        if (added) {
            it->second = p_.add_rule("items");
            open.push_back(k);
        }
        return it->second;
    };
    const Key start{0, std::vector<int64_t>(kinds, 0)};
    const RuleId first = rule_of(start);
    while (!open.empty()) {
        const Key k = open.back();
        open.pop_back();
        std::vector<ExprId> ways;
        bool may_end = k.at >= form.min;
        for (size_t j = 0; j < kinds; ++j) may_end = may_end && k.found[j] >= form.contains[j].min;
        const bool begun = k.at > 0;
        if (may_end)
            ways.push_back(p_.sequence({begun ? text_.blanks() : p_.empty(), p_.literal("]")}));
        if (form.max < 0 || k.at < form.max) {
            for (size_t mask = 0; mask < (size_t{1} << kinds); ++mask) {
                Conjunction item = form.at(static_cast<size_t>(k.at));
                Key next = k;
                next.at = std::min(k.at + 1, std::max<int64_t>(last, 1));
                bool dead = algebra_.is_never(item);
                for (size_t j = 0; j < kinds; ++j) {
                    const bool is = (mask >> j & 1) != 0;
                    const Literal l = is ? form.contains[j].what : form.contains[j].what.negated();
                    item.insert(l);
                    if (is) next.found[j] = std::min(k.found[j] + 1, caps[j]);
                    if (form.contains[j].max >= 0 && next.found[j] > form.contains[j].max)
                        dead = true;
                }
                if (dead) continue;
                ways.push_back(p_.sequence(
                    {begun ? text_.comma() : p_.empty(), value(item), p_.ref(rule_of(next))}));
            }
        }
        p_.set_body(rules.at(k), p_.choice(std::move(ways)));
    }
    return p_.sequence({p_.literal("["), text_.blanks(), p_.ref(first)});
}

bool JsonWriter::finite_values(const Conjunction& c, size_t most, std::vector<std::string>* out) {
    const Forms f = algebra_.forms(c);
    if (f.null) out->push_back("null");
    if (f.truth[0]) out->push_back("false");
    if (f.truth[1]) out->push_back("true");
    for (const NumberPart& p : f.numbers) {
        if (p.list) {
            for (const Decimal& d : p.values()) out->push_back(d.text());
        } else if (p.integer && !p.conditions.empty()) {
            const Automaton a = p.language(algebra_.limits());
            if (!a.count(most)) return false;
            for (const std::string& s : a.list(most)) out->push_back(s);
        } else {
            return false;
        }
    }
    for (const StringPart& p : f.strings) {
        if (p.list) {
            for (const std::string& s : p.values()) out->push_back(text_.quoted(s));
            continue;
        }
        if (p.plain()) return false;
        const Automaton a = p.language(algebra_.limits());
        if (!a.count(most)) return false;
        for (const std::string& s : a.list(most)) out->push_back(text_.quoted(s));
    }
    for (const ItemForm& a : f.arrays) {
        if (a.max != 0) return false;
        out->push_back("[]");
    }
    for (const MemberForm& m : f.objects) {
        if (m.max != 0) return false;
        out->push_back("{}");
    }
    std::sort(out->begin(), out->end());
    out->erase(std::unique(out->begin(), out->end()), out->end());
    return out->size() <= most;
}

/// All arrays of different values, where the items have few values; −1 where they have many.
ExprId JsonWriter::distinct_array(const ItemForm& form) {
    constexpr size_t kMostValues = 8;
    constexpr size_t kMostArrays = 2000;
    std::vector<std::vector<std::string>> choices;
    for (size_t i = 0; i <= form.prefix.size(); ++i) {
        choices.emplace_back();
        const Conjunction item = form.at(i);
        if (algebra_.is_never(item)) continue;
        if (!form.contains.empty() || !finite_values(item, kMostValues, &choices.back())) return -1;
    }
    // Depth-first over what has been used: a set of values leads to the same continuations.
    std::map<std::pair<size_t, std::set<std::string>>, RuleId> rules;
    std::vector<std::pair<size_t, std::set<std::string>>> open;
    const auto rule_of = [&](size_t at, const std::set<std::string>& used) {
        const auto [it, added] = rules.emplace(std::make_pair(at, used), -1);
        if (added) {
            it->second = p_.add_rule("items");
            open.push_back(it->first);
        }
        return it->second;
    };
    const RuleId first = rule_of(0, {});
    while (!open.empty()) {
        const auto [at, used] = open.back();
        open.pop_back();
        if (rules.size() > kMostArrays) return -1;
        std::vector<ExprId> ways;
        if (static_cast<int64_t>(at) >= form.min)
            ways.push_back(p_.sequence({at > 0 ? text_.blanks() : p_.empty(), p_.literal("]")}));
        if (form.max < 0 || static_cast<int64_t>(at) < form.max) {
            for (const std::string& v : choices[std::min(at, choices.size() - 1)]) {
                if (used.count(v)) continue;
                std::set<std::string> next = used;
                next.insert(v);
                ways.push_back(p_.sequence({at > 0 ? text_.comma() : p_.empty(),
                                            p_.literal(v),
                                            p_.ref(rule_of(at + 1, next))}));
            }
        }
        p_.set_body(rules.at({at, used}), p_.choice(std::move(ways)));
    }
    return p_.sequence({p_.literal("["), text_.blanks(), p_.ref(first)});
}

// ------------------------------------------------------------------ objects

std::vector<std::pair<Automaton, Conjunction>> JsonWriter::open_keys(const MemberForm& form) {
    using Keys = MemberForm::Rule::Keys;
    const Limits& limits = algebra_.limits();
    for (const MemberForm::Rule& r : form.rules) {
        if (r.keys == Keys::kOther && r.patterns.empty() && algebra_.is_never(r.value)) return {};
    }
    std::vector<std::pair<Automaton, Conjunction>> classes;
    std::vector<std::string> declared = form.order;
    for (const std::string& k : form.required) declared.push_back(k);
    for (const MemberForm::Rule& r : form.rules) {
        if (r.keys == Keys::kName) declared.push_back(r.names[0]);
    }
    classes.emplace_back(declared.empty() ? Automaton::everything()
                                          : Automaton::words(declared, limits).complement(limits),
                         Conjunction());
    for (const MemberForm::Rule& r : form.rules) {
        if (r.keys == Keys::kName || r.value.empty()) continue;
        Automaton covered = Automaton::nothing();
        if (r.keys == Keys::kPattern) {
            covered = *r.patterns[0];
        } else {
            if (!r.names.empty()) covered = Automaton::words(r.names, limits);
            for (const SharedAutomaton& a : r.patterns)
                covered = covered.combine(*a, SetOperation::kOr, limits);
            covered = covered.complement(limits);
        }
        std::vector<std::pair<Automaton, Conjunction>> next;
        for (auto& [keys, value] : classes) {
            WorkBudget::tick();
            Automaton in = keys.combine(covered, SetOperation::kAnd, limits);
            Automaton out = keys.combine(covered, SetOperation::kMinus, limits);
            if (!in.empty()) {
                Conjunction more = value;
                more.insert(r.value.begin(), r.value.end());
                if (!algebra_.is_never(more)) next.emplace_back(std::move(in), std::move(more));
            }
            if (!out.empty()) next.emplace_back(std::move(out), value);
        }
        classes = std::move(next);
        if (classes.size() > kMostKeyClasses)
            refuse(form.pointer,
                   "patternProperties",
                   "the key patterns overlap in more than " + std::to_string(kMostKeyClasses) +
                       " ways");
    }
    return classes;
}

ExprId JsonWriter::object(const MemberForm& form) {
    const ExprId blanks = text_.blanks();
    std::vector<std::string> keys = form.order;
    for (const std::string& k : form.required) {
        if (std::find(form.order.begin(), form.order.end(), k) == form.order.end())
            keys.push_back(k);
    }
    struct Member {
        ExprId pair;
        bool required;
    };
    std::vector<Member> members;
    int64_t num_required = 0;
    for (const std::string& k : keys) {
        const bool required = form.required.count(k) > 0;
        const Conjunction c = form.value_of(k);
        if (algebra_.is_never(c)) {
            if (required) return p_.never();
            continue;
        }
        num_required += required;
        members.push_back(
            {p_.sequence({p_.literal(text_.quoted(k)), text_.colon(), value(c)}), required});
    }
    if (members.size() > kMostMembers && num_required < static_cast<int64_t>(members.size())) {
        refuse(form.pointer,
               "properties",
               std::to_string(members.size()) + " members of which some are optional, at most " +
                   std::to_string(kMostMembers) + " are taken");
    }
    std::vector<ExprId> open_pairs;
    for (const auto& [language, c] : open_keys(form)) {
        const bool any =
            language.num_states() == 1 && language.states()[0].accept &&
            language.states()[0].edges.size() == CharSet::universe().intervals().size();
        const ExprId key = any ? text_.any_string() : text_.string_of(language);
        open_pairs.push_back(p_.sequence({key, text_.colon(), value(c)}));
    }
    const bool open = !open_pairs.empty();
    const ExprId other =
        open ? p_.ref(p_.rule("member", p_.choice(std::move(open_pairs)))) : p_.never();
    int64_t min = form.min <= num_required ? 0 : form.min;
    const int64_t max = form.max;
    if (open && min > num_required + 1 && min > static_cast<int64_t>(members.size())) {
        algebra_.give_up(
            {form.pointer,
             "minProperties",
             "minProperties above 1 with keys that are not declared: a key could come twice"});
        min = 0;
    }
    const bool counted = min > 0 || max >= 0;
    const int64_t cap = counted ? std::max(min, max >= 0 ? max + 1 : 0) : 0;
    const size_t n = members.size();
    if (counted && (n + 1) * static_cast<size_t>(std::min<int64_t>(cap, 1 << 20) + 1) >
                       algebra_.limits().rules) {
        refuse(form.pointer,
               "maxProperties",
               "counting the members needs more than " + std::to_string(algebra_.limits().rules) +
                   " rules");
    }
    // rest(i, c): members i… when c have been written. Without counting c is 0 or 1 (a comma is
    // due).
    std::map<std::pair<size_t, int64_t>, ExprId> done;
    const auto due = [&](int64_t c) { return c > 0 ? text_.comma() : p_.empty(); };
    const auto next_count = [&](int64_t c) { return counted ? std::min(c + 1, cap) : 1; };
    const auto may_end = [&](int64_t c) { return c >= min; };
    const auto full = [&](int64_t c) { return max >= 0 && c >= max; };
    const int64_t most = counted ? cap : 1;
    for (int64_t c = most; c >= 0; --c) {  // behind all declared ones
        const RuleId r = p_.add_rule("rest");
        const ExprId self = p_.ref(r);
        std::vector<ExprId> ways;
        if (may_end(c)) ways.push_back(p_.empty());
        if (open && !full(c)) {
            const ExprId then = next_count(c) == c ? self : done.at({n, next_count(c)});
            ways.push_back(p_.sequence({due(c), other, then}));
        }
        if (open && !counted && c == 1) {
            done[{n, c}] = p_.repeat(p_.sequence({text_.comma(), other}), 0, kNoMax);
            p_.set_body(r, p_.empty());
            continue;
        }
        p_.set_body(r, p_.choice(std::move(ways)));
        done[{n, c}] = open ? self : (may_end(c) ? p_.empty() : p_.never());
    }
    for (size_t k = n; k-- > 0;) {
        for (int64_t c = most; c >= 0; --c) {
            std::vector<ExprId> ways;
            if (!full(c))
                ways.push_back(
                    p_.sequence({due(c), members[k].pair, done.at({k + 1, next_count(c)})}));
            if (!members[k].required) ways.push_back(done.at({k + 1, c}));
            const ExprId e = p_.choice(std::move(ways));
            // A required member is written in place; a choice becomes a rule, or its text would
            // double.
            done[{k, c}] =
                members[k].required && k % 16 != 0 && !counted ? e : p_.ref(p_.rule("members", e));
        }
    }
    // An empty object has one run of blanks, any other two.
    const ExprId body = done.at({0, 0});
    const bool may_be_empty = num_required == 0 && min == 0;
    if (!may_be_empty) return p_.sequence({p_.literal("{"), blanks, body, blanks, p_.literal("}")});
    if (n == 0 && !open) return p_.sequence({p_.literal("{"), blanks, p_.literal("}")});
    // Non-empty: the first member is chosen here, so that the empty word is left out.
    std::vector<ExprId> firsts;
    for (size_t k = 0; k < n; ++k) {
        if (max == 0) break;
        firsts.push_back(p_.sequence({members[k].pair, done.at({k + 1, next_count(0)})}));
        if (members[k].required) break;
    }
    if (open && max != 0) firsts.push_back(p_.sequence({other, done.at({n, next_count(0)})}));
    return p_.choice(
        {p_.sequence(
             {p_.literal("{"), blanks, p_.choice(std::move(firsts)), blanks, p_.literal("}")}),
         p_.sequence({p_.literal("{"), blanks, p_.literal("}")})});
}

}  // namespace deepinfer::grammar
