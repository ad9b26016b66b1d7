// The constants of the Engram hash: primes and multipliers (model spec 3.10).
//
// The multipliers are draws of numpy's default_rng, so numpy's seeding (SeedSequence), generator
// (PCG64) and bounded draw are reproduced here to the bit, and tested against vectors that numpy
// made.
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/check.h"
#include "checkpoint/hf_config.h"

namespace deepinfer {
namespace {

__extension__ using u128 = unsigned __int128;

uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t m) {
    return static_cast<uint64_t>(static_cast<u128>(a) * b % m);
}

uint64_t pow_mod(uint64_t base, uint64_t exponent, uint64_t m) {
    uint64_t result = 1;
    for (base %= m; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0) result = mul_mod(result, base, m);
        base = mul_mod(base, base, m);
    }
    return result;
}

/// Miller-Rabin with the first twelve primes as bases: exact for every 64-bit number.
bool is_prime(uint64_t n) {
    constexpr std::array<uint64_t, 12> kBases = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    if (n < 2) return false;
    for (uint64_t p : kBases) {
        if (n % p == 0) return n == p;
    }
    uint64_t odd = n - 1;
    int twos = 0;
    for (; (odd & 1) == 0; odd >>= 1) ++twos;
    for (uint64_t base : kBases) {
        uint64_t x = pow_mod(base, odd, n);
        if (x == 1 || x == n - 1) continue;
        bool composite = true;
        for (int i = 1; i < twos && composite; ++i) {
            x = mul_mod(x, x, n);
            composite = x != n - 1;
        }
        if (composite) return false;
    }
    return true;
}

/// numpy.random.SeedSequence of one non-negative integer below 2^64, as the state words it hands
/// out.
std::array<uint64_t, 4> seed_words(uint64_t entropy) {
    constexpr uint32_t kInitA = 0x43b0d7e5u, kMulA = 0x931e8875u;
    constexpr uint32_t kInitB = 0x8b51f9ddu, kMulB = 0x58f38dedu;
    constexpr uint32_t kMixLeft = 0xca01f9ddu, kMixRight = 0x4973f715u;
    uint32_t constant = kInitA;
    const auto hash = [&constant](uint32_t v) {
        v ^= constant;
        constant *= kMulA;
        v *= constant;
        return v ^ (v >> 16);
    };
    const auto mix = [](uint32_t x, uint32_t y) {
        const uint32_t t = kMixLeft * x - kMixRight * y;
        return t ^ (t >> 16);
    };
    const std::array<uint32_t, 4> words = {
        static_cast<uint32_t>(entropy), static_cast<uint32_t>(entropy >> 32), 0, 0};
    std::array<uint32_t, 4> pool{};
    for (size_t i = 0; i < 4; ++i) pool[i] = hash(words[i]);
    for (size_t src = 0; src < 4; ++src) {
        for (size_t dst = 0; dst < 4; ++dst) {
            if (src != dst) pool[dst] = mix(pool[dst], hash(pool[src]));
        }
    }
    std::array<uint64_t, 4> out{};
    constant = kInitB;
    for (size_t i = 0; i < 8; ++i) {
        uint32_t v = pool[i % 4] ^ constant;
        constant *= kMulB;
        v *= constant;
        v ^= v >> 16;
        out[i / 2] |= static_cast<uint64_t>(v) << (32 * (i % 2));
    }
    return out;
}

/// PCG64 (XSL-RR 128/64), seeded as default_rng(seed) does.
class Pcg64 {
  public:
    explicit Pcg64(uint64_t seed) {
        const std::array<uint64_t, 4> s = seed_words(seed);
        increment_ = (join(s[2], s[3]) << 1) | 1;
        step();
        state_ += join(s[0], s[1]);
        step();
    }

    uint64_t next() {
        step();
        const uint64_t x = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
        const unsigned r = static_cast<unsigned>(state_ >> 122);
        return (x >> r) | (x << ((64 - r) & 63));
    }

    /// Half of a 64-bit draw, the low one first.
    uint32_t next32() {
        if (has_half_) {
            has_half_ = false;
            return half_;
        }
        const uint64_t x = next();
        has_half_ = true;
        half_ = static_cast<uint32_t>(x >> 32);
        return static_cast<uint32_t>(x);
    }

    /// integers(0, bound) for an int64 array: numpy draws 32-bit words while the bound fits into
    /// them.
    uint64_t below(uint64_t bound) {
        if (bound == 1) return 0;
        if (bound < (uint64_t{1} << 32)) {
            const uint32_t b = static_cast<uint32_t>(bound);
            uint64_t m = static_cast<uint64_t>(next32()) * b;
            if (static_cast<uint32_t>(m) < b) {
                const uint32_t threshold = (0u - b) % b;
                while (static_cast<uint32_t>(m) < threshold) {
                    m = static_cast<uint64_t>(next32()) * b;
                }
            }
            return m >> 32;
        }
        u128 m = static_cast<u128>(next()) * bound;
        if (static_cast<uint64_t>(m) < bound) {
            const uint64_t threshold = (0 - bound) % bound;
            while (static_cast<uint64_t>(m) < threshold) m = static_cast<u128>(next()) * bound;
        }
        return static_cast<uint64_t>(m >> 64);
    }

  private:
    static u128 join(uint64_t high, uint64_t low) { return static_cast<u128>(high) << 64 | low; }
    void step() {
        state_ = state_ * join(0x2360ED051FC65DA4ull, 0x4385DF649FCCF645ull) + increment_;
    }

    u128 state_ = 0;
    u128 increment_ = 0;
    bool has_half_ = false;
    uint32_t half_ = 0;
};

constexpr int64_t kLayerSeedFactor = 10007;  // model spec 3.10

}  // namespace

std::vector<std::vector<int64_t>> ModelConfig::engram_primes() const {
    // "The smallest unused prime from engram_vocab_size on", for every head in turn: as each search
    // takes the smallest one left, the used primes never have a gap, and the search simply goes on.
    std::vector<std::vector<int64_t>> tables;
    uint64_t candidate = static_cast<uint64_t>(engram_vocab_size);
    for (size_t t = 0; t < engram_layer_ids.size(); ++t) {
        std::vector<int64_t> primes;
        for (int64_t c = 0; c < engram_columns(); ++c) {
            while (!is_prime(candidate)) ++candidate;
            primes.push_back(static_cast<int64_t>(candidate++));
        }
        tables.push_back(std::move(primes));
    }
    return tables;
}

std::vector<int64_t> engram_multipliers(int64_t layer_id,
                                        int64_t max_ngram,
                                        int64_t compressed_vocab) {
    DI_CHECK_GE(layer_id, 0);
    DI_CHECK_GE(compressed_vocab, 1);
    const uint64_t bound =
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / compressed_vocab / 2);
    DI_CHECK_GE(bound, uint64_t{1});
    Pcg64 rng(static_cast<uint64_t>(kLayerSeedFactor) * static_cast<uint64_t>(layer_id));
    std::vector<int64_t> out;
    for (int64_t i = 0; i < max_ngram; ++i) {
        out.push_back(static_cast<int64_t>(2 * rng.below(bound) + 1));
    }
    return out;
}

}  // namespace deepinfer
