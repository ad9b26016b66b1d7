// Sparse attention on AMX tiles, for groups of rows that share their keys.
//
// A column is one (row, head) pair; 16 columns make a tile, so with few heads several rows share
// every product. Per block of 64 keys:
//
//   K tiles   [16 keys × 32 dims] bf16, widened once per group      V tiles: the same rows as key
//   pairs scores    Sᵀ [keys × 16 columns] = K · Qᵀ                        fp32, lanes are columns
//   softmax   over the keys of a lane, keys outside its list masked
//   values    [columns × 16 dims] = P · V, P split exactly into three bf16 parts (8 bits each) that
//   add
//             into one accumulator, so probabilities are not rounded
//
// Blocks lie on fixed grids: window keys by absolute position / 64, entries by list index / 64. A
// row alone and a row in a group therefore see the same blocks, the same chains and the same bits;
// keys that are not in its list add exact zeros. A group whose keys hold a NaN is computed row by
// row, since 0 · NaN would carry it to rows that do not see that key.
#include "backends/cpu/kernels/amx_tiles.h"
#include "backends/cpu/kernels/amx_widen.h"

namespace deepinfer::cpu {
namespace {

constexpr int kTile = 512;  // bf16 values of a tile: 16 rows × 32
// Distance of tiles in memory: one cache line more than a tile, or the stores of a key row, a tile
// apart each, would fall into four L1 sets.
constexpr int kPitch = kTile + 32;
constexpr int kColumns = 16;
constexpr int kScores = kKeyBlock * kColumns;

struct Scratch {
    uint16_t* k;    // [4 key tiles][dh/32] tiles of 16 keys × 32 dims
    uint16_t* v;    // [dh/16][2 steps] tiles of 16 key pairs × 16 dims
    uint16_t* q;    // [column tiles][dh/32] tiles of 16 dim pairs × 16 columns
    float* scores;  // [2 column tiles][64 keys][16 columns]
    uint16_t* p;    // [2 steps][3] tiles of 16 rows × 32 keys
    float* c;       // [2][3][16 × 16]
    float* state;   // tops [cols], sums [cols], values [column tiles][dh/16][16 columns × 16 dims]
};

Scratch carve(const AttentionGroup& g) {
    const int64_t cols = (kGroupRows * g.heads + 15) / 16 * 16;
    Scratch s;
    uint8_t* p = g.scratch;
    s.k = reinterpret_cast<uint16_t*>(p);
    p += kKeyBlock * g.dh / kTile * kPitch * 2;
    s.v = reinterpret_cast<uint16_t*>(p);
    p += kKeyBlock * g.dh / kTile * kPitch * 2;
    s.q = reinterpret_cast<uint16_t*>(p);
    p += cols * g.dh * 2;
    s.scores = reinterpret_cast<float*>(p);
    p += 2 * kScores * 4;
    s.p = reinterpret_cast<uint16_t*>(p);
    p += 6 * kTile * 2;
    s.c = reinterpret_cast<float*>(p);
    p += 2 * 3 * 1024;
    s.state = reinterpret_cast<float*>(p);
    return s;
}

DI_INLINE void transpose16(__m512i* r) {
    __m512i t[16];
    DI_UNROLL
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    DI_UNROLL
    for (int i = 0; i < 4; ++i) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    DI_UNROLL
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
    }
    DI_UNROLL
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xDD);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xDD);
    }
}

/// Qᵀ of all column tiles; columns beyond the last row are zero.
void load_queries(const AttentionGroup& g, const Scratch& s) {
    const int64_t cols = g.num_rows * g.heads;
    for (int64_t c0 = 0; c0 < cols; c0 += kColumns) {
        const int n = static_cast<int>(cols - c0 < kColumns ? cols - c0 : kColumns);
        const uint16_t* src[kColumns];
        for (int i = 0; i < n; ++i)
            src[i] = g.q + (c0 + i) / g.heads * g.ld_q + (c0 + i) % g.heads * g.dh;
        uint16_t* dst = s.q + c0 * g.dh;
        for (int64_t d = 0; d < g.dh; d += 32) {
            __m512i r[16];
            for (int i = 0; i < 16; ++i)
                r[i] = i < n ? _mm512_loadu_si512(src[i] + d) : _mm512_setzero_si512();
            transpose16(r);
            for (int i = 0; i < 16; ++i) _mm512_store_si512(dst + d / 32 * kTile + 32 * i, r[i]);
        }
    }
}

