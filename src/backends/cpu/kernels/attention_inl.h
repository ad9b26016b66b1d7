// Sparse attention of one query row, all heads together, fp32.
//
// A block of 64 list entries alone gives maximum, sum and values (`attend_keys`): its keys were
// widened by the caller, once for all rows that see them; scores are kLanes chains over dh and the
// fixed tree; the value product is one chain over the list per output element. `merge_block` adds
// blocks to the row's state in list order. Heads and keys are processed in small tiles that do not
// show in the bits; blocks may be computed anywhere.
#pragma once

#include "backends/cpu/kernels/cache_rows_inl.h"

namespace deepinfer::cpu {
namespace {

// Sums in registers: heads × keys and heads × dims (in vectors). AVX2 has sixteen registers, twelve
// for sums; the baseline's products wait for nothing.
constexpr int kHeadTile = kLanes >= 8 ? 4 : 2;
constexpr int kKeyTile = kLanes == 8 ? 3 : 4;
constexpr int kDimTile = kLanes == 8 ? 3 : 4;

/// Four sums, each by the tree of vsum.
DI_INLINE __m128 sum_four(F a, F b, F c, F d) {
    const __m128 p = fold4(a), q = fold4(b), r = fold4(c), s = fold4(d);
    const __m128 pq = _mm_add_ps(_mm_movelh_ps(p, q), _mm_movehl_ps(q, p)),
                 rs = _mm_add_ps(_mm_movelh_ps(r, s), _mm_movehl_ps(s, r));
    return _mm_add_ps(_mm_shuffle_ps(pq, rs, 0x88), _mm_shuffle_ps(pq, rs, 0xDD));
}

template <int H, int K>
DI_INLINE void score_tile(
    const float* q, const float* const* keys, int64_t dh, float scale, float* p) {
    F acc[H][K];
    DI_UNROLL
    for (int h = 0; h < H; ++h) {
        DI_UNROLL
        for (int j = 0; j < K; ++j) acc[h][j] = vzero();
    }
    for (int64_t d = 0; d < dh; d += kLanes) {
        F kv[K];
        DI_UNROLL
        for (int j = 0; j < K; ++j) kv[j] = vload(keys[j] + d);
        DI_UNROLL
        for (int h = 0; h < H; ++h) {
            const F a = vload(q + h * dh + d);
            DI_UNROLL
            for (int j = 0; j < K; ++j) add_product(acc[h][j], a, kv[j]);
        }
    }
    DI_UNROLL
    for (int j = 0; j < K; ++j) {
        if constexpr (H == 4) {
            float t[4];
            _mm_storeu_ps(t,
                          _mm_mul_ps(sum_four(acc[0][j], acc[1][j], acc[2][j], acc[3][j]),
                                     _mm_set1_ps(scale)));
            DI_UNROLL
            for (int h = 0; h < H; ++h) p[h * kKeyBlock + j] = t[h];
        } else {
            DI_UNROLL
            for (int h = 0; h < H; ++h) p[h * kKeyBlock + j] = vsum(acc[h][j]) * scale;
        }
    }
}

template <int H>
DI_INLINE void score_heads(
    const float* q, const float* const* keys, int64_t n, int64_t dh, float scale, float* p) {
    int64_t j = 0;
    for (; j + kKeyTile <= n; j += kKeyTile) score_tile<H, kKeyTile>(q, keys + j, dh, scale, p + j);
    for (; j < n; ++j) score_tile<H, 1>(q, keys + j, dh, scale, p + j);
}

template <int H, int D>
DI_INLINE void value_tile(
    const float* p, const float* const* keys, int64_t n, int64_t dh, int64_t d, float* o) {
    F acc[H][D];
    DI_UNROLL
    for (int h = 0; h < H; ++h) {
        DI_UNROLL
        for (int i = 0; i < D; ++i) acc[h][i] = vzero();
    }
    for (int64_t j = 0; j < n; ++j) {
        F v[D];
        DI_UNROLL
        for (int i = 0; i < D; ++i) v[i] = vload(keys[j] + d + i * kLanes);
        DI_UNROLL
        for (int h = 0; h < H; ++h) {
            const F w = vset(p[h * kKeyBlock + j]);
            DI_UNROLL
            for (int i = 0; i < D; ++i) add_product(acc[h][i], w, v[i]);
        }
    }
    DI_UNROLL
    for (int h = 0; h < H; ++h) {
        DI_UNROLL
        for (int i = 0; i < D; ++i) vstore(o + h * dh + d + i * kLanes, acc[h][i]);
    }
}

/// o[h] = Σ_j p[h, j] · keys[j], one chain over j per element
template <int H>
DI_INLINE void value_heads(
    const float* p, const float* const* keys, int64_t n, int64_t dh, float* o) {
    int64_t d = 0;
    for (; d + kDimTile * kLanes <= dh; d += kDimTile * kLanes)
        value_tile<H, kDimTile>(p, keys, n, dh, d, o);
    for (; d < dh; d += kLanes) value_tile<H, 1>(p, keys, n, dh, d, o);
}

/// Scores of one head → probabilities in place; the block's maximum and sum.
DI_INLINE void softmax_block(float* p, int64_t n, float* top, float* sum) {
    const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = n; j < padded; ++j) p[j] = -__builtin_inff();
    F m = vset(-__builtin_inff());
    for (int64_t j = 0; j < padded; j += kLanes) m = vmax(vload(p + j), m);  // passes over NaN
    *top = vhmax(m);
    F s = vzero();
    for (int64_t j = 0; j < padded; j += kLanes) {
        const F e = vexp(vload(p + j) - vset(*top));
        vstore(p + j, e);
        s = s + e;
    }
    *sum = vsum(s);
}

inline void widen_window_key(const uint8_t* row, int64_t dh, uint8_t* key) {
    widen_window_row(row, dh, reinterpret_cast<float*>(key));
}
inline void widen_entry_key(const uint8_t* row, int64_t dh, uint8_t* key) {
    widen_entry(row, dh, reinterpret_cast<float*>(key));
}

/// Heads h .. h + H - 1.
template <int H>
DI_INLINE void attend_heads(const float* q,
                            const float* const* keys,
                            int64_t n,
                            int64_t dh,
                            float scale,
                            int64_t h,
                            int64_t heads,
                            float* p,
                            float* part) {
    score_heads<H>(q + h * dh, keys, n, dh, scale, p);
    for (int i = 0; i < H; ++i)
        softmax_block(p + i * kKeyBlock, n, part + h + i, part + heads + h + i);
    value_heads<H>(p, keys, n, dh, part + 2 * heads + h * dh);
}

inline void attend_keys(const AttentionArgs& a, float* scratch, float* part) {
    const int64_t dh = a.dh, heads = a.heads, n = a.num_keys;
    const float* keys[kKeyBlock];
    for (int64_t j = 0; j < n; ++j) keys[j] = reinterpret_cast<const float*>(a.keys[j]);
    float* q = scratch;
    float* p = q + heads * dh;
    for (int64_t i = 0; i < heads * dh; i += kLanes) vstore(q + i, vload_bf16(a.q + i));
    int64_t h = 0;
    for (; h + kHeadTile <= heads; h += kHeadTile)
        attend_heads<kHeadTile>(q, keys, n, dh, a.scale, h, heads, p, part);
    for (; kHeadTile > 2 && h + 2 <= heads; h += 2)
        attend_heads<2>(q, keys, n, dh, a.scale, h, heads, p, part);
    for (; h < heads; ++h) attend_heads<1>(q, keys, n, dh, a.scale, h, heads, p, part);
}

inline void merge_block(float* state, const float* part, int64_t heads, int64_t dh) {
    for (int64_t h = 0; h < heads; ++h) {
        const float top = state[h], block_top = part[h];
        const float new_top = block_top > top ? block_top : top;
        const float keep = first_lane(vexp(vset(top - new_top)));
        const float add = first_lane(vexp(vset(block_top - new_top)));
        state[h] = new_top;
        state[heads + h] = state[heads + h] * keep + part[heads + h] * add;
        float* o = state + 2 * heads + h * dh;
        const float* po = part + 2 * heads + h * dh;
        for (int64_t d = 0; d < dh; d += kLanes) {
            vstore(o + d, vfma(vload(o + d), vset(keep), vload(po + d) * vset(add)));
        }
    }
}

inline void finish_row(const float* state, int64_t heads, int64_t dh, uint16_t* out) {
    for (int64_t h = 0; h < heads; ++h) {
        const F total = vset(state[heads + h]);
        const float* o = state + 2 * heads + h * dh;
        for (int64_t d = 0; d < dh; d += kLanes)
            vstore_bf16(out + h * dh + d, vload(o + d) / total);
    }
}

constexpr AttentionKernels attention_kernels() {
    return {&widen_window_key, &widen_entry_key, 4, &attend_keys, &merge_block, &finish_row};
}

}  // namespace
}  // namespace deepinfer::cpu
