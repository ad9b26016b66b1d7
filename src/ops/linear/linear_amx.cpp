// GEMM on AMX tiles: weights are widened to bf16 pairs (exact, scales folded in), 32 rows × 32
// outputs a step.
//
// Widening runs two k blocks ahead of the tile products, so the vector unit and the tile unit
// overlap: with one row the widening is the whole cost, with many rows it is paid once per 32 of
// them.
#include "backends/cpu/kernels/amx_tiles.h"
#include "backends/cpu/kernels/amx_widen.h"

namespace deepinfer::cpu {
namespace {

constexpr int kTileBytes = 1024;                 // 16 pairs of k × 16 columns × 2 bf16
constexpr int kBlockTileBytes = 2 * kTileBytes;  // both halves of a 32 × 32 block
constexpr int kMinScale = 27, kMaxScale = 227;   // what pack.cpp lets through

// bf16 bits of every magnitude code per scale.
struct Fp8ScaledTables {
    Fp8Bytes of[kMaxScale - kMinScale + 1];
};
constexpr Fp8ScaledTables make_tables() {
    Fp8ScaledTables t{};
    for (int s = kMinScale; s <= kMaxScale; ++s) t.of[s - kMinScale] = make_fp8_bytes(s);
    return t;
}
alignas(64) constexpr Fp8ScaledTables kScaled = make_tables();

/// Both halves of an FP8 block → two B tiles. Halves are k · 16 bytes apart; a word of stored codes
/// holds one code for each of two tile rows (pack.cpp).
///
/// A normal code s eeee mmm is the bf16 number s | (eeee mmm << 4) with another exponent bias:
/// shift, mask, add. Blocks that also have zeros or subnormals (14 % of the demonstration
/// checkpoint) go through the byte table.
struct Fp8Widen {
    static constexpr bool kDirect = false;
    static DI_INLINE void block(const uint8_t* panel, int64_t k, int64_t kb, uint8_t* tiles) {
        const uint8_t* scales = panel + k * kPanelRows;
        const uint8_t scale = scales[kb];
        if (scales[k / kBlockK + kb] != 0)
            return marked_block(panel, k, kb, kScaled.of[scale - kMinScale], tiles);
        const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(0x87F0));
        const __m512i bias = _mm512_set1_epi16(static_cast<int16_t>((scale - 7) << 7));
        DI_UNROLL
        for (int half = 0; half < 2; ++half) {
            const uint8_t* src = panel + half * k * 16 + kb * (kBlockK * 16);
            uint8_t* dst = tiles + half * kTileBytes;
            DI_UNROLL
            for (int g = 0; g < 8; ++g) {
                const __m512i high = _mm512_loadu_si512(src + 64 * g),
                              low = _mm512_slli_epi16(high, 8);
                const __m512i a = _mm512_and_si512(_mm512_srai_epi16(low, 4), keep);
                const __m512i b = _mm512_and_si512(_mm512_srai_epi16(high, 4), keep);
                _mm512_store_si512(dst + 128 * g, _mm512_add_epi16(a, bias));
                _mm512_store_si512(dst + 128 * g + 64, _mm512_add_epi16(b, bias));
            }
        }
    }
    static void marked_block(
        const uint8_t* panel, int64_t k, int64_t kb, const Fp8Bytes& t, uint8_t* tiles) {
        const __m512i low_byte = _mm512_set1_epi16(0xFF);
        for (int half = 0; half < 2; ++half) {
            const uint8_t* src = panel + half * k * 16 + kb * (kBlockK * 16);
            uint8_t* dst = tiles + half * kTileBytes;
            for (int g = 0; g < 8; ++g) {
                const BytePair w = widen_bytes(t, _mm512_loadu_si512(src + 64 * g));
                const __m512i a = _mm512_or_si512(_mm512_and_si512(w.low, low_byte),
                                                  _mm512_slli_epi16(w.high, 8));
                const __m512i b = _mm512_or_si512(_mm512_srli_epi16(w.low, 8),
                                                  _mm512_andnot_si512(low_byte, w.high));
                _mm512_store_si512(dst + 128 * g, a);
                _mm512_store_si512(dst + 128 * g + 64, b);
            }
        }
    }
};

// bf16 bits of the E2M1 values, twice: vpermw reads five index bits, the upper one belongs to a
// neighbour.
alignas(64) constexpr uint16_t kFp4Bits[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x0000, 0xBF00, 0xBF80,
    0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
    0x4080, 0x40C0, 0x0000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};

struct Fp4Widen {
    static constexpr bool kDirect = false;
    static DI_INLINE void block(const uint8_t* panel, int64_t k, int64_t kb, uint8_t* tiles) {
        const __m512i table = _mm512_load_si512(kFp4Bits);
        const uint8_t* scales = panel + kb * kPanelRows;
        const uint8_t* src = panel + scale_bytes(k, kPanelRows) + kb * (kBlockK * 16);
        DI_UNROLL
        for (int half = 0; half < 2; ++half) {
            const __m512i s = _mm512_cvtepu8_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16 * half)));
            // (scale - 127) added to the exponent of both words of a lane, except where the value
            // is zero.
            const __m512i e = _mm512_slli_epi32(_mm512_sub_epi32(s, _mm512_set1_epi32(127)), 7);
            const __m512i add = _mm512_or_si512(_mm512_and_si512(e, _mm512_set1_epi32(0xFFFF)),
                                                _mm512_slli_epi32(e, 16));
            uint8_t* dst = tiles + half * kTileBytes;
            DI_UNROLL
            for (int g = 0; g < 4; ++g) {
                __m512i d = _mm512_loadu_si512(src + g * 128 + 64 * half);
                DI_UNROLL
                for (int t = 0; t < 4; ++t) {
                    const __m512i v = _mm512_permutexvar_epi16(d, table);
                    const __mmask32 nonzero = _mm512_test_epi16_mask(v, v);
                    _mm512_store_si512(dst + 256 * g + 64 * t,
                                       _mm512_mask_add_epi16(v, nonzero, v, add));
                    d = _mm512_srli_epi32(d, 4);
                }
            }
        }
    }
};

