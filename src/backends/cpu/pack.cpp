#include "backends/cpu/pack.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

namespace deepinfer::cpu {
namespace {

constexpr uint8_t kMinScale = 127 - 100, kMaxScale = 127 + 100;

const uint8_t* bytes_of(const WeightMatrix& w) {
    return static_cast<const uint8_t*>(w.weight);
}

// Packing is a transposition: 32-bit words (or bytes) of one row become columns. It runs at load
// for every weight, so it has to keep up with reading the files; SSE2, which every x86-64 has,
// does.

__m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

/// Sixteen bytes of row r at column c, zeros for the rows that the last panel lacks.
struct RowReader {
    const uint8_t* src;
    int64_t row_bytes, rows;
    __m128i at(int64_t r, int64_t c) const {
        return r < rows ? load16(src + r * row_bytes + c) : _mm_setzero_si128();
    }
};

/// Columns that are transposed before the next rows: their output stays in L1.
constexpr int64_t kColumnBlock = 256;

/// Word w of row r → out + w / 8 · block + w % 8 · stride + 4 · r, for `lanes` rows (a multiple of
/// 4); map(words, r, c) reorders the bits of four words of row r on the way, `last` those of one
/// word of four rows.
template <typename Map, typename Last>
void transpose_words(const RowReader& in,
                     int64_t lanes,
                     uint8_t* out,
                     int64_t stride,
                     int64_t block,
                     const Map& map,
                     const Last& last) {
    for (int64_t c0 = 0; c0 < in.row_bytes; c0 += kColumnBlock) {
        const int64_t c1 = std::min(in.row_bytes, c0 + kColumnBlock);
        for (int64_t r = 0; r < lanes; r += 4) {
            for (int64_t c = c0; c < c1; c += 16) {
                const __m128i v0 = map(in.at(r, c), r, c), v1 = map(in.at(r + 1, c), r + 1, c),
                              v2 = map(in.at(r + 2, c), r + 2, c),
                              v3 = map(in.at(r + 3, c), r + 3, c);
                const __m128i t0 = _mm_unpacklo_epi32(v0, v1), t1 = _mm_unpacklo_epi32(v2, v3),
                              t2 = _mm_unpackhi_epi32(v0, v1), t3 = _mm_unpackhi_epi32(v2, v3);
                uint8_t* d = out + c / 32 * block + c % 32 / 4 * stride + 4 * r;
                const auto store = [&](int64_t w, __m128i v) {
                    _mm_storeu_si128(reinterpret_cast<__m128i*>(d + w * stride), last(v));
                };
                store(0, _mm_unpacklo_epi64(t0, t1));
                store(1, _mm_unpackhi_epi64(t0, t1));
                store(2, _mm_unpacklo_epi64(t2, t3));
                store(3, _mm_unpackhi_epi64(t2, t3));
            }
        }
    }
}

template <typename Map>
void transpose_words(
    const RowReader& in, int64_t lanes, uint8_t* out, int64_t stride, const Map& map) {
    transpose_words(in, lanes, out, stride, 8 * stride, map, [](__m128i v) { return v; });
}

/// Byte c of row row_at(i) → out + 32 · c + i.
template <typename RowAt>
void transpose_bytes(const RowReader& in, uint8_t* out, const RowAt& row_at) {
    for (int64_t c = 0; c < in.row_bytes; c += 16) {
        for (int64_t r = 0; r < kPanelRows; r += 16) {
            __m128i v[16], t[16];
#pragma GCC unroll 16
            for (int64_t i = 0; i < 16; ++i) v[i] = in.at(row_at(r + i), c);
                // Four rounds of a perfect shuffle: rows i and i + 8 interleave their bytes.
#pragma GCC unroll 4
            for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) {
                    t[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]);
                    t[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
                }
#pragma GCC unroll 16
                for (int i = 0; i < 16; ++i) v[i] = t[i];
            }
#pragma GCC unroll 16
            for (int64_t i = 0; i < 16; ++i)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (c + i) * kPanelRows + r), v[i]);
        }
    }
}

