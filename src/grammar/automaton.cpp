#include "grammar/automaton.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/work_budget.h"

namespace deepinfer::grammar {
namespace {

[[noreturn]] void too_large(size_t states) {
    refuse("",
           "",
           "the language of this string or number needs an automaton of more than " +
               std::to_string(states) + " states");
}

/// Thompson's construction with anchors as conditional steps.
class Nfa {
  public:
    enum class Step : uint8_t { kFree, kBegin, kEnd };
    struct Move {
        const CharSet* set;
        int to;
    };

    Nfa(const Regex& r, bool search, size_t most) : most_(most) {
        start_ = add();
        final_ = add();
        build(r, start_, final_);
        if (search) {
            any_ = CharSet::universe();
            // Any text in front: the loop state is entered freely and, as a start, counts as
            // "begin".
            const int loop = add();
            moves_[static_cast<size_t>(loop)].push_back({&any_, loop});
            step(loop, start_, Step::kFree);
            start_ = loop;
            moves_[static_cast<size_t>(final_)].push_back({&any_, final_});
        }
    }

    void close(std::set<int>* states, bool at_begin, bool at_end) const {
        std::vector<int> open(states->begin(), states->end());
        while (!open.empty()) {
            const int s = open.back();
            open.pop_back();
            for (const auto& [to, step] : steps_[static_cast<size_t>(s)]) {
                if (step == Step::kBegin && !at_begin) continue;
                if (step == Step::kEnd && !at_end) continue;
                if (states->insert(to).second) open.push_back(to);
            }
        }
    }
    int start() const { return start_; }
    int final() const { return final_; }
    const std::vector<Move>& moves(int s) const { return moves_[static_cast<size_t>(s)]; }

  private:
    int add() {
        if (moves_.size() > most_) too_large(most_);
        moves_.emplace_back();
        steps_.emplace_back();
        return static_cast<int>(moves_.size() - 1);
    }
    void step(int from, int to, Step kind) {
        steps_[static_cast<size_t>(from)].push_back({to, kind});
    }

    void build(const Regex& r, int from, int to) {
        switch (r.kind) {
            case Regex::Kind::kEmpty:
                return step(from, to, Step::kFree);
            case Regex::Kind::kBegin:
                return step(from, to, Step::kBegin);
            case Regex::Kind::kEnd:
                return step(from, to, Step::kEnd);
            case Regex::Kind::kChars:
                moves_[static_cast<size_t>(from)].push_back({&r.set, to});
                return;
            case Regex::Kind::kAlternate:
                for (const Regex& p : r.parts) build(p, from, to);
                return;
            case Regex::Kind::kConcat:
                for (size_t i = 0; i < r.parts.size(); ++i) {
                    const int next = i + 1 == r.parts.size() ? to : add();
                    build(r.parts[i], from, next);
                    from = next;
                }
                return;
            case Regex::Kind::kRepeat:
                return build_repeat(r, from, to);
        }
    }

    void build_repeat(const Regex& r, int from, int to) {
        for (int i = 0; i < r.min; ++i) {
            const int next = add();
            build(r.parts[0], from, next);
            from = next;
        }
        if (r.max == kNoMax) {
            const int loop = add();
            step(from, loop, Step::kFree);
            const int back = add();
            build(r.parts[0], loop, back);
            step(back, loop, Step::kFree);
            step(loop, to, Step::kFree);
            return;
        }
        for (int i = r.min; i < r.max; ++i) {
            step(from, to, Step::kFree);
            const int next = add();
            build(r.parts[0], from, next);
            from = next;
        }
        step(from, to, Step::kFree);
    }

