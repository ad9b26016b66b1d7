// Philox4x32-10 over many blocks at once, for the x86 instruction set that the including
// translation unit is compiled for (SSE2, AVX2 or AVX-512).
//
// One block per 64-bit lane, each state word in the lane's low half. The 32×32->64 multiply reads
// low halves only, so high halves may hold rubbish and no round needs a shuffle. Internal linkage:
// see sampling_math.h.
#pragma once

#if defined(__x86_64__)
#define DI_NOISE_LANES 1

#include <immintrin.h>

#include <cstdint>

#include "base/philox.h"

namespace deepinfer {
namespace {

#if defined(__AVX512F__)
using Lanes = __m512i;
inline Lanes lanes_set(uint64_t v) {
    return _mm512_set1_epi64(static_cast<long long>(v));
}
inline Lanes lanes_mul(Lanes a, Lanes b) {
    return _mm512_mul_epu32(a, b);
}
inline Lanes lanes_high(Lanes a) {
    return _mm512_srli_epi64(a, 32);
}
inline Lanes lanes_xor3(Lanes a, Lanes b, Lanes c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
inline Lanes lanes_add(Lanes a, Lanes b) {
    return _mm512_add_epi64(a, b);
}
/// Low half from a, high half from b's low half.
inline Lanes lanes_pair(Lanes a, Lanes b) {
    return _mm512_mask_blend_epi32(0xAAAA, a, _mm512_slli_epi64(b, 32));
}
inline Lanes lanes_even(Lanes a, Lanes b) {
    return _mm512_unpacklo_epi64(a, b);
}
inline Lanes lanes_odd(Lanes a, Lanes b) {
    return _mm512_unpackhi_epi64(a, b);
}
inline void lanes_store(uint32_t* p, Lanes a) {
    _mm512_storeu_si512(p, a);
}
inline Lanes lanes_blocks() {
    return _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
}
#elif defined(__AVX2__)
using Lanes = __m256i;
inline Lanes lanes_set(uint64_t v) {
    return _mm256_set1_epi64x(static_cast<long long>(v));
}
inline Lanes lanes_mul(Lanes a, Lanes b) {
    return _mm256_mul_epu32(a, b);
}
inline Lanes lanes_high(Lanes a) {
    return _mm256_srli_epi64(a, 32);
}
inline Lanes lanes_xor3(Lanes a, Lanes b, Lanes c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
inline Lanes lanes_add(Lanes a, Lanes b) {
    return _mm256_add_epi64(a, b);
}
inline Lanes lanes_pair(Lanes a, Lanes b) {
    return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
}
inline Lanes lanes_even(Lanes a, Lanes b) {
    return _mm256_unpacklo_epi64(a, b);
}
inline Lanes lanes_odd(Lanes a, Lanes b) {
    return _mm256_unpackhi_epi64(a, b);
}
inline void lanes_store(uint32_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}
inline Lanes lanes_blocks() {
    return _mm256_set_epi64x(3, 1, 2, 0);
}
#else
using Lanes = __m128i;
inline Lanes lanes_set(uint64_t v) {
    return _mm_set1_epi64x(static_cast<long long>(v));
}
inline Lanes lanes_mul(Lanes a, Lanes b) {
    return _mm_mul_epu32(a, b);
}
inline Lanes lanes_high(Lanes a) {
    return _mm_srli_epi64(a, 32);
}
inline Lanes lanes_xor3(Lanes a, Lanes b, Lanes c) {
    return _mm_xor_si128(_mm_xor_si128(a, b), c);
}
inline Lanes lanes_add(Lanes a, Lanes b) {
    return _mm_add_epi64(a, b);
}
inline Lanes lanes_pair(Lanes a, Lanes b) {
    return _mm_or_si128(_mm_and_si128(a, lanes_set(0xFFFFFFFFu)), _mm_slli_epi64(b, 32));
}
inline Lanes lanes_even(Lanes a, Lanes b) {
    return _mm_unpacklo_epi64(a, b);
}
inline Lanes lanes_odd(Lanes a, Lanes b) {
    return _mm_unpackhi_epi64(a, b);
}
inline void lanes_store(uint32_t* p, Lanes a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a);
}
inline Lanes lanes_blocks() {
    return _mm_set_epi64x(1, 0);
}
#endif

constexpr int kBlocksPerVector = static_cast<int>(sizeof(Lanes) / 8);

/// Words of num_blocks blocks of four tokens from block `first` on, in token order.
template <int num_blocks>
inline void noise_words_lanes(const NoiseKey& key, uint32_t first, uint32_t* out) {
    static_assert(num_blocks % kBlocksPerVector == 0);
    constexpr int kV = num_blocks / kBlocksPerVector;
    constexpr int kTogether =
        kV < 4 ? kV : 4;  // independent chains that hide the multiply's latency
    static_assert(kV % kTogether == 0);
    const Lanes m0 = lanes_set(0xD2511F53u), m1 = lanes_set(0xCD9E8D57u);
    for (int v = 0; v < kV; v += kTogether) {
        Lanes c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
        for (int t = 0; t < kTogether; ++t) {
            const auto block = first + static_cast<uint32_t>((v + t) * kBlocksPerVector);
            c0[t] = lanes_set(key.position);
            c1[t] = lanes_set(key.stream);
            // lanes in the order that even and odd lanes come out in below; no carry: ids are small
            c2[t] = lanes_add(lanes_set(block), lanes_blocks());
            c3[t] = lanes_set(key.sub_sequence);
        }
        uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const Lanes key0 = lanes_set(k0), key1 = lanes_set(k1);
            for (int t = 0; t < kTogether; ++t) {
                const Lanes p0 = lanes_mul(c0[t], m0);
                const Lanes p1 = lanes_mul(c2[t], m1);
                c0[t] = lanes_xor3(lanes_high(p1), c1[t], key0);
                c1[t] = p1;
                c2[t] = lanes_xor3(lanes_high(p0), c3[t], key1);
                c3[t] = p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int t = 0; t < kTogether; ++t) {
            const Lanes low = lanes_pair(c0[t], c1[t]), high = lanes_pair(c2[t], c3[t]);
            uint32_t* to = out + (v + t) * kBlocksPerVector * 4;
            lanes_store(to, lanes_even(low, high));
            lanes_store(to + kBlocksPerVector * 2, lanes_odd(low, high));
        }
    }
}

}  // namespace
}  // namespace deepinfer

#endif