RowReader panel_rows(const WeightMatrix& w, int64_t first, int64_t rows) {
    const int64_t row_bytes = w.k * dtype_bits(w.dtype) / 8;
    return {bytes_of(w) + first * row_bytes, row_bytes, rows};
}

__m128i same(__m128i v, int64_t, int64_t) {
    return v;
}

void pack_fp8(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    // 32 × 32 tiles: a panel is one row of tiles.
    std::memcpy(out, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
    transpose_bytes(
        panel_rows(w, first, rows), out + scale_bytes(w.k, 1), [](int64_t i) { return i; });
}

/// Whether one of the n codes at p (n % 16 == 0) is zero or subnormal.
bool any_subnormal(const uint8_t* p, int64_t n) {
    const __m128i exponent = _mm_set1_epi8(0x78);
    __m128i found = _mm_setzero_si128();
    for (int64_t i = 0; i < n; i += 16) {
        found = _mm_or_si128(
            found, _mm_cmpeq_epi8(_mm_and_si128(load16(p + i), exponent), _mm_setzero_si128()));
    }
    return _mm_movemask_epi8(found) != 0;
}

// Bytes of a k in the order in which 16-bit shifts, then 32-bit ones take them apart.
void pack_fp8_words(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    std::memcpy(out, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
    uint8_t* codes = out + scale_bytes(w.k, 2);
    transpose_bytes(panel_rows(w, first, rows), codes, [](int64_t i) {
        return i / 4 + (i & 1) * 16 + (i & 2) * 4;
    });
    for (int64_t b = 0; b < blocks; ++b)  // missing rows are zeros too
        out[blocks + b] = any_subnormal(codes + b * kBlockK * kPanelRows, kBlockK * kPanelRows);
}

// 64 bytes of a half are four k of its 16 rows as 32 words: word 2n + i holds the codes of row n at
// k + i (low byte) and k + 2 + i (high byte), so that shifts and masks alone make two rows of an
// AMX operand. A block with a subnormal or zero code is marked: its codes need the table.
void pack_fp8_pairs(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    uint8_t* scales = out + w.k * kPanelRows;
    uint8_t* marks = scales + blocks;
    std::memcpy(scales, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
    std::memset(marks, 0, static_cast<size_t>(blocks));
    const __m128i exponent = _mm_set1_epi8(0x78),
                  ends = _mm_set1_epi32(static_cast<int>(0xFF0000FF)),
                  second = _mm_set1_epi32(0x0000FF00), third = _mm_set1_epi32(0x00FF0000);
    for (int64_t half = 0; half < 2; ++half) {
        const int64_t here = std::clamp<int64_t>(rows - 16 * half, 0, 16);
        const RowReader in = panel_rows(w, first + 16 * half, here);
        transpose_words(in, 16, out + half * (w.k * 16), 64, [&](__m128i v, int64_t, int64_t c) {
            const __m128i zero = _mm_cmpeq_epi8(_mm_and_si128(v, exponent), _mm_setzero_si128());
            if (_mm_movemask_epi8(zero) != 0) marks[c / kBlockK] = 1;  // missing rows are zeros too
            return _mm_or_si128(_mm_and_si128(v, ends),
                                _mm_or_si128(_mm_slli_epi32(_mm_and_si128(v, second), 8),
                                             _mm_srli_epi32(_mm_and_si128(v, third), 8)));
        });
    }
}

// In 16 bytes, four k of four rows, the first pairs of all four stand before the second ones, so
// that two byte look-ups and two interleaves make two operands of vdpbf16ps.
void pack_fp8_quads(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    std::memcpy(out, w.scale + first / 32 * blocks, static_cast<size_t>(blocks));
    uint8_t* codes = out + scale_bytes(w.k, 1);
    for (int64_t half = 0; half < 2; ++half) {
        const RowReader in =
            panel_rows(w, first + 16 * half, std::clamp<int64_t>(rows - 16 * half, 0, 16));
        transpose_words(
            in, 16, codes + half * (kBlockK * 16), 64, kBlockK * kPanelRows, same, [](__m128i v) {
                constexpr int kFirstPairs = 0xD8;  // 0, 2, 1, 3
                v = _mm_shufflehi_epi16(_mm_shufflelo_epi16(v, kFirstPairs), kFirstPairs);
                return _mm_shuffle_epi32(v, kFirstPairs);
            });
    }
}

void copy_fp4_scales(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t b = 0; b < blocks; ++b)
            out[b * kPanelRows + r] = w.scale[(first + r) * blocks + b];
    }
}

void pack_fp4(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    std::memset(out, 127, static_cast<size_t>(blocks * kPanelRows));
    const __m128i nibble = _mm_set1_epi32(0x0F0F0F0F), byte = _mm_set1_epi32(0x00FF00FF),
                  word = _mm_set1_epi32(0x0000FFFF);
    // Four nibbles at the bottoms of the bytes → one half-word.
    const auto gather = [&](__m128i v) {
        v = _mm_and_si128(v, nibble);
        v = _mm_and_si128(_mm_or_si128(v, _mm_srli_epi32(v, 4)), byte);
        return _mm_and_si128(_mm_or_si128(v, _mm_srli_epi32(v, 8)), word);
    };
    const RowReader in = panel_rows(w, first, rows);
    uint8_t* codes = out + scale_bytes(w.k, kPanelRows);
    transpose_words(in, kPanelRows, codes, 4 * kPanelRows, [&](__m128i v, int64_t, int64_t) {
        return _mm_or_si128(gather(v), _mm_slli_epi32(gather(_mm_srli_epi32(v, 4)), 16));
    });
    copy_fp4_scales(w, first, rows, out);
}

// A byte of the stored form already holds k and k + 1. Interleaving the looked-up low and high
// bytes of 16-byte halves makes words of rows that lie two bytes apart.
void pack_fp4_bytes(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    const int64_t blocks = w.k / kBlockK;
    std::memset(out, 127, static_cast<size_t>(blocks * kPanelRows));
    transpose_bytes(panel_rows(w, first, rows), out + scale_bytes(w.k, kPanelRows), [](int64_t i) {
        const int64_t lane = i / 16 * 4 + i % 8 / 2, vector = i % 16 / 8 * 2 + i % 2;
        return vector * 8 + lane;
    });
    copy_fp4_scales(w, first, rows, out);
}

void pack_bf16(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    for (int64_t half = 0; half < 2; ++half) {
        const int64_t here = std::clamp<int64_t>(rows - 16 * half, 0, 16);
        transpose_words(
            panel_rows(w, first + 16 * half, here), 16, out + half * (w.k * 32), 64, same);
    }
}

void pack_f32(const WeightMatrix& w, int64_t first, int64_t rows, uint8_t* out) {
    transpose_words(panel_rows(w, first, rows), kPanelRows, out, 4 * kPanelRows, same);
}

/// True if one of the n codes at p is NaN (0x7F or 0xFF).
bool any_nan(const uint8_t* p, int64_t n) {
    const __m128i magnitude = _mm_set1_epi8(0x7F);
    __m128i found = _mm_setzero_si128();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        found =
            _mm_or_si128(found, _mm_cmpeq_epi8(_mm_and_si128(load16(p + i), magnitude), magnitude));
    }
    bool tail = false;
    for (; i < n; ++i) tail = tail || (p[i] & 0x7F) == 0x7F;
    return tail || _mm_movemask_epi8(found) != 0;
}

}  // namespace