    std::vector<std::vector<Move>> moves_;
    std::vector<std::vector<std::pair<int, Step>>> steps_;
    CharSet any_;
    int start_ = 0, final_ = 0;
    size_t most_;
};

std::vector<Automaton::State> subsets(const Nfa& nfa, const Limits& limits) {
    std::map<std::set<int>, int32_t> index;
    std::vector<std::set<int>> sets;
    std::vector<Automaton::State> states;
    size_t num_edges = 0;
    const auto number = [&](const std::set<int>& s, bool at_begin) {
        const auto it = index.find(s);
        if (!at_begin && it != index.end()) return it->second;
        if (sets.size() >= limits.automaton_states) too_large(limits.automaton_states);
        const auto n = static_cast<int32_t>(sets.size());
        if (!at_begin) index.emplace(s, n);
        sets.push_back(s);
        states.emplace_back();
        std::set<int> ended = s;
        nfa.close(&ended, at_begin, true);
        states.back().accept = ended.count(nfa.final()) > 0;
        return n;
    };
    std::set<int> start = {nfa.start()};
    nfa.close(&start, true, false);
    number(start, true);  // the start is a state of its own: only there "begin" holds
    for (size_t i = 0; i < sets.size(); ++i) {
        std::vector<std::pair<uint32_t, int>> borders;
        const std::set<int> from = sets[i];
        for (const int s : from) {
            for (const Nfa::Move& m : nfa.moves(s)) {
                for (const auto& [lo, hi] : m.set->intervals()) {
                    borders.emplace_back(lo, m.to);
                    borders.emplace_back(hi + 1, -1 - m.to);
                }
            }
        }
        std::sort(borders.begin(), borders.end());
        std::map<int, int> active;
        for (size_t k = 0; k < borders.size();) {
            const uint32_t at = borders[k].first;
            WorkBudget::tick();
            for (; k < borders.size() && borders[k].first == at; ++k) {
                const int to = borders[k].second;
                if (to >= 0) {
                    ++active[to];
                } else if (--active[-1 - to] == 0) {
                    active.erase(-1 - to);
                }
            }
            if (active.empty()) continue;
            std::set<int> next;
            for (const auto& [to, count] : active) next.insert(to);
            nfa.close(&next, false, false);
            const int32_t target = number(next, false);
            if (++num_edges > limits.automaton_edges) too_large(limits.automaton_states);
            states[i].edges.push_back({at, borders[k].first - 1, target});
        }
    }
    return states;
}

}  // namespace

Automaton Automaton::of(std::vector<State> states, const Limits& limits) {
    if (states.size() > limits.automaton_states * 8) too_large(limits.automaton_states);
    Automaton a;
    a.states_ = std::move(states);
    a.minimise();
    if (a.states_.size() > limits.automaton_states) too_large(limits.automaton_states);
    return a;
}

Automaton Automaton::full(const Regex& r, const Limits& limits) {
    return of(subsets(Nfa(r, false, limits.automaton_states * 4), limits), limits);
}

Automaton Automaton::search(const Regex& r, const Limits& limits) {
    return of(subsets(Nfa(r, true, limits.automaton_states * 4), limits), limits);
}

Automaton Automaton::words(const std::vector<std::string>& words, const Limits& limits) {
    std::vector<State> states(1);
    for (const std::string& w : words) {
        size_t s = 0;
        for (const uint32_t c : code_points(w)) {
            WorkBudget::tick();
            auto& edges = states[s].edges;
            const auto it =
                std::find_if(edges.begin(), edges.end(), [c](const Edge& e) { return e.lo == c; });
            if (it != edges.end()) {
                s = static_cast<size_t>(it->to);
                continue;
            }
            edges.push_back({c, c, static_cast<int32_t>(states.size())});
            s = states.size();
            states.emplace_back();
            if (states.size() > limits.automaton_states * 8) too_large(limits.automaton_states);
        }
        states[s].accept = true;
    }
    for (State& s : states) {
        std::sort(s.edges.begin(), s.edges.end(), [](const Edge& a, const Edge& b) {
            return a.lo < b.lo;
        });
    }
    return of(std::move(states), limits);
}

Automaton Automaton::length(int64_t min, int64_t max, const Limits& limits) {
    const int64_t last = max < 0 ? min : max;
    if (last >= static_cast<int64_t>(limits.automaton_states)) too_large(limits.automaton_states);
    std::vector<State> states(static_cast<size_t>(last) + 1);
    for (size_t i = 0; i < states.size(); ++i) {
        states[i].accept = static_cast<int64_t>(i) >= min;
        const bool stay = i + 1 == states.size();
        if (stay && max >= 0) continue;
        for (const auto& [lo, hi] : CharSet::universe().intervals()) {
            states[i].edges.push_back({lo, hi, static_cast<int32_t>(stay ? i : i + 1)});
        }
    }
    return of(std::move(states), limits);
}

Automaton Automaton::everything() {
    return length(0, -1, Limits());
}

Automaton Automaton::nothing() {
    return Automaton();
}

Automaton Automaton::combine(const Automaton& o, SetOperation op, const Limits& limits) const {
    // −1 is the dead state of either side.
    std::map<std::pair<int32_t, int32_t>, int32_t> index;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    std::vector<State> states;
    size_t num_edges = 0;
    const auto number = [&](int32_t a, int32_t b) -> int32_t {
        const bool dead = op == SetOperation::kOr    ? a < 0 && b < 0
                          : op == SetOperation::kAnd ? a < 0 || b < 0
                                                     : a < 0;
        if (dead) return -1;
        const auto [it, added] =
            index.emplace(std::make_pair(a, b), static_cast<int32_t>(pairs.size()));
        if (added) {
            if (pairs.size() >= limits.automaton_states * 8) too_large(limits.automaton_states);
            pairs.emplace_back(a, b);
            const bool in_a = a >= 0 && states_[static_cast<size_t>(a)].accept;
            const bool in_b = b >= 0 && o.states_[static_cast<size_t>(b)].accept;
            states.emplace_back();
            states.back().accept = op == SetOperation::kOr    ? in_a || in_b
                                   : op == SetOperation::kAnd ? in_a && in_b
                                                              : in_a && !in_b;
        }
        return it->second;
    };
    static const std::vector<Edge> kNone;
    if (number(empty() ? -1 : 0, o.empty() ? -1 : 0) < 0) return nothing();
    for (size_t i = 0; i < pairs.size(); ++i) {
        const auto [a, b] = pairs[i];
        const std::vector<Edge>& ea = a < 0 ? kNone : states_[static_cast<size_t>(a)].edges;
        const std::vector<Edge>& eb = b < 0 ? kNone : o.states_[static_cast<size_t>(b)].edges;
        size_t x = 0, y = 0;
        uint32_t at = 0;
        while (x < ea.size() || y < eb.size()) {
            WorkBudget::tick();
            while (x < ea.size() && ea[x].hi < at) ++x;
            while (y < eb.size() && eb[y].hi < at) ++y;
            if (x >= ea.size() && y >= eb.size()) break;
            uint32_t lo = kMaxCodePoint + 1, end = kMaxCodePoint;
            if (x < ea.size()) lo = std::min(lo, std::max(at, ea[x].lo));
            if (y < eb.size()) lo = std::min(lo, std::max(at, eb[y].lo));
            int32_t ta = -1, tb = -1;
            if (x < ea.size()) {
                if (ea[x].lo <= lo) {
                    ta = ea[x].to;
                    end = std::min(end, ea[x].hi);
                } else {
                    end = std::min(end, ea[x].lo - 1);
                }
            }
            if (y < eb.size()) {
                if (eb[y].lo <= lo) {
                    tb = eb[y].to;
                    end = std::min(end, eb[y].hi);
                } else {
                    end = std::min(end, eb[y].lo - 1);
                }
            }
            const int32_t to = number(ta, tb);
            if (to >= 0) {
                if (++num_edges > limits.automaton_edges * 4) too_large(limits.automaton_states);
                states[i].edges.push_back({lo, end, to});
            }
            at = end + 1;
        }
    }
    return of(std::move(states), limits);
}

Automaton Automaton::complement(const Limits& limits) const {
    return everything().combine(*this, SetOperation::kMinus, limits);
}

bool Automaton::accepts(const std::string& word) const {
    if (empty()) return false;
    size_t s = 0;
    for (const uint32_t c : code_points(word)) {
        const auto& edges = states_[s].edges;
        const auto it = std::upper_bound(
            edges.begin(), edges.end(), c, [](uint32_t v, const Edge& e) { return v < e.lo; });
        if (it == edges.begin() || c > std::prev(it)->hi) return false;
        s = static_cast<size_t>(std::prev(it)->to);
    }
    return states_[s].accept;
}

std::map<int32_t, CharSet> Automaton::by_target(size_t state) const {
    std::map<int32_t, CharSet> out;
    for (const Edge& e : states_[state].edges) out[e.to].add(e.lo, e.hi);
    return out;
}

std::vector<int> Automaton::entries() const {
    std::vector<int> n(states_.size(), 0);
    n[0] = 1;
    for (size_t i = 0; i < states_.size(); ++i) {
        for (const auto& [to, set] : by_target(i)) {
            if (static_cast<size_t>(to) != i) ++n[static_cast<size_t>(to)];
        }
    }
    return n;
}

void Automaton::minimise() {
    const size_t n = states_.size();
    // Only states that are reached and from which a word ends.
    std::vector<bool> reached(n, false), useful(n, false);
    std::vector<size_t> open;
    if (n > 0) {
        reached[0] = true;
        open.push_back(0);
    }
    std::vector<std::vector<size_t>> back(n);
    while (!open.empty()) {
        const size_t s = open.back();
        open.pop_back();
        for (const Edge& e : states_[s].edges) {
            const auto t = static_cast<size_t>(e.to);
            back[t].push_back(s);
            if (!reached[t]) {
                reached[t] = true;
                open.push_back(t);
            }
        }
    }
    for (size_t i = 0; i < n; ++i) {
        if (reached[i] && states_[i].accept) {
            useful[i] = true;
            open.push_back(i);
        }
    }
    while (!open.empty()) {
        const size_t s = open.back();
        open.pop_back();
        for (const size_t t : back[s]) {
            if (reached[t] && !useful[t]) {
                useful[t] = true;
                open.push_back(t);
            }
        }
    }
    if (n == 0 || !useful[0]) {
        states_.clear();
        return;
    }
    // Moore: refine the partition by (own class, edges to classes) until it stands.
    std::vector<int32_t> cls(n, -1);
    size_t num_classes = 0;
    for (size_t i = 0; i < n; ++i) {
        if (useful[i]) cls[i] = states_[i].accept ? 1 : 0;
    }
    using Signature = std::pair<int32_t, std::vector<std::pair<uint32_t, int32_t>>>;
    while (true) {
        std::map<Signature, int32_t> index;
        std::vector<int32_t> next(n, -1);
        for (size_t i = 0; i < n; ++i) {
            if (!useful[i]) continue;
            Signature sig{cls[i], {}};
            WorkBudget::tick();
            uint32_t at = 0;
            for (const Edge& e : states_[i].edges) {
                if (!useful[static_cast<size_t>(e.to)]) continue;
                const int32_t to = cls[static_cast<size_t>(e.to)];
                if (e.lo > at && !(sig.second.empty() && e.lo == 0))
                    sig.second.emplace_back(at, -1);
                if (sig.second.empty() || sig.second.back().second != to)
                    sig.second.emplace_back(e.lo, to);
                at = e.hi + 1;
            }
            sig.second.emplace_back(at, -1);
            next[i] =
                index.emplace(std::move(sig), static_cast<int32_t>(index.size())).first->second;
        }
        cls = std::move(next);
        if (index.size() == num_classes) break;
        num_classes = index.size();
    }
    // New numbers in order of first visit, so that equal languages give equal text.
    std::vector<int32_t> number(num_classes, -1);
    std::vector<size_t> sample;
    const auto visit = [&](size_t s) {
        int32_t& k = number[static_cast<size_t>(cls[s])];
        if (k < 0) {
            k = static_cast<int32_t>(sample.size());
            sample.push_back(s);
        }
        return k;
    };
    visit(0);
    std::vector<State> out;
    for (size_t k = 0; k < sample.size(); ++k) {
        State s;
        s.accept = states_[sample[k]].accept;
        for (const Edge& e : states_[sample[k]].edges) {
            if (!useful[static_cast<size_t>(e.to)]) continue;
            const int32_t to = visit(static_cast<size_t>(e.to));
            if (!s.edges.empty() && s.edges.back().to == to && s.edges.back().hi + 1 == e.lo) {
                s.edges.back().hi = e.hi;
            } else {
                s.edges.push_back({e.lo, e.hi, to});
            }
        }
        out.push_back(std::move(s));
    }
    states_ = std::move(out);
}

std::optional<size_t> Automaton::count(size_t most) const {
    if (empty()) return 0;
    // Every state is useful, so a cycle means infinitely many words.
    std::vector<int> mark(states_.size(), 0);
    std::vector<size_t> order;
    std::vector<std::pair<size_t, size_t>> stack = {{0, 0}};
    mark[0] = 1;
    while (!stack.empty()) {
        auto& [s, k] = stack.back();
        if (k == states_[s].edges.size()) {
            mark[s] = 2;
            order.push_back(s);
            stack.pop_back();
            continue;
        }
        const auto t = static_cast<size_t>(states_[s].edges[k++].to);
        if (mark[t] == 1) return std::nullopt;
        if (mark[t] == 0) {
            mark[t] = 1;
            stack.emplace_back(t, 0);
        }
    }
    std::vector<uint64_t> words(states_.size(), 0);
    for (const size_t s : order) {
        uint64_t n = states_[s].accept ? 1 : 0;
        for (const Edge& e : states_[s].edges) {
            const uint64_t below = words[static_cast<size_t>(e.to)];
            n = std::min<uint64_t>(
                uint64_t{most} + 1,
                n + std::min<uint64_t>(below * (e.hi - e.lo + 1), uint64_t{most} + 1));
        }
        words[s] = n;
    }
    if (words[0] > most) return std::nullopt;
    return static_cast<size_t>(words[0]);
}

std::vector<std::string> Automaton::list(size_t most) const {
    DI_CHECK(count(most).has_value());
    std::vector<std::string> out;
    std::vector<std::pair<int32_t, std::string>> layer;
    if (!empty()) layer.emplace_back(0, "");
    while (!layer.empty()) {
        std::vector<std::pair<int32_t, std::string>> next;
        for (const auto& [s, word] : layer) {
            const State& state = states_[static_cast<size_t>(s)];
            if (state.accept) out.push_back(word);
            for (const Edge& e : state.edges) {
                for (uint32_t c = e.lo; c <= e.hi; ++c) next.emplace_back(e.to, word + utf8_of(c));
            }
        }
        layer = std::move(next);
    }
    return out;
}

}  // namespace deepinfer::grammar
