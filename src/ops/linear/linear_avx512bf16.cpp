// GEMM on vdpbf16ps: weights are widened to bf16 pairs without their scale, a block of 32 k is
// summed from zero, and the block's sum times the scale is added to the output.
//
// One class for every row count: up to eight rows take the widened pairs from registers, more rows
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

/// Asks the L2 cache for the bytes that lie kAhead behind p: hardware prefetchers stop at every
/// 4 KiB page and follow these loads too closely. Behind the last panel of a weight lies the next
/// one. Requests for L1 would wait for its few miss buffers and stall the loads.
constexpr int64_t kAhead = 12288;
template <int kBytes>
DI_INLINE void prefetch_ahead(const uint8_t* p) {
    DI_UNROLL
    for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + i), _MM_HINT_T1);
}

// bf16 bits of every magnitude code, low and high bytes apart. Code 127 (NaN) is never packed.
struct Fp8Bytes {
    uint8_t low[128];
    uint8_t high[128];
};
constexpr Fp8Bytes make_fp8_bytes() {
    Fp8Bytes t{};
    for (int c = 0; c < 128; ++c) {
        int e = c >> 3, m = c & 7;
        if (e == 0 && m != 0) {  // m · 2^-9, normalized
            for (e = 1; (m & 8) == 0; --e) m *= 2;
        }
        const int bits = c == 0 ? 0 : ((e + 120) << 7) + ((m & 7) << 4);
        t.low[c] = static_cast<uint8_t>(bits & 255);
        t.high[c] = static_cast<uint8_t>(bits >> 8);
    }
    return t;
}
alignas(64) constexpr Fp8Bytes kFp8Bytes = make_fp8_bytes();

/// The pairs of a block: out(p, half, vector) for every pair p of both halves, in kGroups groups.
struct Fp8Pairs {
    static constexpr bool kScaled = true;
    static constexpr int kGroups = kPairs / 2;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t k, int64_t kb) {
        prefetch_ahead<kBlockK * kPanelRows>(codes(panel, k, kb));
    }
    template <typename Out>
    static DI_INLINE void group(
        const uint8_t* panel, int64_t k, int64_t kb, int g, const Out& out) {
        const uint8_t* src = codes(panel, k, kb);
        const I low0 = iload(kFp8Bytes.low), low1 = iload(kFp8Bytes.low + 64),
                high0 = iload(kFp8Bytes.high), high1 = iload(kFp8Bytes.high + 64);
        DI_UNROLL
        for (int half = 0; half < 2; ++half) {
            const I code = iload(src + half * (kBlockK * 16) + 64 * g);
            const I low = _mm512_permutex2var_epi8(low0, code, low1);
            const I high = _mm512_ternarylogic_epi32(  // table | (code & sign)
                _mm512_permutex2var_epi8(high0, code, high1),
                code,
                _mm512_set1_epi8(static_cast<char>(0x80)),
                0xF8);
            out(2 * g, half, _mm512_unpacklo_epi8(low, high));
            out(2 * g + 1, half, _mm512_unpackhi_epi8(low, high));
        }
    }
    static DI_INLINE void scales(const uint8_t* panel, int64_t, int64_t kb, F* s) {
        s[0] = s[1] = vset(scale_value(panel[kb], 0));
    }

  private:
    static DI_INLINE const uint8_t* codes(const uint8_t* panel, int64_t k, int64_t kb) {
        return panel + scale_bytes(k, 1) + kb * (kBlockK * kPanelRows);
    }
};

struct Fp4Pairs {
    static constexpr bool kScaled = true;
    static constexpr int kGroups = 4;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t k, int64_t kb) {
        prefetch_ahead<kBlockK * 16>(codes(panel, k, kb));
    }
    template <typename Out>
    static DI_INLINE void group(
        const uint8_t* panel, int64_t k, int64_t kb, int g, const Out& out) {
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
        const uint8_t* src = codes(panel, k, kb);
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
    static DI_INLINE void scales(const uint8_t* panel, int64_t, int64_t kb, F* s) {
        const F32x32 v = Fp4Panel::scale(panel + kb * kPanelRows);
        s[0] = v.v[0];
        s[1] = v.v[1];
    }

  private:
    static DI_INLINE const uint8_t* codes(const uint8_t* panel, int64_t k, int64_t kb) {
        return panel + scale_bytes(k, kPanelRows) + kb * (kBlockK * 16);
    }
};

struct Bf16Pairs {
    static constexpr bool kScaled = false;
    static constexpr int kGroups = kPairs;
    static DI_INLINE void prefetch(const uint8_t* panel, int64_t k, int64_t kb) {
        prefetch_ahead<kPairs * 64>(panel + kb * (kPairs * 64));
        prefetch_ahead<kPairs * 64>(panel + k * 32 + kb * (kPairs * 64));
    }
    template <typename Out>
    static DI_INLINE void group(
        const uint8_t* panel, int64_t k, int64_t kb, int g, const Out& out) {
        const uint8_t* src = panel + kb * (kPairs * 64) + 64 * g;
        out(g, 0, iload(src));
        out(g, 1, iload(src + k * 32));
    }
    static DI_INLINE void scales(const uint8_t*, int64_t, int64_t, F*) {}
};

/// c += p · s, or c + p where the format has no scale.
template <bool kScaled>
DI_INLINE F add_block(F c, F p, F s) {
    return kScaled ? vfma(p, s, c) : c + p;
}

