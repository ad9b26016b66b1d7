// GEMM on vdpbf16ps: weights are widened to bf16 pairs without their scale, a block of 32 k is
// summed from zero, and the block's sum times the scale is added to the output.
//
// One class for every row count: one and two rows take the widened pairs from registers, more rows
// from a tile in L1 that was widened once; the products and sums of a row are the same. The scale
// stays out of the products because vdpbf16ps flushes denormals: a scale folded into the weight
// could move a product across that border and 32 rows would differ from one.
#include "backends/cpu/kernels/gemm_inl.h"

namespace deepinfer::cpu {
namespace {

template <int N>
struct Rows {
    static constexpr int value = N;
};

constexpr int kPairs = kBlockK / 2;  // bf16 pairs of a block
constexpr int kSteps = 2 * kPairs;   // vectors of a block: both halves of the panel

DI_INLINE F dot(F acc, I a, I b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// Two neighbouring activations in every lane.
DI_INLINE I pair_of(const uint16_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return iset(v);
}

/// Asks for the `bytes` that lie `kAhead` behind p: hardware prefetchers stop at every 4 KiB page,
/// and panels of small weights are hardly longer. Behind the last panel of a weight lies the next
/// one.
constexpr int64_t kAhead = 2048;
template <int kBytes>
DI_INLINE void prefetch_ahead(const uint8_t* p) {
    DI_UNROLL
    for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + i), _MM_HINT_T0);
}

/// The pairs of a block: out(p, half, vector) for every pair p of both halves.
struct Fp8Pairs {
    static constexpr bool kScaled = true;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t k, int64_t kb) {
        prefetch_ahead<kBlockK * 16>(panel + kb * (kBlockK * 16));
        prefetch_ahead<kBlockK * 16>(panel + k * 16 + kb * (kBlockK * 16));
    }
    template <typename Out>
    static DI_INLINE void block(const uint8_t* panel, int64_t k, int64_t kb, const Out& out) {
        if (panel[k * kPanelRows + k / kBlockK + kb] != 0) {
            widen<true>(panel, k, kb, out);
        } else {
            widen<false>(panel, k, kb, out);
        }
    }
    static DI_INLINE void scales(const uint8_t* panel, int64_t k, int64_t kb, F* s) {
        s[0] = s[1] = vset(scale_value(panel[k * kPanelRows + kb], 0));
    }

  private:
    /// 16-bit words with a code in the upper byte, shifted right by four: s....eeee.mmm.... A
    /// normal code is a bf16 number with another exponent bias; the eight others come from a table.
    template <bool kSubnormals>
    static DI_INLINE I bf16_of(I shifted) {
        const I bits = iand(shifted, _mm512_set1_epi16(static_cast<int16_t>(0x87F0)));
        I v = _mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7));
        if constexpr (kSubnormals) {
            // bf16 of m · 2^-9, four times: vpermw reads five index bits, the upper two are zero.
            const I table = _mm512_broadcast_i32x4(
                _mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
            const __mmask32 sub = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x0780));
            v = _mm512_mask_permutexvar_epi16(v, sub, _mm512_srli_epi16(bits, 4), table);
            v = _mm512_ternarylogic_epi32(v,
                                          bits,
                                          _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                          0xF8);  // v | (bits & sign)
        }
        return v;
    }
    template <bool kSubnormals, typename Out>
    static DI_INLINE void widen(const uint8_t* panel, int64_t k, int64_t kb, const Out& out) {
        DI_UNROLL
        for (int g = 0; g < kPairs / 2; ++g) {
            DI_UNROLL
            for (int half = 0; half < 2; ++half) {
                const I high = iload(panel + half * k * 16 + kb * (kBlockK * 16) + 64 * g);
                const I low = _mm512_slli_epi16(high, 8);
                out(2 * g, half, bf16_of<kSubnormals>(_mm512_srai_epi16(low, 4)));
                out(2 * g + 1, half, bf16_of<kSubnormals>(_mm512_srai_epi16(high, 4)));
            }
        }
    }
};

