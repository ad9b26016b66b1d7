// CharSet: a set of Unicode code points as sorted intervals.
//
// The universe is every scalar value (no surrogates) without the last 256 of plane 16: those stand
// for the marker tokens of the vocabulary (markers.h), so that no text of a constraint can mean a
// marker.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer::grammar {

constexpr uint32_t kMaxCodePoint = 0x10FFFF;
constexpr uint32_t kMarkerBase = 0x10FF00;  ///< code points from here on are markers, never text

class CharSet {
  public:
    using Interval = std::pair<uint32_t, uint32_t>;  ///< both ends included

    CharSet() = default;
    static CharSet of(uint32_t lo, uint32_t hi);
    static CharSet one(uint32_t c) { return of(c, c); }
    static const CharSet& universe();

    void add(uint32_t lo, uint32_t hi);
    void add(const CharSet& other);
    CharSet unite(const CharSet& other) const;
    CharSet intersect(const CharSet& other) const;
    /// Within the universe.
    CharSet complement() const;
    CharSet minus(const CharSet& other) const { return intersect(other.complement()); }

    bool contains(uint32_t c) const;
    bool empty() const { return intervals_.empty(); }
    uint64_t size() const;
    const std::vector<Interval>& intervals() const { return intervals_; }
    bool operator==(const CharSet&) const = default;
    bool operator<(const CharSet& o) const { return intervals_ < o.intervals_; }

  private:
    std::vector<Interval> intervals_;  ///< ascending, not touching
};

/// UTF-8 of one code point, and the code points of well-formed UTF-8 text (ill-formed bytes:
/// U+FFFD).
std::string utf8_of(uint32_t c);
std::vector<uint32_t> code_points(const std::string& text);

}  // namespace deepinfer::grammar