PanelFormat panel_format(DType dtype, Isa isa) {
    switch (dtype) {
        case DType::kFP8E4M3:
            return isa == Isa::kAmx          ? PanelFormat::kFp8Pair
                   : isa == Isa::kAvx512Bf16 ? PanelFormat::kFp8Quad
                   : isa == Isa::kAvx2       ? PanelFormat::kFp8Words
                                             : PanelFormat::kFp8;
        case DType::kFP4:
            return isa == Isa::kAvx2 ? PanelFormat::kFp4Bytes : PanelFormat::kFp4;
        case DType::kBF16:
            return PanelFormat::kBf16;
        default:
            DI_CHECK(dtype == DType::kF32);
            return PanelFormat::kF32;
    }
}

int64_t panel_bytes(PanelFormat format, int64_t k) {
    int64_t b = 0;
    switch (format) {
        case PanelFormat::kFp8:
        case PanelFormat::kFp8Quad:
            b = scale_bytes(k, 1) + k * kPanelRows;
            break;
        case PanelFormat::kFp8Words:
            b = scale_bytes(k, 2) + k * kPanelRows;
            break;
        case PanelFormat::kFp8Pair:
            b = k * kPanelRows + 2 * (k / kBlockK);
            break;
        case PanelFormat::kFp4:
        case PanelFormat::kFp4Bytes:
            b = scale_bytes(k, kPanelRows) + k * kPanelRows / 2;
            break;
        case PanelFormat::kBf16:
            b = k * kPanelRows * 2;
            break;
        case PanelFormat::kF32:
            b = k * kPanelRows * 4;
            break;
    }
    return (b + 63) / 64 * 64;
}