struct Fp4Pairs {
    static constexpr bool kScaled = true;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t, int64_t kb) {
        prefetch_ahead<kBlockK * 16>(panel + kb * (kBlockK * 16));
    }
    template <typename Out>
    static DI_INLINE void block(const uint8_t* panel, int64_t, int64_t kb, const Out& out) {
        // Twice: vpermw reads five index bits, the upper one belongs to a neighbour.
        const I table = _mm512_broadcast_i64x4(_mm256_setr_epi16(0x0000,
                                                                 0x3F00,
                                                                 0x3F80,
                                                                 0x3FC0,
                                                                 0x4000,
                                                                 0x4040,
                                                                 0x4080,
                                                                 0x40C0,
                                                                 0x0000,
                                                                 static_cast<int16_t>(0xBF00),
                                                                 static_cast<int16_t>(0xBF80),
                                                                 static_cast<int16_t>(0xBFC0),
                                                                 static_cast<int16_t>(0xC000),
                                                                 static_cast<int16_t>(0xC040),
                                                                 static_cast<int16_t>(0xC080),
                                                                 static_cast<int16_t>(0xC0C0)));
        const uint8_t* src = panel + kb * (kBlockK * 16);
        DI_UNROLL
        for (int g = 0; g < 4; ++g) {
            I d[2] = {iload(src + 128 * g), iload(src + 128 * g + 64)};
            DI_UNROLL
            for (int t = 0; t < 4; ++t) {
                DI_UNROLL
                for (int half = 0; half < 2; ++half) {
                    out(4 * g + t, half, _mm512_permutexvar_epi16(d[half], table));
                    d[half] = isrl<4>(d[half]);
                }
            }
        }
    }
    static DI_INLINE void scales(const uint8_t* panel, int64_t k, int64_t kb, F* s) {
        const F32x32 v = Fp4Panel::scale(panel + k * 16 + kb * kPanelRows);
        s[0] = v.v[0];
        s[1] = v.v[1];
    }
};

struct Bf16Pairs {
    static constexpr bool kScaled = false;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t k, int64_t kb) {
        prefetch_ahead<kPairs * 64>(panel + kb * (kPairs * 64));
        prefetch_ahead<kPairs * 64>(panel + k * 32 + kb * (kPairs * 64));
    }
    template <typename Out>
    static DI_INLINE void block(const uint8_t* panel, int64_t k, int64_t kb, const Out& out) {
        const uint8_t* src = panel + kb * (kPairs * 64);
        DI_UNROLL
        for (int p = 0; p < kPairs; ++p) {
            out(p, 0, iload(src + 64 * p));
            out(p, 1, iload(src + k * 32 + 64 * p));
        }
    }
    static DI_INLINE void scales(const uint8_t*, int64_t, int64_t, F*) {}
};

/// c += p · s, or c + p where the format has no scale.
template <bool kScaled>
DI_INLINE F add_block(F c, F p, F s) {
    return kScaled ? vfma(p, s, c) : c + p;
}

/// Rows that take the pairs from registers.
template <typename Format, int R>
void few_rows(const GemmArgs& a) {
    F c[R][2];
    DI_UNROLL
    for (int r = 0; r < R; ++r) c[r][0] = c[r][1] = vzero();
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        const uint16_t* x = a.x_bf16 + kb * kBlockK;
        F p[R][2];
        DI_UNROLL
        for (int r = 0; r < R; ++r) p[r][0] = p[r][1] = vzero();
        Format::prefetch(a.panel, a.k, kb);
        Format::block(
            a.panel, a.k, kb, [&](int pair, int half, I w) __attribute__((always_inline)) {
                DI_UNROLL
                for (int r = 0; r < R; ++r)
                    p[r][half] = dot(p[r][half], w, pair_of(x + r * a.ldx + 2 * pair));
            });
        F s[2] = {};
        Format::scales(a.panel, a.k, kb, s);
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            c[r][0] = add_block<Format::kScaled>(c[r][0], p[r][0], s[0]);
            c[r][1] = add_block<Format::kScaled>(c[r][1], p[r][1], s[1]);
        }
    }
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        vstore(a.c + r * kPanelRows, c[r][0]);
        vstore(a.c + r * kPanelRows + kLanes, c[r][1]);
    }
}

