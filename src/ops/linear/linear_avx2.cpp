// GEMM kernels at the avx2 level. The sums are those of kernels/gemm_inl.h (same chains, same
// bits); what differs is how weights are stored and widened: AVX2 has no permute that looks up 16
// floats, so codes become bf16 words by byte look-ups and interleaves, and a word is half a float
// away.
#include "backends/cpu/kernels/gemm_inl.h"

namespace deepinfer::cpu {
namespace {

/// bf16 words → floats, even words and odd words.
DI_INLINE void split_words(I words, F* even, F* odd) {
    *even = as_f(isll<16>(words));
    *odd = as_f(iand(words, iset(static_cast<int32_t>(0xFFFF0000u))));
}

/// Asks the L2 cache for what lies kAhead behind p, once a cache line.
constexpr int64_t kAhead = 4096;
template <int kBytes>
DI_INLINE void prefetch_ahead(const uint8_t* p) {
    DI_UNROLL
    for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + i), _MM_HINT_T1);
}

// ---- formats: a step is two k of all rows, unscaled

/// Bits of bf16 numbers at their place, then the exponent's bias: right for every code but zeros
/// and subnormals, which mark their block.
struct Fp8Any;
struct Fp8Words {
    using Any = Fp8Any;  // for marked blocks in registers
    static constexpr int kStepBytes = 64;
    static DI_INLINE const uint8_t* codes(const uint8_t* panel, int64_t k, int64_t kb) {
        return panel + scale_bytes(k, 2) + kb * (kBlockK * kPanelRows);
    }
    static DI_INLINE F32x32 scale(const uint8_t* panel, int64_t kb) {
        const F s = vset(scale_value(panel[kb], 0));
        return {{s, s, s, s}};
    }
    static DI_INLINE void row(const uint8_t* p, F* w) {
        const I v = iload(p), mask = _mm256_set1_epi16(static_cast<int16_t>(0x87F0)),
                bias = _mm256_set1_epi16(120 << 7);
        const auto value = [&](I code) __attribute__((always_inline)) {  // code at the top
            return _mm256_add_epi16(iand(_mm256_srai_epi16(code, 4), mask), bias);
        };
        split_words(value(_mm256_slli_epi16(v, 8)), w, w + 1);
        split_words(value(v), w + 2, w + 3);
    }
    static DI_INLINE void step(const uint8_t* p, F* w0, F* w1) {
        row(p, w0);
        row(p + 32, w1);
    }
    static DI_INLINE void put_in_order(F*) {}
    static DI_INLINE bool marked(const uint8_t* panel, int64_t k, int64_t kb) {
        return panel[k / kBlockK + kb] != 0;
    }
    /// Puts the zeros and subnormals of a k right: one or two in a block, mostly.
    static DI_INLINE void mend(const uint8_t* p, float scale, float* out) {
        const I small = _mm256_cmpeq_epi8(iand(iload(p), _mm256_set1_epi8(0x78)), iset(0));
        for (uint32_t m = static_cast<uint32_t>(_mm256_movemask_epi8(small)); m != 0; m &= m - 1) {
            const int i = __builtin_ctz(m);
            out[i / 4 + (i & 1) * 16 + (i & 2) * 4] = kFp8Table.value[p[i]] * scale;
        }
    }
};

/// The same weights through half precision, which has the subnormals (and an exponent 8 too small).
/// Rows come out as words 0 .. 7 and 8 .. 15 of each byte; put_in_order makes them 0 .. 31.
struct Fp8Any : Fp8Words {
    static DI_INLINE void row(const uint8_t* p, F* w) {
        const I v = iload(p), mask = _mm256_set1_epi16(static_cast<int16_t>(0xBF80));
        const auto value = [&](I code, F * out) __attribute__((always_inline)) {
            const I h = iand(_mm256_srai_epi16(code, 1), mask);
            out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
            out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
        };
        value(_mm256_slli_epi16(v, 8), w);
        value(v, w + 2);
    }
    static DI_INLINE void step(const uint8_t* p, F* w0, F* w1) {
        row(p, w0);
        row(p + 32, w1);
    }
    static DI_INLINE F32x32 scale(const uint8_t* panel, int64_t kb) {
        const F s = vset(scale_value(panel[kb], 8));
        return {{s, s, s, s}};
    }
    static DI_INLINE void put_in_order(F* v) {
        DI_UNROLL
        for (int i = 0; i < kV; i += 2) {
            const F even = _mm256_shuffle_ps(v[i], v[i + 1], 0x88),
                    odd = _mm256_shuffle_ps(v[i], v[i + 1], 0xDD);
            v[i] = as_f(_mm256_permute4x64_epi64(as_i(even), 0xD8));
            v[i + 1] = as_f(_mm256_permute4x64_epi64(as_i(odd), 0xD8));
        }
    }
};

