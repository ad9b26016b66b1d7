// Random test data that repeats: the seed is a string, by habit the test's or the row's name.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace deepinfer::testing {

/// SplitMix64 over an FNV-1a hash of the seed string. Not std::normal_distribution: that differs
/// between libraries.
class SeededRandom {
  public:
    explicit SeededRandom(const std::string& seed) {
        for (char c : seed) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
    }

    uint64_t bits() {
        state_ += 0x9e3779b97f4a7c15ull;
        uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    /// In [0, 1).
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    double uniform(double low, double high) { return low + (high - low) * uniform(); }
    /// In [0, n).
    int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
    double normal() {
        const double r = std::sqrt(-2.0 * std::log(1.0 - uniform()));
        return r * std::cos(6.283185307179586 * uniform());
    }

  private:
    uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace deepinfer::testing