/// c += the sums of N blocks from kb on; with one or two rows two blocks at once, whose products do
/// not wait for each other. kSums: c are the rows' sums in registers, else they stay in a.c.
template <typename Format, int R, int N, bool kSums>
DI_INLINE void few_blocks(const GemmArgs& a, int64_t kb, F (*c)[2]) {
    F p[N][R][2];
    DI_UNROLL
    for (int n = 0; n < N; ++n) {
        DI_UNROLL
        for (int r = 0; r < R; ++r) p[n][r][0] = p[n][r][1] = vzero();
        // Plain loads of bf16 keep up with the hardware's own prefetching.
        if constexpr (Format::kScaled || R > 2) Format::prefetch(a.panel, a.k, kb + n);
    }
    DI_UNROLL
    for (int g = 0; g < Format::kGroups; ++g) {
        DI_UNROLL
        for (int n = 0; n < N; ++n) {
            const uint16_t* x = a.x_bf16 + (kb + n) * a.step;
            Format::group(
                a.panel,
                a.k,
                kb + n,
                g,
                [&](int pair, int half, I w) __attribute__((always_inline)) {
                    DI_UNROLL
                    for (int r = 0; r < R; ++r)
                        p[n][r][half] = dot(p[n][r][half], w, pair_of(x + r * a.ldx + 2 * pair));
                });
        }
    }
    DI_UNROLL
    for (int n = 0; n < N; ++n) {
        F s[2] = {};
        Format::scales(a.panel, a.k, kb + n, s);
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            DI_UNROLL
            for (int half = 0; half < 2; ++half) {
                if constexpr (kSums) {
                    c[r][half] = add_block<Format::kScaled>(c[r][half], p[n][r][half], s[half]);
                } else {
                    float* d = a.c + r * kPanelRows + half * kLanes;
                    vstore(d, add_block<Format::kScaled>(vload(d), p[n][r][half], s[half]));
                }
            }
        }
    }
}

/// Rows that take the pairs from registers; up to four keep their sums there too.
template <typename Format, int R>
void few_rows(const GemmArgs& a) {
    constexpr bool kSums = R <= 4;  // else the sums of the blocks fill the registers
    constexpr int kAtOnce = R <= 2 ? 2 : 1;
    const int64_t num_blocks = a.k / kBlockK;
    F c[R][2];
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        c[r][0] = c[r][1] = vzero();
        if constexpr (!kSums) {
            vstore(a.c + r * kPanelRows, vzero());
            vstore(a.c + r * kPanelRows + kLanes, vzero());
        }
    }
    int64_t kb = 0;
    for (; kb + kAtOnce <= num_blocks; kb += kAtOnce)
        few_blocks<Format, R, kAtOnce, kSums>(a, kb, c);
    if (kb < num_blocks) few_blocks<Format, R, 1, kSums>(a, kb, c);
    if constexpr (kSums) {
        DI_UNROLL
        for (int r = 0; r < R; ++r) {
            vstore(a.c + r * kPanelRows, c[r][0]);
            vstore(a.c + r * kPanelRows + kLanes, c[r][1]);
        }
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

constexpr int kTileRows = 12;  // 24 sums, two weights and an activation fit the registers

template <typename Format>
void many_rows(const GemmArgs& a) {
    alignas(64) I tile[kSteps];
    for (int64_t i = 0; i < a.num_rows * kPanelRows; i += kLanes) vstore(a.c + i, vzero());
    for (int64_t kb = 0; kb < a.k / kBlockK; ++kb) {
        Format::prefetch(a.panel, a.k, kb);
        DI_UNROLL
        for (int g = 0; g < Format::kGroups; ++g) {
            Format::group(
                a.panel, a.k, kb, g, [&](int pair, int half, I w) __attribute__((always_inline)) {
                    _mm512_store_si512(tile + 2 * pair + half, w);
                });
        }
        F s[2] = {};
        Format::scales(a.panel, a.k, kb, s);
        const uint16_t* x = a.x_bf16 + kb * a.step;
        int64_t r = 0;
        const auto run = [&](auto rows) __attribute__((always_inline)) {
            constexpr int kRows = decltype(rows)::value;
            block_rows<Format::kScaled, kRows>(x + r * a.ldx, a.ldx, tile, s, a.c + r * kPanelRows);
            r += kRows;
        };
        // 13 .. 16 rows at the end go as 8 and the rest: short runs do not hide the latency.
        while (r + kTileRows <= a.num_rows &&
               (a.num_rows - r == kTileRows || a.num_rows - r > kTileRows + 4))
            run(Rows<kTileRows>{});
        if (r + 8 <= a.num_rows) run(Rows<8>{});
        if (r + 8 <= a.num_rows) run(Rows<8>{});
        if (r + 6 <= a.num_rows) run(Rows<6>{});
        if (r + 4 <= a.num_rows) run(Rows<4>{});
        if (r + 2 <= a.num_rows) run(Rows<2>{});
        if (r < a.num_rows) run(Rows<1>{});
    }
}

template <typename Format>
void gemm_bf16(const GemmArgs& a) {
    switch (a.num_rows) {
        case 1:
            return few_rows<Format, 1>(a);
        case 2:
            return few_rows<Format, 2>(a);
        case 3:
            return few_rows<Format, 3>(a);
        case 4:
            return few_rows<Format, 4>(a);
        case 5:
            return few_rows<Format, 5>(a);
        case 6:
            return few_rows<Format, 6>(a);
        case 7:
            return few_rows<Format, 7>(a);
        case 8:
            return few_rows<Format, 8>(a);
        default:
            return many_rows<Format>(a);
    }
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