/// A block of the group: 64 grid places, of which [begin, end) are keys of some row.
struct Block {
    const uint8_t* const* rows;  // packed row of grid place `begin`
    bool window;
    int begin, end;
    int64_t base;  // position or list index of grid place 0
};

int64_t window_blocks(const AttentionGroup& g) {
    return (g.first_position + g.num_rows - 1) / kKeyBlock - g.lowest[0] / kKeyBlock + 1;
}

Block block_of(const AttentionGroup& g, int64_t index) {
    Block b;
    const int64_t num_window = window_blocks(g);
    b.window = index < num_window;
    if (b.window) {
        b.base = (g.lowest[0] / kKeyBlock + index) * kKeyBlock;
        const int64_t last = g.first_position + g.num_rows;
        b.begin = static_cast<int>(g.lowest[0] > b.base ? g.lowest[0] - b.base : 0);
        b.end = static_cast<int>(last - b.base < kKeyBlock ? last - b.base : kKeyBlock);
        b.rows = g.window + (b.base + b.begin - g.lowest[0]);
    } else {
        b.base = (index - num_window) * kKeyBlock;
        const int64_t n = g.num_entries[g.num_rows - 1];
        b.begin = 0;
        b.end = static_cast<int>(n - b.base < kKeyBlock ? n - b.base : kKeyBlock);
        b.rows = g.entries + b.base;
    }
    return b;
}

/// K and V tiles of a block; places without a key are zero as far as a product reads them. False if
/// a key holds a NaN.
bool load_keys(const AttentionGroup& g, const Block& b, const Scratch& s) {
    const int64_t dims = g.dh / 32;
    bool clean = true;
    const int first = b.begin / 32 * 32, last = (b.end + 31) / 32 * 32;
    for (int j0 = first; j0 < last; j0 += 2) {
        uint16_t* pair = s.k + j0 / 16 * dims * kPitch + j0 % 16 * 32;
        for (int j = j0; j < j0 + 2; ++j) {
            uint16_t* dst = pair + (j - j0) * 32;
            if (j < b.begin || j >= b.end) {
                for (int64_t d = 0; d < dims; ++d)
                    _mm512_store_si512(dst + d * kPitch, _mm512_setzero_si512());
            } else if (b.window) {
                clean &= widen_window_bf16(b.rows[j - b.begin], g.dh, dst, kPitch);
            } else {
                clean &= widen_entry_bf16(b.rows[j - b.begin], g.dh, dst, kPitch);
            }
        }
        uint16_t* v = s.v + j0 / 32 * kPitch + j0 % 32 / 2 * 32;
        for (int64_t d = 0; d < dims; ++d) {
            const __m512i even = _mm512_load_si512(pair + d * kPitch),
                          odd = _mm512_load_si512(pair + d * kPitch + 32);
            // Dims of a 32-block in tile order: 0-3, 8-11, 16-19, 24-27, then the other half.
            _mm512_store_si512(v + 4 * d * kPitch, _mm512_unpacklo_epi16(even, odd));
            _mm512_store_si512(v + (4 * d + 2) * kPitch, _mm512_unpackhi_epi16(even, odd));
        }
    }
    return clean;
}

/// Which keys the 16 columns of a tile see in a block: grid places [lo, hi) per lane.
struct Lanes {
    __m512i lo, hi;
    int begin, end;  // over all lanes
};

Lanes lanes_of(const AttentionGroup& g, const Block& b, int64_t c0, int n) {
    alignas(64) int32_t lo[kColumns], hi[kColumns];
    Lanes l;
    l.begin = kKeyBlock;
    l.end = 0;
    for (int i = 0; i < kColumns; ++i) {
        lo[i] = hi[i] = 0;
        if (i >= n) continue;
        const int64_t r = (c0 + i) / g.heads;
        const int64_t from = (b.window ? g.lowest[r] : 0) - b.base;
        const int64_t to = (b.window ? g.first_position + r + 1 : g.num_entries[r]) - b.base;
        const int f = static_cast<int>(from < 0 ? 0 : from > kKeyBlock ? kKeyBlock : from);
        const int t = static_cast<int>(to < 0 ? 0 : to > kKeyBlock ? kKeyBlock : to);
        if (f >= t) continue;
        lo[i] = f;
        hi[i] = t;
        if (f < l.begin) l.begin = f;
        if (t > l.end) l.end = t;
    }
    l.lo = _mm512_load_si512(lo);
    l.hi = _mm512_load_si512(hi);
    return l;
}

