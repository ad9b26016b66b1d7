#include "grammar/value_language.h"

#include <algorithm>
#include <map>

namespace deepinfer::grammar {
namespace {

CharSet digit(uint32_t lo, uint32_t hi) {
    return lo > hi ? CharSet() : CharSet::of('0' + lo, '0' + hi);
}
Regex any_digits() {
    return Regex::repeat(Regex::chars(digit(0, 9)), 0, kNoMax);
}
Regex n_digits(size_t n) {
    return Regex::repeat(Regex::chars(digit(0, 9)), static_cast<int>(n), static_cast<int>(n));
}
uint32_t value_of(char c) {
    return static_cast<uint32_t>(c - '0');
}
Regex one_of(uint32_t lo, uint32_t hi) {
    return Regex::chars(digit(lo, hi));
}
Regex point() {
    return Regex::text(".");
}
Regex maybe(Regex r) {
    return Regex::repeat(std::move(r), 0, 1);
}
Regex any_fraction() {
    return maybe(Regex::concat({point(), Regex::repeat(Regex::chars(digit(0, 9)), 1, kNoMax)}));
}
Regex never() {
    return Regex::chars(CharSet());
}

/// Whole parts greater than a.
Regex whole_above(const std::string& a) {
    std::vector<Regex> ways;
    if (a == "0") return Regex::concat({one_of(1, 9), any_digits()});
    ways.push_back(Regex::concat(
        {one_of(1, 9),
         Regex::repeat(Regex::chars(digit(0, 9)), static_cast<int>(a.size()), kNoMax)}));
    for (size_t i = 0; i < a.size(); ++i) {
        if (a[i] == '9') continue;
        ways.push_back(Regex::concat({Regex::text(a.substr(0, i)),
                                      one_of(value_of(a[i]) + 1, 9),
                                      n_digits(a.size() - i - 1)}));
    }
    return Regex::alternate(std::move(ways));
}

/// Whole parts less than a.
Regex whole_below(const std::string& a) {
    if (a == "0") return never();
    std::vector<Regex> ways = {Regex::text("0")};
    if (a.size() > 1) {
        ways.push_back(Regex::concat(
            {one_of(1, 9),
             Regex::repeat(Regex::chars(digit(0, 9)), 0, static_cast<int>(a.size()) - 2)}));
    }
    for (size_t i = 0; i < a.size(); ++i) {
        const uint32_t least = i == 0 ? 1 : 0;
        if (value_of(a[i]) <= least) continue;
        ways.push_back(Regex::concat({Regex::text(a.substr(0, i)),
                                      one_of(least, value_of(a[i]) - 1),
                                      n_digits(a.size() - i - 1)}));
    }
    return Regex::alternate(std::move(ways));
}

/// Digits behind the point (the point included; possibly nothing) of values >= or > 0.b.
Regex fraction_above(const std::string& b, bool strict) {
    if (b.empty() && !strict) return any_fraction();
    if (b.empty()) return Regex::concat({point(), any_digits(), one_of(1, 9), any_digits()});
    std::vector<Regex> ways;
    for (size_t i = 0; i < b.size(); ++i) {
        if (b[i] != '9')
            ways.push_back(Regex::concat(
                {Regex::text(b.substr(0, i)), one_of(value_of(b[i]) + 1, 9), any_digits()}));
    }
    Regex rest = strict ? Regex::concat({any_digits(), one_of(1, 9), any_digits()}) : any_digits();
    ways.push_back(Regex::concat({Regex::text(b), std::move(rest)}));
    return Regex::concat({point(), Regex::alternate(std::move(ways))});
}

/// The same for values <= or < 0.b.
Regex fraction_below(const std::string& b, bool strict) {
    const Regex zeros = Regex::repeat(Regex::text("0"), 0, kNoMax);
    if (b.empty()) {
        if (strict) return never();
        return maybe(Regex::concat({point(), Regex::repeat(Regex::text("0"), 1, kNoMax)}));
    }
    std::vector<Regex> ways;
    for (size_t i = 0; i < b.size(); ++i) {
        if (i > 0)
            ways.push_back(Regex::text(b.substr(0, i)));  // ends early: the rest of b is not zero
        if (b[i] != '0')
            ways.push_back(Regex::concat(
                {Regex::text(b.substr(0, i)), one_of(0, value_of(b[i]) - 1), any_digits()}));
    }
    if (!strict) ways.push_back(Regex::concat({Regex::text(b), zeros}));
    return maybe(Regex::concat({point(), Regex::alternate(std::move(ways))}));
}

Regex magnitude_above(const Decimal& d, bool strict) {
    return Regex::alternate(
        {Regex::concat({whole_above(d.whole()), any_fraction()}),
         Regex::concat({Regex::text(d.whole()), fraction_above(d.fraction(), strict)})});
}

Regex magnitude_below(const Decimal& d, bool strict) {
    return Regex::alternate(
        {Regex::concat({whole_below(d.whole()), any_fraction()}),
         Regex::concat({Regex::text(d.whole()), fraction_below(d.fraction(), strict)})});
}

Regex spelling() {
    const Regex whole =
        Regex::alternate({Regex::text("0"), Regex::concat({one_of(1, 9), any_digits()})});
    return Regex::concat({maybe(Regex::text("-")), whole, any_fraction()});
}

Regex negative_zero() {
    return Regex::concat(
        {Regex::text("-0"),
         maybe(Regex::concat({point(), Regex::repeat(Regex::text("0"), 1, kNoMax)}))});
}

SharedAutomaton within_spelling(const Regex& r, const Limits& limits) {
    return std::make_shared<Automaton>(
        Automaton::full(r, limits).combine(*number_spelling(), SetOperation::kAnd, limits));
}

Regex minus(Regex r) {
    return Regex::concat({Regex::text("-"), std::move(r)});
}
Regex any_magnitude() {
    return Regex::concat(
        {Regex::alternate({Regex::text("0"), Regex::concat({one_of(1, 9), any_digits()})}),
         any_fraction()});
}

template <typename T>
std::vector<T> common(const std::vector<T>& a, const std::vector<T>& b) {
    std::vector<T> out;
    for (const T& x : a) {
        if (std::find(b.begin(), b.end(), x) != b.end()) out.push_back(x);
    }
    return out;
}

void append(std::vector<SharedAutomaton>* to, const std::vector<SharedAutomaton>& from) {
    for (const SharedAutomaton& a : from) {
        if (std::find(to->begin(), to->end(), a) == to->end()) to->push_back(a);
    }
}

}  // namespace

SharedAutomaton number_spelling() {
    static const SharedAutomaton all = [] {
        const Limits limits;
        return std::make_shared<Automaton>(
            Automaton::full(spelling(), limits)
                .combine(Automaton::full(negative_zero(), limits), SetOperation::kMinus, limits));
    }();
    return all;
}

SharedAutomaton number_at_least(const Decimal& bound, bool strict, const Limits& limits) {
    if (bound.negative)
        return within_spelling(
            Regex::alternate({any_magnitude(), minus(magnitude_below(bound, strict))}), limits);
    return within_spelling(magnitude_above(bound, strict), limits);
}

SharedAutomaton number_at_most(const Decimal& bound, bool strict, const Limits& limits) {
    if (bound.negative) return within_spelling(minus(magnitude_above(bound, strict)), limits);
    return within_spelling(
        Regex::alternate({minus(any_magnitude()), magnitude_below(bound, strict)}), limits);
}

SharedAutomaton number_equals(const Decimal& value, const Limits& limits) {
    const SharedAutomaton low = number_at_least(value, false, limits);
    return std::make_shared<Automaton>(
        low->combine(*number_at_most(value, false, limits), SetOperation::kAnd, limits));
}

SharedAutomaton number_is_integer(const Limits& limits) {
    return number_multiple_of(Decimal::of(1), limits);
}

SharedAutomaton number_not(const SharedAutomaton& condition, const Limits& limits) {
    return std::make_shared<Automaton>(
        number_spelling()->combine(*condition, SetOperation::kMinus, limits));
}

SharedAutomaton number_multiple_of(const Decimal& step, const Limits& limits) {
    // step = m · 10^-k. A text's value in units of 10^-k must be a multiple of m and have no digit
    // below.
    const int k = std::max(0, -step.exponent);
    const std::string digits =
        step.digits + std::string(static_cast<size_t>(std::max(0, step.exponent)), '0');
    constexpr size_t kMostStates = 20000;
    const bool small = digits.size() <= 6;
    const size_t m = small ? static_cast<size_t>(std::stoul(digits)) : 0;
    if (!small || m * static_cast<size_t>(k + 1) > kMostStates) {
        refuse("",
               "multipleOf",
               "multipleOf " + step.text() + " needs more than " + std::to_string(kMostStates) +
                   " states");
    }
    std::vector<size_t> scale(static_cast<size_t>(k) + 1, 1 % m);
    for (size_t j = 1; j <= static_cast<size_t>(k); ++j) scale[j] = scale[j - 1] * 10 % m;
    // State 0: start; 1: behind the sign; then whole(r), fraction(j, r) for j = 0…k digits, zeros.
    const size_t whole = 2, fraction = whole + m,
                 zeros = fraction + m * (static_cast<size_t>(k) + 1);
    std::vector<Automaton::State> states(zeros + 1);
    const auto edge = [&](size_t from, char c, size_t to) {
        states[from].edges.push_back(
            {static_cast<uint32_t>(c), static_cast<uint32_t>(c), static_cast<int32_t>(to)});
    };
    edge(0, '-', 1);
    const auto at = [&](size_t j, size_t r) { return fraction + j * m + r; };
    for (size_t d = 0; d < 10; ++d) {
        const char c = static_cast<char>('0' + d);
        edge(0, c, whole + d % m);
        edge(1, c, whole + d % m);
    }
    for (size_t r = 0; r < m; ++r) {
        edge(whole + r, '.', at(0, r));
        states[whole + r].accept = r * scale[static_cast<size_t>(k)] % m == 0;
        for (size_t d = 0; d < 10; ++d)
            edge(whole + r, static_cast<char>('0' + d), whole + (r * 10 + d) % m);
        for (size_t j = 0; j <= static_cast<size_t>(k); ++j) {
            states[at(j, r)].accept = j > 0 && r * scale[static_cast<size_t>(k) - j] % m == 0;
            if (j == static_cast<size_t>(k)) {
                if (r == 0) edge(at(j, r), '0', zeros);
                continue;
            }
            for (size_t d = 0; d < 10; ++d)
                edge(at(j, r), static_cast<char>('0' + d), at(j + 1, (r * 10 + d) % m));
        }
    }
    states[zeros].accept = true;
    edge(zeros, '0', zeros);
    Limits wide = limits;
    wide.automaton_states = std::max(limits.automaton_states, kMostStates);
    wide.automaton_edges = kMostStates * 12;
    const Automaton all = Automaton::of(std::move(states), wide);
    return std::make_shared<Automaton>(all.combine(*number_spelling(), SetOperation::kAnd, wide));
}

NumberPart NumberPart::with(const NumberPart& o) const {
    NumberPart out = *this;
    out.integer = integer || o.integer;
    if (o.list) out.list = list ? common(*list, *o.list) : *o.list;
    append(&out.conditions, o.conditions);
    return out;
}

std::vector<Decimal> NumberPart::values() const {
    std::vector<Decimal> out;
    for (const Decimal& d : *list) {
        const bool good =
            (!integer || d.integer()) &&
            std::all_of(conditions.begin(), conditions.end(), [&](const SharedAutomaton& a) {
                return a->accepts(d.text());
            });
        if (good) out.push_back(d);
    }
    return out;
}

Automaton NumberPart::language(const Limits& limits) const {
    Automaton all = *number_spelling();
    if (integer) {
        const Regex whole = Regex::concat(
            {maybe(Regex::text("-")), Regex::repeat(Regex::chars(digit(0, 9)), 1, kNoMax)});
        all = all.combine(Automaton::full(whole, limits), SetOperation::kAnd, limits);
    }
    for (const SharedAutomaton& a : conditions) all = all.combine(*a, SetOperation::kAnd, limits);
    return all;
}

StringPart StringPart::with(const StringPart& o) const {
    StringPart out = *this;
    if (o.list) out.list = list ? common(*list, *o.list) : *o.list;
    out.min = std::max(min, o.min);
    if (o.max != kNoEnd) out.max = max == kNoEnd ? o.max : std::min(max, o.max);
    append(&out.conditions, o.conditions);
    return out;
}

bool StringPart::accepts(const std::string& value) const {
    const auto n = static_cast<int64_t>(code_points(value).size());
    if (n < min || (max != kNoEnd && n > max)) return false;
    if (list && std::find(list->begin(), list->end(), value) == list->end()) return false;
    return std::all_of(conditions.begin(), conditions.end(), [&](const SharedAutomaton& a) {
        return a->accepts(value);
    });
}

std::vector<std::string> StringPart::values() const {
    std::vector<std::string> out;
    StringPart rest = *this;
    rest.list.reset();
    for (const std::string& s : *list) {
        if (rest.plain() || rest.accepts(s)) out.push_back(s);
    }
    return out;
}

Automaton StringPart::language(const Limits& limits) const {
    if (max != kNoEnd && min > max) return Automaton::nothing();
    Automaton all = Automaton::everything();
    for (const SharedAutomaton& a : conditions) all = all.combine(*a, SetOperation::kAnd, limits);
    if (min > 0 || max != kNoEnd)
        all = all.combine(Automaton::length(min, max, limits), SetOperation::kAnd, limits);
    return all;
}

std::optional<std::string> format_pattern(const std::string& format) {
    static const std::string kLeap =
        "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
    static const std::string kDate =
        "(?:(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]"
        "\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|"
        "30)|02-(?:0[1-9]|1\\d|2[0-8]))|" +
        kLeap + "-02-29)";
    static const std::string kTime =
        "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]"
        "\\d)";
    static const std::string kOctet = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    static const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    static const std::string kName =
        "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";  // of any length: e-mail domains
    static const std::string kGroup = "[0-9A-Fa-f]{1,4}";
    static const std::string kIpv4 = kOctet + "(?:\\." + kOctet + "){3}";
    static const std::string kIpv6 = [] {
        std::string out = "(?:" + kGroup + ":){7}" + kGroup;
        for (int before = 0; before <= 7; ++before) {  // one "::" of at least one group
            const int after = 7 - before;
            std::string left =
                before == 0 ? ""
                            : kGroup + "(?::" + kGroup + "){0," + std::to_string(before - 1) + "}";
            // left groups at most `before`, exactly: written per count so that the sum stays below
            // 8
            left = before == 0 ? ""
                               : kGroup + "(?::" + kGroup + "){" + std::to_string(before - 1) + "}";
            const std::string right = after == 0 ? ""
                                                 : "(?:" + kGroup + "(?::" + kGroup + "){0," +
                                                       std::to_string(after - 1) + "})?";
            out += "|" + left + "::" + right;
        }
        return out;
    }();
    static const std::string kChar = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})";
    static const std::string kPath = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
    static const std::string kHost =
        "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*|\\[(?:" + kIpv6 + ")\\]";
    static const std::map<std::string, std::string> table = {
        {"date", kDate},
        {"time", kTime},
        {"date-time", kDate + "[Tt]" + kTime},
        {"email",
         "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" + kName +
             "(?:\\." + kName + ")*"},
        {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
        {"ipv4", kIpv4},
        {"ipv6", kIpv6},
        {"hostname", kLabel + "(?:\\." + kLabel + ")*"},
        {"uri",
         "[A-Za-z][A-Za-z0-9+.-]*:(?://(?:" + kChar + "*@)?(?:" + kHost + ")(?::\\d*)?(?:/" +
             kPath + "*)*|/?" + kPath + "+(?:/" + kPath + "*)*)(?:\\?(?:" + kPath +
             "|[/?])*)?(?:#(?:" + kPath + "|[/?])*)?"},
        {"duration",
         "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M(?:\\d+"
         "S)?)?|\\d+M(?:\\d+S)?|\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))"},
    };
    const auto it = table.find(format);
    if (it == table.end()) return std::nullopt;
    return "^(?:" + it->second + ")$";
}

}  // namespace deepinfer::grammar
