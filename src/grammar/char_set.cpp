#include "grammar/char_set.h"

#include <algorithm>

#include "grammar/refusal.h"

namespace deepinfer::grammar {

std::string refusal_sentence(const Refusal& r) {
    std::string out = r.pointer.empty() ? "" : r.pointer + ": ";
    return out + r.reason;
}

void refuse(std::string pointer, std::string keyword, std::string reason) {
    throw Refusal{std::move(pointer), std::move(keyword), std::move(reason)};
}

CharSet CharSet::of(uint32_t lo, uint32_t hi) {
    CharSet s;
    s.intervals_.emplace_back(lo, hi);
    return s;
}

const CharSet& CharSet::universe() {
    static const CharSet all = [] {
        CharSet s;
        s.intervals_ = {{0, 0xD7FF}, {0xE000, kMarkerBase - 1}};
        return s;
    }();
    return all;
}

void CharSet::add(uint32_t lo, uint32_t hi) {
    if (lo > hi) return;
    if (intervals_.empty() || lo > intervals_.back().second + 1) {  // the common case: in order
        intervals_.emplace_back(lo, hi);
        return;
    }
    intervals_.emplace_back(lo, hi);
    std::sort(intervals_.begin(), intervals_.end());
    std::vector<Interval> merged;
    for (const Interval& i : intervals_) {
        if (!merged.empty() && i.first <= merged.back().second + 1) {
            merged.back().second = std::max(merged.back().second, i.second);
        } else {
            merged.push_back(i);
        }
    }
    intervals_ = std::move(merged);
}

void CharSet::add(const CharSet& other) {
    for (const Interval& i : other.intervals_) add(i.first, i.second);
}

CharSet CharSet::unite(const CharSet& other) const {
    CharSet out = *this;
    out.add(other);
    return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
    CharSet out;
    size_t i = 0, j = 0;
    while (i < intervals_.size() && j < other.intervals_.size()) {
        const uint32_t lo = std::max(intervals_[i].first, other.intervals_[j].first);
        const uint32_t hi = std::min(intervals_[i].second, other.intervals_[j].second);
        if (lo <= hi) out.intervals_.emplace_back(lo, hi);
        if (intervals_[i].second < other.intervals_[j].second) {
            ++i;
        } else {
            ++j;
        }
    }
    return out;
}

CharSet CharSet::complement() const {
    CharSet gaps;
    uint32_t next = 0;
    for (const Interval& i : intervals_) {
        if (i.first > next) gaps.intervals_.emplace_back(next, i.first - 1);
        next = i.second + 1;
    }
    if (next <= kMaxCodePoint) gaps.intervals_.emplace_back(next, kMaxCodePoint);
    return gaps.intersect(universe());
}

bool CharSet::contains(uint32_t c) const {
    const auto it = std::upper_bound(
        intervals_.begin(), intervals_.end(), c, [](uint32_t v, const Interval& i) {
            return v < i.first;
        });
    return it != intervals_.begin() && c <= std::prev(it)->second;
}

uint64_t CharSet::size() const {
    uint64_t n = 0;
    for (const Interval& i : intervals_) n += i.second - i.first + 1;
    return n;
}

std::string utf8_of(uint32_t c) {
    std::string out;
    const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | (c >> 6));
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | (c >> 12));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | (c >> 18));
        put(0x80 | ((c >> 12) & 0x3F));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    }
    return out;
}

std::vector<uint32_t> code_points(const std::string& text) {
    std::vector<uint32_t> out;
    for (size_t i = 0; i < text.size();) {
        const auto lead = static_cast<uint8_t>(text[i]);
        const size_t len = lead < 0x80   ? 1
                           : lead < 0xC2 ? 0
                           : lead < 0xE0 ? 2
                           : lead < 0xF0 ? 3
                           : lead < 0xF5 ? 4
                                         : 0;
        uint32_t c = len <= 1 ? lead : lead & (0xFFu >> (len + 1));
        bool good = len > 0 && i + len <= text.size();
        for (size_t k = 1; good && k < len; ++k) {
            const auto b = static_cast<uint8_t>(text[i + k]);
            good = (b & 0xC0) == 0x80;
            c = (c << 6) | (b & 0x3Fu);
        }
        constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
        good = good && c >= kSmallest[len] && c <= kMaxCodePoint && (c < 0xD800 || c > 0xDFFF);
        out.push_back(good ? c : 0xFFFD);
        i += good ? len : 1;
    }
    return out;
}

}  // namespace deepinfer::grammar
