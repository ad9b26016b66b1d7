// Widening to bf16 bits by table, for AMX operands: E4M3 codes and packed KV entries.
#pragma once

#include "backends/cpu/kernels/cache_rows_inl.h"

namespace deepinfer::cpu {
namespace {

/// bf16 bits of 2^(scale - 127) · e4m3 for a magnitude code 0..126; scale must keep it normal.
constexpr uint16_t bf16_of_e4m3(int code, int scale) {
    const int e = code >> 3, m = code & 7;
    if (code == 0) return 0;
    if (e > 0) return static_cast<uint16_t>(((e - 7 + scale) << 7) + (m << 4));
    int shift = 0;  // subnormal m · 2^-9: normalized
    int v = m;
    while ((v & 8) == 0) {
        v <<= 1;
        ++shift;
    }
    return static_cast<uint16_t>(((-6 - shift + scale) << 7) + ((v & 7) << 4));
}

/// Low and high bytes apart: two byte permutes widen 64 codes.
struct Fp8Bytes {
    uint8_t low[128];
    uint8_t high[128];
};
constexpr Fp8Bytes make_fp8_bytes(int scale) {
    Fp8Bytes t{};
    for (int c = 0; c < 128; ++c) {
        const uint16_t b = bf16_of_e4m3(c, scale);
        t.low[c] = static_cast<uint8_t>(b & 255);
        t.high[c] = static_cast<uint8_t>(b >> 8);
    }
    return t;
}
alignas(64) constexpr Fp8Bytes kUnscaled = make_fp8_bytes(127);

/// Low and high bytes of the bf16 bits of 64 codes, in place.
struct BytePair {
    __m512i low, high;
};
DI_INLINE BytePair widen_bytes(const Fp8Bytes& t, __m512i codes) {
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(t.high), codes, _mm512_load_si512(t.high + 64));
    return {
        _mm512_permutex2var_epi8(_mm512_load_si512(t.low), codes, _mm512_load_si512(t.low + 64)),
        _mm512_ternarylogic_epi64(
            magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8)};  // a | (b & c)
}

/// Adds `exponent` << 7 to every word that is not a zero.
DI_INLINE __m512i scale_words(__m512i words, int exponent) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x7FFF));
    return _mm512_mask_add_epi16(
        words, nonzero, words, _mm512_set1_epi16(static_cast<int16_t>(exponent * 128)));
}

// e2m1 · e4m3 for a scale code and all 16 value codes: at most 6 significant bits, exact in bf16.
struct EntryTables {
    uint16_t of[256][16];
};
constexpr uint16_t bf16_of_small(float v) {
    const bool negative = v < 0;
    float a = negative ? -v : v;
    if (a == 0.0f) return 0;
    int e = 127;
    while (a >= 2.0f) {
        a *= 0.5f;
        ++e;
    }
    while (a < 1.0f) {
        a *= 2.0f;
        --e;
    }
    const int m = static_cast<int>((a - 1.0f) * 128.0f);
    return static_cast<uint16_t>((negative ? 0x8000 : 0) + (e << 7) + m);
}
constexpr EntryTables make_entry_tables() {
    EntryTables t{};
    for (int s = 0; s < 256; ++s) {
        for (int c = 0; c < 16; ++c) {
            t.of[s][c] = (s & 127) == 127 ? uint16_t{0x7FC0}
                                          : bf16_of_small(fp8_value(s) * kFp4Table.value[c]);
        }
    }
    return t;
}
alignas(64) constexpr EntryTables kEntryTables = make_entry_tables();

/// Window row → bf16, 32 dims at a time to dst + block · step. False if the row holds a NaN.
DI_INLINE bool widen_window_bf16(const uint8_t* row, int64_t dh, uint16_t* dst, int64_t step) {
    bool clean = true;
    // Quadwords in the order that makes unpacklo the first 32 codes and unpackhi the last.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < dh; b += 64) {
        const __m512i codes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(row + b));
        const int e0 = row[dh + b / 32], e1 = row[dh + b / 32 + 1];
        const __mmask64 nan = _mm512_cmpeq_epi8_mask(
            _mm512_and_si512(codes, _mm512_set1_epi8(0x7F)), _mm512_set1_epi8(0x7F));
        uint16_t* d0 = dst + b / 32 * step;
        uint16_t* d1 = d0 + step;
        if (nan != 0 || e0 < 27 || e0 > 227 || e1 < 27 ||
            e1 > 227) {  // never for finite activations
            for (int i = 0; i < 64; ++i) {
                const float v = kFp8OrNan.value[row[b + i]] * ue8m0_value(row[dh + (b + i) / 32]);
                clean = clean && v - v == 0.0f;
                (i < 32 ? d0 : d1)[i & 31] = bf16_bits(v);
            }
            continue;
        }
        const BytePair w = widen_bytes(kUnscaled, codes);
        _mm512_store_si512(d0, scale_words(_mm512_unpacklo_epi8(w.low, w.high), e0 - 127));
        _mm512_store_si512(d1, scale_words(_mm512_unpackhi_epi8(w.low, w.high), e1 - 127));
    }
    return clean;
}

/// KV entry → bf16, 32 dims at a time. False if a scale is NaN.
DI_INLINE bool widen_entry_bf16(const uint8_t* row, int64_t dh, uint16_t* dst, int64_t step) {
    bool clean = true;
    const uint8_t* scales = row + dh / 2;
    // Words 16..31 (dims 16..31) read the second table.
    const __m512i second = _mm512_setr_epi32(0,
                                             0,
                                             0,
                                             0,
                                             0,
                                             0,
                                             0,
                                             0,
                                             0x100010,
                                             0x100010,
                                             0x100010,
                                             0x100010,
                                             0x100010,
                                             0x100010,
                                             0x100010,
                                             0x100010);
    for (int64_t b = 0; b < dh; b += 32) {
        const uint8_t s0 = scales[b / 16], s1 = scales[b / 16 + 1];
        clean = clean && (s0 & 127) != 127 && (s1 & 127) != 127;
        const __m512i table = _mm512_inserti64x4(
            _mm512_castsi256_si512(
                _mm256_load_si256(reinterpret_cast<const __m256i*>(kEntryTables.of[s0]))),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(kEntryTables.of[s1])),
            1);
        const __m512i d =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + b / 2)));
        const __m512i spread = _mm512_or_si512(
            d, _mm512_slli_epi32(d, 12));  // low nibble, high nibble in the two words
        const __m512i index = _mm512_ternarylogic_epi64(
            spread, _mm512_set1_epi32(0x000F000F), second, 0xEA);  // (a & b) | c
        _mm512_store_si512(dst + b / 32 * step, _mm512_permutexvar_epi16(index, table));
    }
    return clean;
}

}  // namespace
}  // namespace deepinfer::cpu
