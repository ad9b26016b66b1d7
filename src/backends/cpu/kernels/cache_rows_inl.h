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
    for (int64_t b = 0; b < dim; b += 16) {
        const float s = kFp8OrNan.value[scales[b / 16]];
        const uint8_t* p = row + b / 2;
#if defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        // Even dims are low nibbles; fp4_decode ignores what stands above the low four bits.
        const __m128i nibbles =
            _mm_unpacklo_epi8(bytes, _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15)));
#if defined(__AVX512F__)
        vstore(out + b, fp4_decode(_mm512_cvtepu8_epi32(nibbles)) * vset(s));
#else
        vstore(out + b, fp4_decode(_mm256_cvtepu8_epi32(nibbles)) * vset(s));
        vstore(out + b + 8, fp4_decode(_mm256_cvtepu8_epi32(_mm_srli_si128(nibbles, 8))) * vset(s));
#endif
#else
        for (int i = 0; i < 16; i += 2) {
            out[b + i] = kFp4Table.value[p[i / 2] & 15u] * s;
            out[b + i + 1] = kFp4Table.value[p[i / 2] >> 4] * s;
        }
#endif
    }
}

}  // namespace
}  // namespace deepinfer::cpu
