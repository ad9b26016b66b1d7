// Philox4x32-10: a counter-based random function (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011). Stateless: the same key and counter give the same four words
// on every device, in any order, so a random draw can be named instead of consumed.
//
// Compiles for the host and, under nvcc, for the device.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DI_HD __host__ __device__
#else
#define DI_HD
#endif

namespace deepinfer {

struct PhiloxWords {
    uint32_t w[4];
};

/// Ten rounds over `counter` with the 64-bit key (key0 = low word).
DI_HD static inline PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
    uint32_t c0 = counter.w[0], c1 = counter.w[1], c2 = counter.w[2], c3 = counter.w[3];
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
        const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
        c1 = static_cast<uint32_t>(p1);
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
        c3 = static_cast<uint32_t>(p0);
        key0 += 0x9E3779B9u;  // the golden ratio and sqrt(3) - 1: the cipher's Weyl increments
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

/// What a draw is for. A refinement word of stream s is the same counter under stream s + 8.
enum class NoiseStream : uint32_t {
    kTarget = 0,      ///< Gumbel noise of the model's own choice (and of coupled drafts)
    kDraft = 1,       ///< Gumbel noise of drafts that are verified by rejection
    kAcceptance = 2,  ///< acceptance uniforms of rejection sampling
    kOther = 3,
};
inline constexpr uint32_t kNoiseRefineOffset = 8;

/// Names every draw of one (sequence, position): the key and the counter words that do not depend
/// on the token. Word of token v: component v & 3 of counter (position, stream, v >> 2,
/// sub_sequence).
struct NoiseKey {
    uint64_t seed = 0;
    uint32_t position = 0;      ///< position of the token to be generated
    uint32_t stream = 0;        ///< NoiseStream
    uint32_t sub_sequence = 0;  ///< index among the n sequences of a request
};

DI_HD static inline uint32_t noise_word(const NoiseKey& key, uint32_t token_id) {
    const PhiloxWords r =
        philox4x32_10({{key.position, key.stream, token_id >> 2, key.sub_sequence}},
                      static_cast<uint32_t>(key.seed),
                      static_cast<uint32_t>(key.seed >> 32));
    return r.w[token_id & 3];
}

}  // namespace deepinfer