/// kFp4Bytes: high and low byte of the bf16 number by a look-up each.
struct Fp4Bytes {
    using Any = Fp4Bytes;
    static constexpr int kStepBytes = 32;
    static DI_INLINE const uint8_t* codes(const uint8_t* panel, int64_t k, int64_t kb) {
        return panel + scale_bytes(k, kPanelRows) + kb * (kBlockK * 16);
    }
    static DI_INLINE F32x32 scale(const uint8_t* panel, int64_t kb) {
        return Fp4Panel::scale(panel + kb * kPanelRows);
    }
    static DI_INLINE void row(I nibbles, F* w) {
        const I high = _mm256_broadcastsi128_si256(
                    _mm_set_epi64x(static_cast<int64_t>(kFp4HighBytes[1]),
                                   static_cast<int64_t>(kFp4HighBytes[0]))),
                low = _mm256_set1_epi64x(static_cast<int64_t>(kFp4LowBytes));
        const I h = _mm256_shuffle_epi8(high, nibbles), l = _mm256_shuffle_epi8(low, nibbles);
        split_words(_mm256_unpacklo_epi8(l, h), w, w + 1);
        split_words(_mm256_unpackhi_epi8(l, h), w + 2, w + 3);
    }
    static DI_INLINE void step(const uint8_t* p, F* w0, F* w1) {
        const I v = iload(p), mask = _mm256_set1_epi8(15);
        row(iand(v, mask), w0);
        row(iand(_mm256_srli_epi16(v, 4), mask), w1);
    }
    static DI_INLINE void put_in_order(F*) {}
    static DI_INLINE bool marked(const uint8_t*, int64_t, int64_t) { return false; }
    static DI_INLINE void mend(const uint8_t*, float, float*) {}
};

/// A block, widened and scaled.
template <typename Format>
DI_INLINE void widen_tile(const GemmArgs& a, int64_t kb, float* tile) {
    const uint8_t* codes = Format::codes(a.panel, a.k, kb);
    const F32x32 s = Format::scale(a.panel, kb);
    for (int k = 0; k < kBlockK; k += 2) {
        prefetch_ahead<Format::kStepBytes>(codes + k / 2 * Format::kStepBytes);
        F w[2][kV];
        Format::step(codes + k / 2 * Format::kStepBytes, w[0], w[1]);
        DI_UNROLL
        for (int j = 0; j < 2; ++j) {
            DI_UNROLL
            for (int i = 0; i < kV; ++i)
                vstore(tile + (k + j) * kPanelRows + i * kLanes, w[j][i] * s.v[i]);
        }
    }
    if (!Format::marked(a.panel, a.k, kb)) return;
    for (int k = 0; k < kBlockK; ++k)
        Format::mend(codes + k * kPanelRows, _mm256_cvtss_f32(s.v[0]), tile + k * kPanelRows);
}

/// c += the chains of a block: 32 products each, from zero, in ascending k. Widens in registers.
template <typename Format, int R>
DI_INLINE void add_block(const GemmArgs& a, int64_t kb) {
    const uint8_t* codes = Format::codes(a.panel, a.k, kb);
    const float* x = a.x + kb * a.step;
    constexpr int kAtOnce = 2;  // steps; all sixteen at once leave the compiler without registers
    F p[R][kV];
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int i = 0; i < kV; ++i) p[r][i] = vzero();
    }
    for (int k = 0; k < kBlockK; k += 2 * kAtOnce) {
        prefetch_ahead<kAtOnce * Format::kStepBytes>(codes);
        DI_UNROLL
        for (int s = 0; s < kAtOnce; ++s) {
            F w[2][kV];
            Format::step(codes, w[0], w[1]);
            DI_UNROLL
            for (int j = 0; j < 2; ++j) {
                DI_UNROLL
                for (int r = 0; r < R; ++r) {
                    const F v = vset(x[r * a.ldx + k + 2 * s + j]);
                    DI_UNROLL
                    for (int i = 0; i < kV; ++i) add_product(p[r][i], v, w[j][i]);
                }
            }
            codes += Format::kStepBytes;
        }
    }
    const F32x32 s = Format::scale(a.panel, kb);
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        Format::put_in_order(p[r]);
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
            // The product is exact (power of two): one rounding with or without FMA.
            float* d = a.c + r * kPanelRows + i * kLanes;
            vstore(d, vfma(p[r][i], s.v[i], vload(d)));
        }
    }
}

/// One or two rows.
template <typename Format, int R>
void few_rows(const GemmArgs& a) {
    for (int64_t i = 0; i < R * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        if (Format::marked(a.panel, a.k, kb)) {
            add_block<typename Format::Any, R>(a, kb);
        } else {
            add_block<Format, R>(a, kb);
        }
    }
}

template <typename Format>
void many_rows(const GemmArgs& a) {
    alignas(64) float tile[kBlockK * kPanelRows];
    for (int64_t i = 0; i < a.num_rows * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        widen_tile<Format>(a, kb, tile);
        tile_all(a.x + kb * a.step, a.ldx, a.num_rows, tile, a.c);
    }
}

template <typename Format>
void gemm_avx2(const GemmArgs& a) {
    if (a.num_rows == 1) return few_rows<Format, 1>(a);
    if (a.num_rows == 2) return few_rows<Format, 2>(a);
    many_rows<Format>(a);
}

}  // namespace

extern const LinearKernels kLinear_avx2;
const LinearKernels kLinear_avx2 = {
    &gemm_avx2<Fp8Words>, &gemm_avx2<Fp4Bytes>, &gemm<Bf16Panel>, &gemm_f32, false};
extern const RoofKernels kRoof_avx2;
const RoofKernels kRoof_avx2 = roof_kernels();

}  // namespace deepinfer::cpu
