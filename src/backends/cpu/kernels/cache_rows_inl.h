// Widening packed cache rows: window rows, KV entries, index keys (formats: tensor/quant_block.h).
#pragma once

#include "backends/cpu/kernels/gemm_inl.h"
#include "backends/cpu/kernels/simd.h"

namespace deepinfer::cpu {
namespace {

constexpr Fp8Tables make_fp8_nan() {
    Fp8Tables t = make_fp8();
    t.value[0x7F] = __builtin_nanf("");
    t.value[0xFF] = __builtin_nanf("");
    return t;
}
constexpr Fp8Tables kFp8OrNan = make_fp8_nan();  // caches may hold NaN, unlike packed weights

DI_INLINE float ue8m0_value(uint8_t c) {
    if (c == 255) return __builtin_nanf("");
    if (c == 0) return 0x1p-127f;
    return scale_value(c, 0);
}

/// E2M1 value of the low four bits of each lane (upper bits are ignored).
DI_INLINE F fp4_decode(I d) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(d, vload(kFp4Table.value));
#elif defined(__AVX2__)
    const F magnitude = _mm256_permutevar8x32_ps(vload(kFp4Table.value), d);
    return _mm256_xor_ps(magnitude, as_f(isll<28>(iand(d, iset(8)))));
#else
    uint32_t w[4];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(w), d);
    const float* t = kFp4Table.value;
    return _mm_setr_ps(t[w[0] & 15u], t[w[1] & 15u], t[w[2] & 15u], t[w[3] & 15u]);
#endif
}

inline void widen_window_row(const uint8_t* row, int64_t dim, float* out) {
    for (int64_t b = 0; b < dim; b += 32) {
        const uint8_t e = row[dim + b / 32];
#if defined(__AVX2__)
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + b));
        const __m256i is_nan = _mm256_cmpeq_epi8(_mm256_and_si256(codes, _mm256_set1_epi8(0x7F)),
                                                 _mm256_set1_epi8(0x7F));
        if (e >= 16 && e <= 240 && _mm256_testz_si256(is_nan, is_nan)) {
            const F s = vset(scale_value(e, 8));
            const F32x32 w = Fp8Panel::row(row + b, 0);
            DI_UNROLL
            for (int i = 0; i < kV; ++i) vstore(out + b + i * kLanes, w.v[i] * s);
            continue;
        }
#endif
        const float s = ue8m0_value(e);
        for (int i = 0; i < 32; ++i) out[b + i] = kFp8OrNan.value[row[b + i]] * s;
    }
}

inline void widen_entry(const uint8_t* row, int64_t dim, float* out) {
    const uint8_t* scales = row + dim / 2;
#if defined(__AVX2__) && !defined(__AVX512F__)
    // 32 dims at a time, a block of 16 in each half of a vector: bf16 numbers by a look-up of each
    // byte, interleaved with zeros in front. dim % 64 == 0.
    const __m128i low_nibble = _mm_set1_epi8(15);
    const I high = _mm256_broadcastsi128_si256(_mm_set_epi64x(
                static_cast<int64_t>(kFp4HighBytes[1]), static_cast<int64_t>(kFp4HighBytes[0]))),
            low = _mm256_set1_epi64x(static_cast<int64_t>(kFp4LowBytes)), zero = iset(0);
    for (int64_t b = 0; b < dim; b += 32) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + b / 2));
        const __m128i even = _mm_and_si128(bytes, low_nibble),
                      odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), low_nibble);
        const I nibbles =
            _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
        const I h = _mm256_shuffle_epi8(high, nibbles), l = _mm256_shuffle_epi8(low, nibbles);
        const F s = _mm256_set_m128(_mm_set1_ps(kFp8OrNan.value[scales[b / 16 + 1]]),
                                    _mm_set1_ps(kFp8OrNan.value[scales[b / 16]]));
        const I w[2] = {_mm256_unpacklo_epi8(l, h), _mm256_unpackhi_epi8(l, h)};
        DI_UNROLL
        for (int i = 0; i < 4; ++i) {
            const I bits = i % 2 == 0 ? _mm256_unpacklo_epi16(zero, w[i / 2])
                                      : _mm256_unpackhi_epi16(zero, w[i / 2]);
            const F v = as_f(bits) * s;
            _mm_storeu_ps(out + b + 4 * i, _mm256_castps256_ps128(v));
            _mm_storeu_ps(out + b + 16 + 4 * i, _mm256_extractf128_ps(v, 1));
        }
    }
#else
    for (int64_t b = 0; b < dim; b += 16) {
        const float s = kFp8OrNan.value[scales[b / 16]];
        const uint8_t* p = row + b / 2;
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        // Even dims are low nibbles; fp4_decode ignores what stands above the low four bits.
        const __m128i nibbles =
            _mm_unpacklo_epi8(bytes, _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15)));
        vstore(out + b, fp4_decode(_mm512_cvtepu8_epi32(nibbles)) * vset(s));
#else
        for (int i = 0; i < 16; i += 2) {
            out[b + i] = kFp4Table.value[p[i / 2] & 15u] * s;
            out[b + i + 1] = kFp4Table.value[p[i / 2] >> 4] * s;
        }
#endif
    }
#endif
}

}  // namespace
}  // namespace deepinfer::cpu
