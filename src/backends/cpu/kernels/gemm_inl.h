// GEMM over packed panels by outer products: broadcast one activation, multiply 32 weights.
//
// Included once per ISA file. Every output element has one chain: 32 products of a k block in
// ascending k from zero, then that partial sum is added to c. A power-of-two scale applied to the
// weights or to the partial sum gives the same bits, so few rows widen in registers (`gemm_few`)
// and many rows widen a 32 × 32 tile once into L1 (`gemm_many`).
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace deepinfer::cpu {
namespace {

constexpr int kV = kPanelRows / kLanes;  // vectors per panel row

struct F32x32 {
    F v[kV];
};

struct Fp8Tables {
    float value[256];
};
struct Fp4Tables {
    float value[16];
};

constexpr float pow2(int e) {
    float r = 1.0f;
    for (int i = 0; i < e; ++i) r *= 2.0f;
    for (int i = 0; i > e; --i) r *= 0.5f;
    return r;
}
constexpr float fp8_value(int code) {
    const int mag = code & 127, e = mag >> 3, m = mag & 7;
    const float v = e == 0 ? static_cast<float>(m) * pow2(-9)
                           : (1.0f + static_cast<float>(m) / 8.0f) * pow2(e - 7);
    return (code & 128) != 0 ? -v : v;
}
constexpr Fp8Tables make_fp8() {
    Fp8Tables t{};
    for (int c = 0; c < 256; ++c) t.value[c] = fp8_value(c);
    return t;
}
// Codes 0x7F and 0xFF (NaN) do not reach the kernels: pack.cpp leaves such weights to the twin.
constexpr Fp8Tables kFp8Table = make_fp8();
alignas(64) constexpr Fp4Tables kFp4Table = {{0.0f,
                                              0.5f,
                                              1.0f,
                                              1.5f,
                                              2.0f,
                                              3.0f,
                                              4.0f,
                                              6.0f,
                                              0.0f,
                                              -0.5f,
                                              -1.0f,
                                              -1.5f,
                                              -2.0f,
                                              -3.0f,
                                              -4.0f,
                                              -6.0f}};

/// The same numbers as bf16, high and low bytes apart, for byte look-ups: codes 0 .. 7 and 8 .. 15.
constexpr uint64_t kFp4HighBytes[2] = {0x404040403F3F3F00, 0xC0C0C0C0BFBFBF00};
constexpr uint64_t kFp4LowBytes = 0xC0804000C0800000;  // of both

/// 2^(byte - 127) · 2^extra. Packed scales are in 27..227 (pack.cpp), so this never leaves the
/// normals.
DI_INLINE float scale_value(uint8_t byte, int extra) {
    const int32_t u = (static_cast<int32_t>(byte) + extra) << 23;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

// ---- formats: one weight row k of a 32 × 32 block, unscaled, and the block's scales
// ----------------

struct Fp8Panel {
    static constexpr int kBlockBytes = 32 * kBlockK;
    static constexpr int kScaleBytes = 1;
    static constexpr bool kScaled = true;

    static DI_INLINE F32x32 row(const uint8_t* block, int k) {
        const uint8_t* p = block + 32 * k;
        F32x32 r;
#if defined(__AVX512F__)
        // e4m3 s eeee mmm at the top of a word, shifted right by one arithmetically, bit 14
        // cleared: a half-precision number with the exponent 8 too small, subnormals included.
        const __m512i w =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        const __m512i h = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 1),
                                           _mm512_set1_epi16(static_cast<int16_t>(0xBF80)));
        r.v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
        r.v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
#elif defined(__AVX2__)
        DI_UNROLL
        for (int i = 0; i < 2; ++i) {
            const __m256i w =
                _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i)));
            const __m256i h = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 1),
                                               _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
            r.v[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
            r.v[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
        }
#else
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
            const float* t = kFp8Table.value;
            r.v[i] = _mm_setr_ps(t[p[4 * i]], t[p[4 * i + 1]], t[p[4 * i + 2]], t[p[4 * i + 3]]);
        }
#endif
        return r;
    }
    static DI_INLINE F32x32 scale(const uint8_t* scales) {
#if defined(__AVX2__)
        const F s = vset(scale_value(*scales, 8));  // the exponent that row() left out
#else
        const F s = vset(scale_value(*scales, 0));
#endif
        F32x32 r;
        DI_UNROLL
        for (int i = 0; i < kV; ++i) r.v[i] = s;
        return r;
    }
};

