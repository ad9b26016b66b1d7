// One vector type over SSE2, AVX2 and AVX-512, for kernels that are written once and compiled per
// ISA.
//
// Which one it is depends on the flags of the including file, so everything here has internal
// linkage (the unnamed namespace): two ISA levels in one program must never share a function. For
// the same reason these files use no inline functions of other headers.
//
//   F  kLanes floats     I  kLanes 32-bit integers     M  a mask of lanes
//
// vfma is fused where the level has FMA and two roundings on the baseline. Products of two bf16
// values are exact in fp32, so for those all levels agree to the bit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#define DI_UNROLL _Pragma("unroll")
#else
#define DI_UNROLL _Pragma("GCC unroll 64")
#endif
#define DI_INLINE inline __attribute__((always_inline))

namespace deepinfer::cpu {
namespace {

#if defined(__AVX512F__)

using F = __m512;
using I = __m512i;
using M = __mmask16;
constexpr int kLanes = 16;

DI_INLINE F vload(const float* p) {
    return _mm512_loadu_ps(p);
}
DI_INLINE void vstore(float* p, F v) {
    _mm512_storeu_ps(p, v);
}
DI_INLINE F vset(float x) {
    return _mm512_set1_ps(x);
}
DI_INLINE F vfma(F a, F b, F c) {
    return _mm512_fmadd_ps(a, b, c);
}
DI_INLINE F vmax(F a, F b) {
    return _mm512_max_ps(a, b);
}
DI_INLINE F vmin(F a, F b) {
    return _mm512_min_ps(a, b);
}
DI_INLINE F vabs(F a) {
    return _mm512_abs_ps(a);
}
DI_INLINE I iload(const void* p) {
    return _mm512_loadu_si512(p);
}
DI_INLINE I iset(int32_t x) {
    return _mm512_set1_epi32(x);
}
DI_INLINE I iadd(I a, I b) {
    return _mm512_add_epi32(a, b);
}
DI_INLINE I isub(I a, I b) {
    return _mm512_sub_epi32(a, b);
}
DI_INLINE I iand(I a, I b) {
    return _mm512_and_si512(a, b);
}
DI_INLINE I ior(I a, I b) {
    return _mm512_or_si512(a, b);
}
template <int N>
DI_INLINE I isll(I a) {
    return _mm512_slli_epi32(a, N);
}
template <int N>
DI_INLINE I isrl(I a) {
    return _mm512_srli_epi32(a, N);
}
DI_INLINE F as_f(I a) {
    return _mm512_castsi512_ps(a);
}
DI_INLINE I as_i(F a) {
    return _mm512_castps_si512(a);
}
DI_INLINE I vround(F a) {
    return _mm512_cvtps_epi32(a);
}  // ties to even
DI_INLINE F vfloat(I a) {
    return _mm512_cvtepi32_ps(a);
}
DI_INLINE M vlt(F a, F b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
DI_INLINE M vnan(F a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
DI_INLINE F vsel(M m, F a, F b) {
    return _mm512_mask_blend_ps(m, b, a);
}
DI_INLINE I isel(M m, I a, I b) {
    return _mm512_mask_blend_epi32(m, b, a);
}
DI_INLINE F vload_bf16(const uint16_t* p) {
    return as_f(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
DI_INLINE void istore_u16(uint16_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}
DI_INLINE void istore_u8(uint8_t* p, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
DI_INLINE __m256 fold(F a) {
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
DI_INLINE __m128 fold4(F a) {
    const __m256 h = fold(a);
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
DI_INLINE F vsqrt(F a) {
    return _mm512_sqrt_ps(a);
}
DI_INLINE float vhmax(F a) {
    return _mm512_reduce_max_ps(a);
}

#elif defined(__AVX2__)

using F = __m256;
using I = __m256i;
using M = __m256;
constexpr int kLanes = 8;

DI_INLINE F vload(const float* p) {
    return _mm256_loadu_ps(p);
}
DI_INLINE void vstore(float* p, F v) {
    _mm256_storeu_ps(p, v);
}
DI_INLINE F vset(float x) {
    return _mm256_set1_ps(x);
}
DI_INLINE F vfma(F a, F b, F c) {
    return _mm256_fmadd_ps(a, b, c);
}
DI_INLINE F vmax(F a, F b) {
    return _mm256_max_ps(a, b);
}
DI_INLINE F vmin(F a, F b) {
    return _mm256_min_ps(a, b);
}
DI_INLINE I iload(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
DI_INLINE I iset(int32_t x) {
    return _mm256_set1_epi32(x);
}
DI_INLINE I iadd(I a, I b) {
    return _mm256_add_epi32(a, b);
}
DI_INLINE I isub(I a, I b) {
    return _mm256_sub_epi32(a, b);
}
DI_INLINE I iand(I a, I b) {
    return _mm256_and_si256(a, b);
}
DI_INLINE I ior(I a, I b) {
    return _mm256_or_si256(a, b);
}
template <int N>
DI_INLINE I isll(I a) {
    return _mm256_slli_epi32(a, N);
}
template <int N>
DI_INLINE I isrl(I a) {
    return _mm256_srli_epi32(a, N);
}
DI_INLINE F as_f(I a) {
    return _mm256_castsi256_ps(a);
}
DI_INLINE I as_i(F a) {
    return _mm256_castps_si256(a);
}
DI_INLINE F vabs(F a) {
    return as_f(iand(as_i(a), iset(0x7FFFFFFF)));
}
DI_INLINE I vround(F a) {
    return _mm256_cvtps_epi32(a);
}
DI_INLINE F vfloat(I a) {
    return _mm256_cvtepi32_ps(a);
}
DI_INLINE M vlt(F a, F b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
DI_INLINE M vnan(F a) {
    return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
DI_INLINE F vsel(M m, F a, F b) {
    return _mm256_blendv_ps(b, a, m);
}
DI_INLINE I isel(M m, I a, I b) {
    return as_i(vsel(m, as_f(a), as_f(b)));
}
DI_INLINE F vload_bf16(const uint16_t* p) {
    return as_f(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
DI_INLINE void istore_u16(uint16_t* p, I v) {
    const I packed = _mm256_packus_epi32(v, v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}
DI_INLINE void istore_u8(uint8_t* p, I v) {
    const __m128i w = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(w, w));
}
DI_INLINE __m128 fold4(F a) {
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
DI_INLINE F vsqrt(F a) {
    return _mm256_sqrt_ps(a);
}
DI_INLINE float vhmax(F a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

#else

using F = __m128;
using I = __m128i;
using M = __m128;
constexpr int kLanes = 4;

DI_INLINE F vload(const float* p) {
    return _mm_loadu_ps(p);
}
DI_INLINE void vstore(float* p, F v) {
    _mm_storeu_ps(p, v);
}
DI_INLINE F vset(float x) {
    return _mm_set1_ps(x);
}
DI_INLINE F vfma(F a, F b, F c) {
    return _mm_add_ps(_mm_mul_ps(a, b), c);
}
DI_INLINE F vmax(F a, F b) {
    return _mm_max_ps(a, b);
}
DI_INLINE F vmin(F a, F b) {
    return _mm_min_ps(a, b);
}
DI_INLINE I iload(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
DI_INLINE I iset(int32_t x) {
    return _mm_set1_epi32(x);
}
DI_INLINE I iadd(I a, I b) {
    return _mm_add_epi32(a, b);
}
DI_INLINE I isub(I a, I b) {
    return _mm_sub_epi32(a, b);
}
DI_INLINE I iand(I a, I b) {
    return _mm_and_si128(a, b);
}
DI_INLINE I ior(I a, I b) {
    return _mm_or_si128(a, b);
}
template <int N>
DI_INLINE I isll(I a) {
    return _mm_slli_epi32(a, N);
}
template <int N>
DI_INLINE I isrl(I a) {
    return _mm_srli_epi32(a, N);
}
DI_INLINE F as_f(I a) {
    return _mm_castsi128_ps(a);
}
DI_INLINE I as_i(F a) {
    return _mm_castps_si128(a);
}
DI_INLINE F vabs(F a) {
    return as_f(iand(as_i(a), iset(0x7FFFFFFF)));
}
DI_INLINE I vround(F a) {
    return _mm_cvtps_epi32(a);
}
DI_INLINE F vfloat(I a) {
    return _mm_cvtepi32_ps(a);
}
DI_INLINE M vlt(F a, F b) {
    return _mm_cmplt_ps(a, b);
}
DI_INLINE M vnan(F a) {
    return _mm_cmpunord_ps(a, a);
}
DI_INLINE F vsel(M m, F a, F b) {
    return _mm_or_ps(_mm_and_ps(m, a), _mm_andnot_ps(m, b));
}
DI_INLINE I isel(M m, I a, I b) {
    return as_i(vsel(m, as_f(a), as_f(b)));
}
DI_INLINE F vload_bf16(const uint16_t* p) {
    return as_f(_mm_unpacklo_epi16(_mm_setzero_si128(),
                                   _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
DI_INLINE void istore_u16(uint16_t* p, I v) {
    // Sign-extended first, so that the signed saturation of packs keeps all 16 bits.
    const I s = _mm_srai_epi32(_mm_slli_epi32(v, 16), 16);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(s, s));
}
DI_INLINE void istore_u8(uint8_t* p, I v) {
    const I w = _mm_packs_epi32(v, v);
    const int32_t b = _mm_cvtsi128_si32(_mm_packus_epi16(w, w));
    __builtin_memcpy(p, &b, 4);
}
DI_INLINE __m128 fold4(F a) {
    return a;
}
DI_INLINE F vsqrt(F a) {
    return _mm_sqrt_ps(a);
}
DI_INLINE float vhmax(F a) {
    __m128 m = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

#endif

DI_INLINE F vzero() {
    return vset(0.0f);
}

/// acc = vfma(a, b, acc). With AVX2's sixteen registers g++ moves sums through the stack, or loads
/// b anew for every product, unless it is told where they are.
DI_INLINE void add_product(F& acc, F a, F b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
#else
    acc = vfma(a, b, acc);
#endif
}

/// Sum of all lanes, always the same tree: halves are added until one lane is left.
DI_INLINE float vsum(F a) {
    __m128 s = fold4(a);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

/// bf16 bits (low half of each lane), nearest even, NaN kept quiet: to_bf16 of tensor/dtype.h.
DI_INLINE I round_bf16_bits(F v) {
    const I u = as_i(v);
    const I r = isrl<16>(iadd(iadd(u, iset(0x7FFF)), iand(isrl<16>(u), iset(1))));
    return isel(vnan(v), ior(isrl<16>(u), iset(0x40)), r);
}
DI_INLINE F round_bf16(F v) {
    return as_f(isll<16>(round_bf16_bits(v)));
}
DI_INLINE void vstore_bf16(uint16_t* p, F v) {
    istore_u16(p, round_bf16_bits(v));
}

DI_INLINE float bf16_value(uint16_t b) {
    const uint32_t u = static_cast<uint32_t>(b) << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}
DI_INLINE uint16_t bf16_bits(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/// e^x within 2 ulp; 0 below -87.3, inf above 88.7, NaN stays NaN. Argument reduction by ln 2 in
/// two parts and a degree-6 polynomial, the same in every lane and for every level up to FMA's
/// rounding.
DI_INLINE F vexp(F x) {
    // max/min return their second operand when one is NaN: NaN passes.
    const F c = vmin(vset(88.8f), vmax(vset(-88.0f), x));
    const F n = vfloat(vround(c * vset(1.44269504f)));
    F r = vfma(n, vset(-0.693359375f), c);
    r = vfma(n, vset(2.12194440e-4f), r);
    F p = vfma(vset(1.9875691500e-4f), r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(p * r, r, r) + vset(1.0f);
    // 2^n in two factors: n reaches 128.
    const I half = vround(n * vset(0.5f));
    const I rest = isub(vround(n), half);
    const F y = p * as_f(isll<23>(iadd(half, iset(127)))) * as_f(isll<23>(iadd(rest, iset(127))));
    return vsel(vlt(x, vset(-87.3f)), vzero(), y);
}

DI_INLINE F vsigmoid(F x) {
    return vset(1.0f) / (vset(1.0f) + vexp(vzero() - x));
}

/// One value through the vector function: lanes are independent, so the bits are the same.
DI_INLINE float first_lane(F v) {
    float t[kLanes];
    vstore(t, v);
    return t[0];
}

}  // namespace
}  // namespace deepinfer::cpu