struct Bf16Direct {
    static constexpr bool kDirect = true;
    static DI_INLINE void block(const uint8_t*, int64_t, int64_t, uint8_t*) {}
};

struct Yes {
    constexpr bool operator()() const { return true; }
};
struct No {
    constexpr bool operator()() const { return false; }
};

enum class Tiles {
    kKept,  // the whole panel was widened by an earlier pass
    kKeep,  // widen it on the way and keep it for later passes
    kRing,  // widen it on the way, nobody needs it again: four blocks that stay in L1
};

/// c rows [0, rows0 + rows1) of one panel.
template <typename Format, Tiles kTiles, bool kTwo>
DI_INLINE void pass(const GemmArgs& a, const uint16_t* x, float* c, int rows0, uint8_t* tiles) {
    const int64_t blocks = a.k / kBlockK;
    const size_t ldx = static_cast<size_t>(a.ldx) * 2;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
        _tile_zero(2);
        _tile_zero(3);
    }
    constexpr int kAhead = 2;
    const auto tile_of = [&](int64_t kb) {
        return tiles + (kTiles == Tiles::kRing ? kb % 4 : kb) * kBlockTileBytes;
    };
    if constexpr (kTiles != Tiles::kKept) {
        for (int64_t kb = 0; kb < kAhead && kb < blocks; ++kb)
            Format::block(a.panel, a.k, kb, tile_of(kb));
    }
    for (int64_t kb = 0; kb < blocks; ++kb) {
        if constexpr (kTiles != Tiles::kKept) {
            if (kb + kAhead < blocks)
                Format::block(a.panel, a.k, kb + kAhead, tile_of(kb + kAhead));
        }
        const uint8_t *b0, *b1;
        if constexpr (Format::kDirect) {
            b0 = a.panel + kb * kTileBytes;
            b1 = b0 + a.k * 32;
        } else {
            b0 = tile_of(kb);
            b1 = b0 + kTileBytes;
        }
        DI_TILE_LOAD(4, x + kb * a.step, ldx);
        DI_TILE_LOAD(6, b0, 64);
        _tile_dpbf16ps(0, 4, 6);
        DI_TILE_LOAD(7, b1, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTwo) {
            DI_TILE_LOAD(5, x + rows0 * a.ldx + kb * a.step, ldx);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr size_t kStride = kPanelRows * sizeof(float);
    _tile_stored(0, c, kStride);
    _tile_stored(1, c + 16, kStride);
    if constexpr (kTwo) {
        _tile_stored(2, c + rows0 * kPanelRows, kStride);
        _tile_stored(3, c + rows0 * kPanelRows + 16, kStride);
    }
}

constexpr int64_t kMaxK = kMaxPanelK;

template <typename Format>
void gemm_amx(const GemmArgs& a) {
    alignas(64) static thread_local uint8_t
        tiles[Format::kDirect ? 64 : kMaxK / kBlockK * kBlockTileBytes];
    for (int64_t r = 0; r < a.num_rows; r += 32) {
        const int64_t rows = a.num_rows - r < 32 ? a.num_rows - r : 32;
        const int rows0 = static_cast<int>(rows < 16 ? rows : 16),
                  rows1 = static_cast<int>(rows) - rows0;
        configure_tiles(rows0, rows1 > 0 ? rows1 : 16);
        const uint16_t* x = a.x_bf16 + r * a.ldx;
        float* c = a.c + r * kPanelRows;
        const auto run = [&](auto two) {
            if (Format::kDirect || r > 0) {
                pass<Format, Tiles::kKept, two()>(a, x, c, rows0, tiles);
            } else if (a.num_rows > 32) {
                pass<Format, Tiles::kKeep, two()>(a, x, c, rows0, tiles);
            } else {
                pass<Format, Tiles::kRing, two()>(a, x, c, rows0, tiles);
            }
        };
        if (rows1 > 0) {
            run(Yes{});
        } else {
            run(No{});
        }
    }
}

/// Sixteen rows, four accumulators, operands that stay in tiles.
double dot_roof_amx() {
    constexpr int kRounds = 5000;
    alignas(64) static const uint8_t zeros[kTileBytes] = {};
    configure_tiles(16, 16);
    DI_TILE_LOAD(4, zeros, 64);
    DI_TILE_LOAD(5, zeros, 64);
    DI_TILE_LOAD(6, zeros, 64);
    DI_TILE_LOAD(7, zeros, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int r = 0; r < kRounds; ++r) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return 2.0 * kRounds * 4 * 16 * 16 * 32;
}

}  // namespace

extern const RoofKernels kRoof_amx;
const RoofKernels kRoof_amx = {&dot_roof_amx, &read_roof};

extern const LinearKernels kLinear_amx;
const LinearKernels kLinear_amx = {
    &gemm_amx<Fp8Widen>, &gemm_amx<Fp4Widen>, &gemm_amx<Bf16Direct>, &gemm_f32, true};

}  // namespace deepinfer::cpu