struct Fp4Panel {
    static constexpr int kBlockBytes = 16 * kBlockK;
    static constexpr int kScaleBytes = 32;
    static constexpr bool kScaled = true;

#if defined(__AVX512F__) || !defined(__AVX2__)  // AVX2 stores FP4 in its own form
    static DI_INLINE F32x32 row(const uint8_t* block, int k) {
        const uint8_t* p = block + (k >> 3) * 128;
        const int shift = ((k & 7) >> 1) * 4 + (k & 1) * 16;
        F32x32 r;
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
#if defined(__AVX512F__)
            const I d = _mm512_srl_epi32(iload(p + 4 * kLanes * i), _mm_cvtsi32_si128(shift));
            r.v[i] = _mm512_permutexvar_ps(d, vload(kFp4Table.value));
#else
            const float* t = kFp4Table.value;
            uint32_t w[4];
            __builtin_memcpy(w, p + 16 * i, 16);
            r.v[i] = _mm_setr_ps(t[(w[0] >> shift) & 15u],
                                 t[(w[1] >> shift) & 15u],
                                 t[(w[2] >> shift) & 15u],
                                 t[(w[3] >> shift) & 15u]);
#endif
        }
        return r;
    }
#endif
    static DI_INLINE F32x32 scale(const uint8_t* scales) {
        F32x32 r;
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
#if defined(__AVX512F__)
            r.v[i] = as_f(isll<23>(_mm512_cvtepu8_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * i)))));
#elif defined(__AVX2__)
            r.v[i] = as_f(isll<23>(_mm256_cvtepu8_epi32(
                _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + 8 * i)))));
#else
            const uint8_t* s = scales + 4 * i;
            r.v[i] = as_f(isll<23>(_mm_setr_epi32(s[0], s[1], s[2], s[3])));
#endif
        }
        return r;
    }
};

struct Bf16Panel {
    static constexpr bool kScaled = false;
    static constexpr int kScaleBytes = 0;
    // Halves are k · 32 bytes apart, so the block address alone is not enough: see block().
    static DI_INLINE F32x32 row(const uint8_t* half0, const uint8_t* half1, int k) {
        F32x32 r;
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
            const int lane = i * kLanes;
            const uint8_t* p = (lane < 16 ? half0 : half1) + (k >> 1) * 64 + 4 * (lane & 15);
            const I d = iload(p);
            r.v[i] =
                as_f((k & 1) == 0 ? isll<16>(d) : iand(d, iset(static_cast<int32_t>(0xFFFF0000u))));
        }
        return r;
    }
};

/// Where the blocks of a panel are, for every format behind one face.
template <typename Format>
struct Blocks {
    const uint8_t* panel;
    int64_t k;
    DI_INLINE F32x32 row(int64_t kb, int i) const {
        return Format::row(panel + scale_bytes(k, Format::kScaleBytes) + kb * Format::kBlockBytes,
                           i);
    }
    DI_INLINE F32x32 scale(int64_t kb) const {
        return Format::scale(panel + kb * Format::kScaleBytes);
    }
};
template <>
struct Blocks<Bf16Panel> {
    const uint8_t* panel;
    int64_t k;
    DI_INLINE F32x32 row(int64_t kb, int i) const {
        const uint8_t* h0 = panel + kb * (kBlockK * 32);
        return Bf16Panel::row(h0, h0 + k * 32, i);
    }
};

// ---- many rows: tile in L1
// -------------------------------------------------------------------------