bool packable(const WeightMatrix& w) {
    if (w.k <= 0 || w.k % kBlockK != 0 || w.k > kMaxPanelK || w.n <= 0) return false;
    int64_t num_scales = 0;
    if (w.dtype == DType::kFP8E4M3) {
        num_scales = (w.n + 31) / 32 * (w.k / 32);
    } else if (w.dtype == DType::kFP4) {
        num_scales = w.n * (w.k / 32);
    } else if (w.dtype != DType::kBF16 && w.dtype != DType::kF32) {
        return false;
    }
    return std::all_of(
        w.scale, w.scale + num_scales, [](uint8_t s) { return s >= kMinScale && s <= kMaxScale; });
}

bool has_nan_codes(const WeightMatrix& w, int64_t begin, int64_t end) {
    return w.dtype == DType::kFP8E4M3 && any_nan(bytes_of(w) + begin * w.k, (end - begin) * w.k);
}

void pack_panels(
    const WeightMatrix& w, PanelFormat format, int64_t begin, int64_t end, uint8_t* out) {
    const int64_t stride = panel_bytes(format, w.k);
    for (int64_t p = begin; p < end; ++p) {
        const int64_t first = p * kPanelRows, rows = std::min<int64_t>(kPanelRows, w.n - first);
        uint8_t* dst = out + p * stride;
        if (rows < kPanelRows) std::memset(dst, 0, static_cast<size_t>(stride));
        switch (format) {
            case PanelFormat::kFp8:
                pack_fp8(w, first, rows, dst);
                break;
            case PanelFormat::kFp8Pair:
                pack_fp8_pairs(w, first, rows, dst);
                break;
            case PanelFormat::kFp8Quad:
                pack_fp8_quads(w, first, rows, dst);
                break;
            case PanelFormat::kFp8Words:
                pack_fp8_words(w, first, rows, dst);
                break;
            case PanelFormat::kFp4Bytes:
                pack_fp4_bytes(w, first, rows, dst);
                break;
            case PanelFormat::kFp4:
                pack_fp4(w, first, rows, dst);
                break;
            case PanelFormat::kBf16:
                pack_bf16(w, first, rows, dst);
                break;
            case PanelFormat::kF32:
                pack_f32(w, first, rows, dst);
                break;
        }
    }
}

}  // namespace deepinfer::cpu