/// Scores of key tiles [t0, t1) and one column tile: four accumulators, so that a product never
/// waits for the one before it.
void score_column(
    const AttentionGroup& g, const Scratch& s, int64_t c0, int t0, int t1, float* scores) {
    const int64_t dims = g.dh / 32;
    const uint16_t* q = s.q + c0 * g.dh;
    const uint16_t* k[4];
    for (int i = 0; i < 4; ++i) k[i] = s.k + (t0 + i < t1 ? t0 + i : t0) * dims * kPitch;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int n = t1 - t0;
    for (int64_t d = 0; d < dims; ++d) {
        DI_TILE_LOAD(6, q + d * kTile, 64);
        DI_TILE_LOAD(4, k[0] + d * kPitch, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (n > 1) {
            DI_TILE_LOAD(5, k[1] + d * kPitch, 64);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (n > 2) {
            DI_TILE_LOAD(7, k[2] + d * kPitch, 64);
            _tile_dpbf16ps(2, 7, 6);
        }
        if (n > 3) {
            DI_TILE_LOAD(4, k[3] + d * kPitch, 64);
            _tile_dpbf16ps(3, 4, 6);
        }
    }
    _tile_stored(0, scores + t0 * 256, 64);
    if (n > 1) _tile_stored(1, scores + t0 * 256 + 256, 64);
    if (n > 2) _tile_stored(2, scores + t0 * 256 + 512, 64);
    if (n > 3) _tile_stored(3, scores + t0 * 256 + 768, 64);
}

/// The same for column tiles c0 and c0 + 16, two key tiles at a time: every operand is used twice.
void score_columns(
    const AttentionGroup& g, const Scratch& s, int64_t c0, int t0, int t1, float* scores) {
    const int64_t dims = g.dh / 32;
    const uint16_t *q0 = s.q + c0 * g.dh, *q1 = q0 + kColumns * g.dh;
    int t = t0;
    for (; t + 2 <= t1; t += 2) {
        const uint16_t *k0 = s.k + t * dims * kPitch, *k1 = k0 + dims * kPitch;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < dims; ++d) {
            DI_TILE_LOAD(4, k0 + d * kPitch, 64);
            DI_TILE_LOAD(6, q0 + d * kTile, 64);
            _tile_dpbf16ps(0, 4, 6);
            DI_TILE_LOAD(7, q1 + d * kTile, 64);
            _tile_dpbf16ps(1, 4, 7);
            DI_TILE_LOAD(5, k1 + d * kPitch, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores + t * 256, 64);
        _tile_stored(1, scores + kScores + t * 256, 64);
        _tile_stored(2, scores + t * 256 + 256, 64);
        _tile_stored(3, scores + kScores + t * 256 + 256, 64);
    }
    if (t < t1) {
        score_column(g, s, c0, t, t1, scores);
        score_column(g, s, c0 + kColumns, t, t1, scores + kScores);
    }
}

/// Probabilities → s.p as the left operand, per 32-key step; block maximum and sum per lane.
void softmax_tile(const Scratch& s,
                  float* scores,
                  const Lanes& l,
                  float scale,
                  int n,
                  __m512* top_out,
                  __m512* sum_out) {
    const F sc = vset(scale), minus_inf = vset(-__builtin_inff());
    F top = minus_inf;
    for (int j = l.begin; j < l.end; ++j) {
        const __m512i at = _mm512_set1_epi32(j);
        const __mmask16 in = _mm512_cmple_epi32_mask(l.lo, at) & _mm512_cmplt_epi32_mask(at, l.hi);
        const F x = vload(scores + j * kColumns) * sc;
        vstore(scores + j * kColumns, x);
        top = _mm512_mask_max_ps(top, in, x, top);  // passes over NaN
    }
    F sum = vzero();
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    for (int step = l.begin / 32; step < (l.end + 31) / 32; ++step) {
        __m512i parts[3][16];
        for (int i = 0; i < 16; ++i) {
            F p[2];
            for (int e = 0; e < 2; ++e) {
                const int j = step * 32 + 2 * i + e;
                if (j < l.begin || j >= l.end) {
                    p[e] = vzero();
                    continue;
                }
                const __m512i at = _mm512_set1_epi32(j);
                const __mmask16 in =
                    _mm512_cmple_epi32_mask(l.lo, at) & _mm512_cmplt_epi32_mask(at, l.hi);
                // Below e^-69 a probability cannot move a sum that holds a 1; its parts would be
                // denormal.
                const F x = vload(scores + j * kColumns) - top;
                const __mmask16 counts =
                    _mm512_mask_cmp_ps_mask(in, x, vset(-69.0f), _CMP_NLT_UQ);  // NaN counts
                p[e] = _mm512_maskz_mov_ps(counts, vexp(x));
                sum = sum + p[e];
            }
            // Truncation leaves an exact remainder: p = part 0 + part 1 + part 2.
            DI_UNROLL
            for (int part = 0; part < 3; ++part) {
                const __m512i a = as_i(p[0]), b = as_i(p[1]);
                parts[part][i] =
                    _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_and_si512(b, high));
                p[0] = p[0] - as_f(_mm512_and_si512(a, high));
                p[1] = p[1] - as_f(_mm512_and_si512(b, high));
            }
        }
        uint16_t* dst = s.p + step * 3 * kTile;
        for (int part = 0; part < 3; ++part) {
            transpose16(parts[part]);
            for (int c = 0; c < n; ++c)
                _mm512_store_si512(dst + (part * 16 + c) * 32, parts[part][c]);
        }
    }
    *top_out = top;
    *sum_out = sum;
}

/// Products of up to three 16-dim tiles from t on (accumulators 0, 1, 2): the parts of P add into
/// the same accumulator, in the order part 0, 1, 2 of each 32-key step.
DI_INLINE void value_products(const Scratch& s, int64_t t, int n, int first, int last, float* c) {
    _tile_zero(0);
    if (n > 1) _tile_zero(1);
    if (n > 2) _tile_zero(2);
    for (int step = first; step < last; ++step) {
        const uint16_t* v = s.v + (2 * t + step) * kPitch;
        const uint16_t* p = s.p + step * 3 * kTile;
        DI_TILE_LOAD(6, p, 64);
        DI_TILE_LOAD(3, v, 64);
        _tile_dpbf16ps(0, 6, 3);
        if (n > 1) {
            DI_TILE_LOAD(4, v + 2 * kPitch, 64);
            _tile_dpbf16ps(1, 6, 4);
        }
        if (n > 2) {
            DI_TILE_LOAD(5, v + 4 * kPitch, 64);
            _tile_dpbf16ps(2, 6, 5);
        }
        DI_TILE_LOAD(7, p + kTile, 64);
        _tile_dpbf16ps(0, 7, 3);
        if (n > 1) _tile_dpbf16ps(1, 7, 4);
        if (n > 2) _tile_dpbf16ps(2, 7, 5);
        DI_TILE_LOAD(6, p + 2 * kTile, 64);
        _tile_dpbf16ps(0, 6, 3);
        if (n > 1) _tile_dpbf16ps(1, 6, 4);
        if (n > 2) _tile_dpbf16ps(2, 6, 5);
    }
    _tile_stored(0, c, 64);
    if (n > 1) _tile_stored(1, c + 256, 64);
    if (n > 2) _tile_stored(2, c + 512, 64);
}

/// Values of every column and 16-dim tile: calls sink(column, dim tile, fp32 vector). Results are
/// read one batch of products after they were stored, so that the vector and the tile unit overlap.
template <typename Sink>
DI_INLINE void value_tiles(
    const AttentionGroup& g, const Scratch& s, const Lanes& l, int n, const Sink& sink) {
    const int first = l.begin / 32, last = (l.end + 31) / 32;
    const auto take = [&](const float* c, int64_t t, int count) {
        for (int i = 0; i < count; ++i) {
            for (int col = 0; col < n; ++col) sink(col, t + i, vload(c + i * 256 + col * 16));
        }
    };
    const int64_t tiles = g.dh / 16;
    float* c = s.c;
    float* before = s.c + 768;
    value_products(s, 0, 3, first, last, before);  // dh >= 64: four tiles at least
    int64_t t = 3;
    for (; t + 3 <= tiles; t += 3) {
        value_products(s, t, 3, first, last, c);
        take(before, t - 3, 3);
        float* swap = c;
        c = before;
        before = swap;
    }
    const int rest = static_cast<int>(tiles - t);
    if (rest > 0) value_products(s, t, rest, first, last, c);
    take(before, t - 3, 3);
    take(c, t, rest);
}

int columns_of(const AttentionGroup& g, int64_t c0) {
    const int64_t left = g.num_rows * g.heads - c0;
    return static_cast<int>(left < kColumns ? left : kColumns);
}

/// state ⊕= one block, for all columns. False (and nothing done) if the keys hold a NaN.
bool add_block(const AttentionGroup& g, const Scratch& s, int64_t index) {
    const int64_t cols = g.num_rows * g.heads, dh = g.dh;
    const Block b = block_of(g, index);
    if (!load_keys(g, b, s) && g.num_rows > 1) return false;
    float *tops = s.state, *sums = tops + (cols + 15) / 16 * 16,
          *values = sums + (cols + 15) / 16 * 16;
    const auto softmax_and_values = [&](int64_t c0, const Lanes& l, float* scores) {
        const int n = columns_of(g, c0);
        F block_top, block_sum;
        softmax_tile(s, scores, l, g.scale, n, &block_top, &block_sum);
        const F top = vload(tops + c0);
        const F new_top = vmax(block_top, top);
        alignas(64) float keep[kColumns], add[kColumns];
        vstore(keep, vexp(top - new_top));
        vstore(add, vexp(block_top - new_top));
        vstore(tops + c0, new_top);
        vstore(sums + c0, vload(sums + c0) * vload(keep) + block_sum * vload(add));
        float* tile = values + c0 * dh;
        value_tiles(g, s, l, n, [&](int c, int64_t t, F v) {
            float* o = tile + 256 * t + 16 * c;
            vstore(o, vfma(vload(o), vset(keep[c]), v * vset(add[c])));
        });
    };
    for (int64_t c0 = 0; c0 < cols; c0 += 2 * kColumns) {
        const int64_t c1 = c0 + kColumns;
        const Lanes a = lanes_of(g, b, c0, columns_of(g, c0));
        Lanes z{};
        if (c1 < cols) z = lanes_of(g, b, c1, columns_of(g, c1));
        if (a.begin < a.end && z.begin < z.end) {
            const int t0 = (a.begin < z.begin ? a.begin : z.begin) / 16,
                      t1 = ((a.end > z.end ? a.end : z.end) + 15) / 16;
            score_columns(g, s, c0, t0, t1, s.scores);
        } else if (a.begin < a.end) {
            score_column(g, s, c0, a.begin / 16, (a.end + 15) / 16, s.scores);
        } else if (z.begin < z.end) {
            score_column(g, s, c1, z.begin / 16, (z.end + 15) / 16, s.scores + kScores);
        }
        if (a.begin < a.end) softmax_and_values(c0, a, s.scores);
        if (z.begin < z.end) softmax_and_values(c1, z, s.scores + kScores);
    }
    return true;
}

int64_t group_blocks(const AttentionGroup& g) {
    return window_blocks(g) + (g.num_entries[g.num_rows - 1] + kKeyBlock - 1) / kKeyBlock;
}

/// One column of values / sum → bf16 in dim order; `step` floats from one 16-dim tile to the next.
void write_column(const float* values, int64_t step, float sum, int64_t dh, uint16_t* out) {
    const __m512i lo = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i hi =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const F total = vset(sum);
    for (int64_t d = 0; d < dh; d += 32) {
        const F a = vload(values + d / 16 * step) / total,
                b = vload(values + (d / 16 + 1) * step) / total;
        vstore_bf16(out + d, _mm512_permutex2var_ps(a, lo, b));
        vstore_bf16(out + d + 16, _mm512_permutex2var_ps(a, hi, b));
    }
}

void attend_group(const AttentionGroup& g) {
    const Scratch s = carve(g);
    const int64_t cols = g.num_rows * g.heads, padded = (cols + 15) / 16 * 16, dh = g.dh;
    configure_tiles(16, 16);
    load_queries(g, s);
    float *tops = s.state, *sums = tops + padded, *values = sums + padded;
    for (int64_t c = 0; c < padded; ++c) {
        tops[c] = c < cols ? g.sink[c % g.heads] : 0.0f;  // the sink is an entry without a value
        sums[c] = 1.0f;
    }
    for (int64_t i = 0; i < padded * dh; i += kLanes) vstore(values + i, vzero());
    const int64_t blocks = group_blocks(g);
    for (int64_t b = 0; b < blocks; ++b) {
        if (add_block(g, s, b)) continue;
        for (int64_t r = 0; r < g.num_rows; ++r) {
            AttentionGroup one = g;
            one.q = g.q + r * g.ld_q;
            one.num_rows = 1;
            one.first_position = g.first_position + r;
            one.lowest = g.lowest + r;
            one.window = g.window + (g.lowest[r] - g.lowest[0]);
            one.num_entries = g.num_entries + r;
            one.out = g.out + r * g.ld_out;
            attend_group(one);
        }
        return;
    }
    for (int64_t c = 0; c < cols; ++c) {
        write_column(values + c / kColumns * kColumns * dh + c % kColumns * 16,
                     256,
                     sums[c],
                     dh,
                     g.out + c / g.heads * g.ld_out + c % g.heads * dh);
    }
}

/// One block of a single row as a part for merge_block: tops [heads], sums [heads], values [heads,
/// dh].
void group_block(const AttentionGroup& g, int64_t index, float* part) {
    const Scratch s = carve(g);
    const int64_t heads = g.heads, dh = g.dh;
    configure_tiles(16, 16);
    load_queries(g, s);
    const Block b = block_of(g, index);
    load_keys(g, b, s);
    for (int64_t c0 = 0; c0 < heads; c0 += kColumns) {
        const int n = columns_of(g, c0);
        const Lanes l = lanes_of(g, b, c0, n);
        F top, sum;
        score_column(g, s, c0, l.begin / 16, (l.end + 15) / 16, s.scores);
        softmax_tile(s, s.scores, l, g.scale, n, &top, &sum);
        const __mmask16 in = static_cast<__mmask16>((1u << n) - 1);
        _mm512_mask_storeu_ps(part + c0, in, top);
        _mm512_mask_storeu_ps(part + heads + c0, in, sum);
        value_tiles(g, s, l, n, [&](int c, int64_t t, F v) {
            vstore(part + 2 * heads + (c0 + c) * dh + 16 * t, v);
        });
    }
}

void finish_group(const AttentionGroup& g, const float* state) {
    for (int64_t h = 0; h < g.heads; ++h) {
        write_column(
            state + 2 * g.heads + h * g.dh, 16, state[g.heads + h], g.dh, g.out + h * g.dh);
    }
}

/// As in attention_inl.h, with the vector maximum's treatment of NaN (there is none: tops are
/// finite).
void merge_block(float* state, const float* part, int64_t heads, int64_t dh) {
    for (int64_t h = 0; h < heads; ++h) {
        const F top = vset(state[h]), block_top = vset(part[h]);
        const F new_top = vmax(block_top, top);
        const F keep = vexp(top - new_top), add = vexp(block_top - new_top);
        state[h] = first_lane(new_top);
        state[heads + h] = first_lane(vset(state[heads + h]) * keep + vset(part[heads + h]) * add);
        float* o = state + 2 * heads + h * dh;
        const float* po = part + 2 * heads + h * dh;
        for (int64_t d = 0; d < dh; d += kLanes)
            vstore(o + d, vfma(vload(o + d), keep, vload(po + d) * add));
    }
}

}  // namespace

extern const AttentionKernels kAttention_amx;
const AttentionKernels kAttention_amx = {nullptr,
                                         nullptr,
                                         0,
                                         nullptr,
                                         &merge_block,
                                         nullptr,
                                         &attend_group,
                                         &group_blocks,
                                         &group_block,
                                         &finish_group};

}  // namespace deepinfer::cpu