/// c[r, :] += Σ_{i < 32} x[r, i] · tile[i, :] for R rows.
template <int R>
DI_INLINE void tile_rows(const float* x, int64_t ldx, const float* tile, float* c) {
    constexpr int kChunk = kV > 4 ? 4 : kV;  // the baseline's 8 vectors do not fit its registers
    DI_UNROLL
    for (int first = 0; first < kV; first += kChunk) {
        F p[R][kChunk];
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            DI_UNROLL
            for (int i = 0; i < kChunk; ++i) p[r][i] = vzero();
        }
        for (int k = 0; k < kBlockK; ++k) {
            // The fewer of the two stay in registers beside the sums, the others come in turn.
            if constexpr (R < kChunk) {
                F a[R];
                DI_UNROLL
                for (int r = 0; r < R; ++r) a[r] = vset(x[r * ldx + k]);
                DI_UNROLL
                for (int i = 0; i < kChunk; ++i) {
                    const F w = vload(tile + kPanelRows * k + (first + i) * kLanes);
                    DI_UNROLL
                    for (int r = 0; r < R; ++r) add_product(p[r][i], a[r], w);
                }
            } else {
                F w[kChunk];
                DI_UNROLL
                for (int i = 0; i < kChunk; ++i)
                    w[i] = vload(tile + kPanelRows * k + (first + i) * kLanes);
                DI_UNROLL
                for (int r = 0; r < R; ++r) {
                    const F a = vset(x[r * ldx + k]);
                    DI_UNROLL
                    for (int i = 0; i < kChunk; ++i) add_product(p[r][i], a, w[i]);
                }
            }
        }
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            DI_UNROLL
            for (int i = 0; i < kChunk; ++i) {
                float* d = c + r * kPanelRows + (first + i) * kLanes;
                vstore(d, vload(d) + p[r][i]);
            }
        }
    }
}

DI_INLINE void tile_all(
    const float* x, int64_t ldx, int64_t num_rows, const float* tile, float* c) {
    constexpr int kMax = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 2;
    int64_t r = 0;
    // Four rows at the end of AVX2 go as two and two: one row alone waits for its own sums.
    for (; r + kMax <= num_rows && (kMax != 3 || r + 4 != num_rows); r += kMax)
        tile_rows<kMax>(x + r * ldx, ldx, tile, c + r * kPanelRows);
    if constexpr (kMax == 12) {
        if (r + 8 <= num_rows) {
            tile_rows<8>(x + r * ldx, ldx, tile, c + r * kPanelRows);
            r += 8;
        }
        if (r + 4 <= num_rows) {
            tile_rows<4>(x + r * ldx, ldx, tile, c + r * kPanelRows);
            r += 4;
        }
    }
    while (r + 2 <= num_rows) {
        tile_rows<2>(x + r * ldx, ldx, tile, c + r * kPanelRows);
        r += 2;
    }
    if (r < num_rows) tile_rows<1>(x + r * ldx, ldx, tile, c + r * kPanelRows);
}

template <typename Format>
void gemm_many(const GemmArgs& a) {
    alignas(64) float tile[kBlockK * kPanelRows];
    const Blocks<Format> blocks{a.panel, a.k};
    for (int64_t i = 0; i < a.num_rows * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        if constexpr (Format::kScaled) {
            const F32x32 s = blocks.scale(kb);
            DI_UNROLL
            for (int k = 0; k < kBlockK; ++k) {
                const F32x32 w = blocks.row(kb, k);
                DI_UNROLL
                for (int i = 0; i < kV; ++i)
                    vstore(tile + kPanelRows * k + i * kLanes, w.v[i] * s.v[i]);
            }
        } else {
            DI_UNROLL
            for (int k = 0; k < kBlockK; ++k) {
                const F32x32 w = blocks.row(kb, k);
                DI_UNROLL
                for (int i = 0; i < kV; ++i) vstore(tile + kPanelRows * k + i * kLanes, w.v[i]);
            }
        }
        tile_all(a.x + kb * a.step, a.ldx, a.num_rows, tile, a.c);
    }
}

// ---- few rows: widen in registers
// ------------------------------------------------------------------

