// The simulated model: the next token is a hash of everything before it, so one wrong row, one lost
// token or one row read from the wrong cache changes all that follows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "deepinfer/request.h"
#include "engine/clock.h"
#include "engine/sequence.h"

namespace deepinfer::sim {

inline constexpr int32_t kVocab = 500;
inline constexpr int32_t kEos = 1;

inline uint64_t mix(uint64_t x) {  // splitmix64's finaliser
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/// Hash of a prefix, extended by one token.
inline uint64_t extend(uint64_t prefix, int32_t token) {
    return mix(prefix ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) << 20 | 0x5u));
}

/// Allowed tokens after a prefix under the simulated constraint: about one in four, never none.
inline bool allowed(uint64_t prefix, int32_t token) {
    return mix(prefix ^ 0xC0FFEEu ^ static_cast<uint64_t>(token) << 32) % 4 == 0 || token == 7;
}

inline std::vector<uint32_t> mask_of(uint64_t prefix) {
    std::vector<uint32_t> words((kVocab + 31) / 32, 0);
    for (int32_t t = 0; t < kVocab; ++t) {
        if (allowed(prefix, t)) words[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    }
    return words;
}

/// The token after a prefix. `constrained`: the first allowed one after the free choice.
inline int32_t choose(uint64_t prefix, uint64_t seed, int32_t index, bool constrained) {
    const uint64_t h = mix(prefix ^ mix(seed + static_cast<uint64_t>(index)));
    int32_t t = static_cast<int32_t>(h % kVocab);
    while (constrained && !allowed(prefix, t)) t = (t + 1) % kVocab;
    return t;
}

/// Where the simulated consumer stops on its own (a stop string, say).
inline bool consumer_stops(uint64_t prefix) {
    return mix(prefix ^ 0x57u) % 151 == 0;
}

class HashConstraint final : public TokenConstraint {
  public:
    explicit HashConstraint(const std::vector<int32_t>& prompt) {
        for (const int32_t t : prompt) prefix_ = extend(prefix_, t);
    }
    std::vector<uint32_t> mask() override { return mask_of(prefix_); }
    bool accept(int32_t token) override {
        const std::vector<uint32_t> allowed = mask();
        if ((allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) return false;
        undo_.push_back(prefix_);
        prefix_ = extend(prefix_, token);
        return true;
    }
    void rollback(int count) override {
        if (count == 0) return;
        prefix_ = undo_[undo_.size() - static_cast<size_t>(count)];
        undo_.resize(undo_.size() - static_cast<size_t>(count));
    }

  private:
    uint64_t prefix_ = 0;
    std::vector<uint64_t> undo_;
};

class VirtualClock final : public Clock {
  public:
    int64_t now_us() const override { return now; }
    int64_t now = 0;
};

/// What a sequence must produce, whatever happens around it.
struct Expected {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::kNone;
};

inline Expected expected_output(const std::vector<int32_t>& prompt,
                                const SamplingParams& params,
                                uint64_t seed,
                                int32_t index,
                                bool constrained,
                                int64_t max_model_len,
                                bool with_stops) {
    Expected e;
    uint64_t prefix = 0;
    for (const int32_t t : prompt) prefix = extend(prefix, t);
    const int64_t room = max_model_len - static_cast<int64_t>(prompt.size());
    const int64_t most = std::min(room, params.max_tokens.value_or(room));
    while (e.reason == FinishReason::kNone) {
        const int32_t t = choose(prefix, seed, index, constrained);
        e.tokens.push_back(t);
        prefix = extend(prefix, t);
        if (t == kEos && !params.ignore_eos) {
            e.reason = FinishReason::kStop;
        } else if (with_stops && consumer_stops(prefix)) {
            e.reason = FinishReason::kStop;
        } else if (static_cast<int64_t>(e.tokens.size()) >= most) {
            e.reason = FinishReason::kLength;
        }
    }
    return e;
}

}  // namespace deepinfer::sim