/// R rows against the 32 vectors of a widened block.
template <bool kScaled, int R>
DI_INLINE void block_rows(const uint16_t* x, int64_t ldx, const I* tile, const F* s, float* c) {
    F p[R][2];
    DI_UNROLL
    for (int r = 0; r < R; ++r) p[r][0] = p[r][1] = vzero();
    for (int pair = 0; pair < kPairs; ++pair) {
        const I w0 = iload(tile + 2 * pair), w1 = iload(tile + 2 * pair + 1);
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            const I v = pair_of(x + r * ldx + 2 * pair);
            p[r][0] = dot(p[r][0], w0, v);
            p[r][1] = dot(p[r][1], w1, v);
        }
    }
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int half = 0; half < 2; ++half) {
            float* d = c + r * kPanelRows + half * kLanes;
            vstore(d, add_block<kScaled>(vload(d), p[r][half], s[half]));
        }
    }
}

template <typename Format>
void many_rows(const GemmArgs& a) {
    alignas(64) I tile[kSteps];
    for (int64_t i = 0; i < a.num_rows * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        Format::block(
            a.panel, a.k, kb, [&](int pair, int half, I w) __attribute__((always_inline)) {
                _mm512_store_si512(tile + 2 * pair + half, w);
            });
        F s[2] = {};
        Format::scales(a.panel, a.k, kb, s);
        const uint16_t* x = a.x_bf16 + kb * kBlockK;
        int64_t r = 0;
        const auto run = [&](auto rows) __attribute__((always_inline)) {
            constexpr int kRows = decltype(rows)::value;
            block_rows<Format::kScaled, kRows>(x + r * a.ldx, a.ldx, tile, s, a.c + r * kPanelRows);
            r += kRows;
        };
        while (r + 12 <= a.num_rows) run(Rows<12>{});
        if (r + 8 <= a.num_rows) run(Rows<8>{});
        if (r + 4 <= a.num_rows) run(Rows<4>{});
        if (r + 2 <= a.num_rows) run(Rows<2>{});
        if (r < a.num_rows) run(Rows<1>{});
    }
}

template <typename Format>
void gemm_bf16(const GemmArgs& a) {
    if (a.num_rows == 1) return few_rows<Format, 1>(a);
    if (a.num_rows == 2) return few_rows<Format, 2>(a);
    if (a.num_rows == 3) return few_rows<Format, 3>(a);
    if (a.num_rows == 4) return few_rows<Format, 4>(a);
    many_rows<Format>(a);
}

double dot_roof16() {
    constexpr int kChains = 24, kRounds = 20000;
    F acc[kChains];
    I a = iset(0x3F803F80), b = iset(0x3F003F00);
    __asm__ volatile("" : "+v"(a), "+v"(b));
    DI_UNROLL
    for (int i = 0; i < kChains; ++i) acc[i] = vset(static_cast<float>(i));
    for (int r = 0; r < kRounds; ++r) {
        DI_UNROLL
        for (int i = 0; i < kChains; ++i) acc[i] = dot(acc[i], a, b);
        __asm__ volatile("" ::: "memory");
    }
    F sum = vzero();
    DI_UNROLL
    for (int i = 0; i < kChains; ++i) sum = sum + acc[i];
    __asm__ volatile("" ::"v"(sum));
    return 4.0 * kRounds * kChains * kLanes;
}

}  // namespace

extern const RoofKernels kRoof_avx512bf16;
const RoofKernels kRoof_avx512bf16 = {&dot_roof16, &read_roof};

extern const LinearKernels kLinear_avx512bf16;
const LinearKernels kLinear_avx512bf16 = {
    &gemm_bf16<Fp8Pairs>, &gemm_bf16<Fp4Pairs>, &gemm_bf16<Bf16Pairs>, &gemm_f32, true};

}  // namespace deepinfer::cpu