/// c += the chains of N blocks from kb on. Two at once hide the latency of their products.
template <typename Format, int R, int N>
DI_INLINE void few_blocks(const GemmArgs& a, const Blocks<Format>& blocks, int64_t kb, F (*c)[kV]) {
    F p[N][R][kV];
    DI_UNROLL
    for (int n = 0; n < N; ++n) {
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            DI_UNROLL
            for (int i = 0; i < kV; ++i) p[n][r][i] = vzero();
        }
    }
    DI_UNROLL
    for (int k = 0; k < kBlockK; ++k) {
        DI_UNROLL
        for (int n = 0; n < N; ++n) {
            const F32x32 w = blocks.row(kb + n, k);
            DI_UNROLL
            for (int r = 0; r < R; ++r) {
                const F v = vset(a.x[(kb + n) * a.step + r * a.ldx + k]);
                DI_UNROLL
                for (int i = 0; i < kV; ++i) p[n][r][i] = vfma(v, w.v[i], p[n][r][i]);
            }
        }
    }
    DI_UNROLL
    for (int n = 0; n < N; ++n) {
        if constexpr (Format::kScaled) {
            const F32x32 s = blocks.scale(kb + n);
            DI_UNROLL
            for (int r = 0; r < R; ++r) {
                // The product is exact (power of two): one rounding with or without FMA.
                DI_UNROLL
                for (int i = 0; i < kV; ++i) c[r][i] = vfma(p[n][r][i], s.v[i], c[r][i]);
            }
        } else {
            DI_UNROLL
            for (int r = 0; r < R; ++r) {
                DI_UNROLL
                for (int i = 0; i < kV; ++i) c[r][i] = c[r][i] + p[n][r][i];
            }
        }
    }
}

template <typename Format, int R>
void gemm_few(const GemmArgs& a) {
    const Blocks<Format> blocks{a.panel, a.k};
    const int64_t num_blocks = a.k / kBlockK;
    F c[R][kV];
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int i = 0; i < kV; ++i) c[r][i] = vzero();
    }
    constexpr int kAtOnce = kLanes == 16 ? 2 : 1;  // registers
    int64_t kb = 0;
    for (; kb + kAtOnce <= num_blocks; kb += kAtOnce)
        few_blocks<Format, R, kAtOnce>(a, blocks, kb, c);
    if (kb < num_blocks) few_blocks<Format, R, 1>(a, blocks, kb, c);
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int i = 0; i < kV; ++i) vstore(a.c + r * kPanelRows + i * kLanes, c[r][i]);
    }
}

template <typename Format>
void gemm(const GemmArgs& a) {
    if (kLanes >= 8 && a.num_rows == 1) return gemm_few<Format, 1>(a);
    if (kLanes == 16 && a.num_rows == 2) return gemm_few<Format, 2>(a);
    gemm_many<Format>(a);
}

inline void gemm_f32(const GemmArgs& a) {
    for (int64_t i = 0; i < a.num_rows * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    const float* w = reinterpret_cast<const float*>(a.panel);
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        tile_all(a.x + kb * a.step, a.ldx, a.num_rows, w + kb * kBlockK * kPanelRows, a.c);
    }
}

/// Independent chains that hide the latency of an FMA.
inline double dot_roof() {
    constexpr int kChains = kLanes == 16 ? 24 : 12, kRounds = 20000;
    F acc[kChains];
    F a = vset(1.0f), b = vset(0.5f);
    __asm__ volatile("" : "+x"(a), "+x"(b));  // values that the compiler cannot fold
    DI_UNROLL
    for (int i = 0; i < kChains; ++i) acc[i] = vset(static_cast<float>(i));
    for (int r = 0; r < kRounds; ++r) {
        DI_UNROLL
        for (int i = 0; i < kChains; ++i) acc[i] = vfma(a, b, acc[i]);
        __asm__ volatile("" ::: "memory");
    }
    F sum = vzero();
    DI_UNROLL
    for (int i = 0; i < kChains; ++i) sum = sum + acc[i];
    __asm__ volatile("" ::"x"(sum));
    return 2.0 * kRounds * kChains * kLanes;
}

inline float read_roof(const uint8_t* p, int64_t bytes) {
    I s[4] = {iset(0), iset(0), iset(0), iset(0)};
    constexpr int64_t kVector = kLanes * 4;
    for (int64_t i = 0; i < bytes; i += 4 * kVector) {
        DI_UNROLL
        for (int j = 0; j < 4; ++j) s[j] = ior(s[j], iload(p + i + j * kVector));
    }
    return first_lane(as_f(iand(ior(ior(s[0], s[1]), ior(s[2], s[3])), iset(0x3F000000))));
}

constexpr RoofKernels roof_kernels() {
    return {&dot_roof, &read_roof};
}

#if defined(__AVX512F__) || !defined(__AVX2__)  // linear_avx2.cpp has its own
constexpr LinearKernels linear_kernels() {
    return {&gemm<Fp8Panel>, &gemm<Fp4Panel>, &gemm<Bf16Panel>, &gemm_f32, false};
}
#endif

}  // namespace
}  // namespace deepinfer::cpu
