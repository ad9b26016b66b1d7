// Sparse attention on vdpbf16ps: keys stay bf16, which holds every packed value exactly.
//
// Scores are dot products of bf16 pairs, 16 chains over dh and then the fixed tree; probabilities
// and the value products are fp32. Four heads and four keys make a tile whose sixteen sums are
// folded together. A part's values stand as they are made: per 32 dims the 16 even ones, then the
// 16 odd ones; finish_row puts them back.
#include "backends/cpu/kernels/amx_widen.h"
#include "backends/cpu/kernels/attention_inl.h"

namespace deepinfer::cpu {
namespace {

constexpr int kHeads = 4;  // of a tile; missing ones repeat the last
constexpr int kKeys = 4;

DI_INLINE F dot(F acc, I a, I b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// 32 codes · 2^(exponent - 127) → bf16; false (nothing written) if one is NaN. exponent
/// in 27..227.
DI_INLINE bool widen_codes(const uint8_t* codes, int exponent, uint16_t* out) {
    const I w = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    // s....eeee.mmm....: a bf16 number with another exponent bias, but for the eight subnormals,
    // which come from a table (bf16 of m · 2^-9 four times: vpermw reads two bits too many).
    const I bits = iand(_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 4),
                        _mm512_set1_epi16(static_cast<int16_t>(0x87F0)));
    const __mmask32 nan =
        _mm512_cmpeq_epi16_mask(iand(bits, _mm512_set1_epi16(0x07F0)), _mm512_set1_epi16(0x07F0));
    if (nan != 0) return false;
    const I scale = _mm512_set1_epi16(static_cast<int16_t>((exponent - 127) * 128));
    I v = _mm512_add_epi16(_mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7)), scale);
    const __mmask32 subnormal = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x0780));
    if (subnormal != 0) {
        constexpr __mmask32 kNotZero = 0xFEFEFEFEu;
        I table = _mm512_broadcast_i32x4(
            _mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
        table = _mm512_mask_add_epi16(table, kNotZero, table, scale);
        v = _mm512_mask_permutexvar_epi16(v, subnormal, _mm512_srli_epi16(bits, 4), table);
        v = _mm512_ternarylogic_epi32(
            v, bits, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);  // v | (bits & sign)
    }
    _mm512_store_si512(out, v);
    return true;
}

void widen_window_key16(const uint8_t* row, int64_t dh, uint8_t* key) {
    uint16_t* out = reinterpret_cast<uint16_t*>(key);
    for (int64_t b = 0; b < dh; b += 32) {
        const uint8_t e = row[dh + b / 32];
        if (e >= 27 && e <= 227 && widen_codes(row + b, e, out + b)) continue;
        // NaN, or a scale that no finite activation has.
        const float s = ue8m0_value(e);
        for (int i = 0; i < 32; ++i) out[b + i] = bf16_bits(kFp8OrNan.value[row[b + i]] * s);
    }
}

void widen_entry_key16(const uint8_t* row, int64_t dh, uint8_t* key) {
    widen_entry_bf16(row, dh, reinterpret_cast<uint16_t*>(key), 32);
}

/// Sums of four vectors, each by the tree of vsum up to its last two steps: lane group j of the
/// result holds what is left of a[j].
DI_INLINE F fold_four(const F* a) {
    const F ab = _mm512_shuffle_f32x4(a[0], a[1], 0x44) + _mm512_shuffle_f32x4(a[0], a[1], 0xEE);
    const F cd = _mm512_shuffle_f32x4(a[2], a[3], 0x44) + _mm512_shuffle_f32x4(a[2], a[3], 0xEE);
    return _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xDD);
}

/// scores[4 · key + head] of kKeys keys and kHeads heads.
DI_INLINE void score_tile16(
    const uint16_t* const* q, const uint8_t* const* keys, int64_t dh, float scale, float* scores) {
    F acc[kHeads][kKeys];
    DI_UNROLL
    for (int h = 0; h < kHeads; ++h) {
        DI_UNROLL
        for (int j = 0; j < kKeys; ++j) acc[h][j] = vzero();
    }
    for (int64_t d = 0; d < dh; d += 32) {
        I kv[kKeys];
        DI_UNROLL
        for (int j = 0; j < kKeys; ++j) kv[j] = iload(keys[j] + 2 * d);
        DI_UNROLL
        for (int h = 0; h < kHeads; ++h) {
            const I a = iload(q[h] + d);
            DI_UNROLL
            for (int j = 0; j < kKeys; ++j) acc[h][j] = dot(acc[h][j], a, kv[j]);
        }
    }
    F z[kHeads];
    DI_UNROLL
    for (int h = 0; h < kHeads; ++h) z[h] = fold_four(acc[h]);
    const F ab = _mm512_unpacklo_ps(z[0], z[1]) + _mm512_unpackhi_ps(z[0], z[1]),
            cd = _mm512_unpacklo_ps(z[2], z[3]) + _mm512_unpackhi_ps(z[2], z[3]);
    const F sum = _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xEE);
    vstore(scores, sum * vset(scale));
}

/// Maxima and sums of four heads that stand side by side in every vector.
DI_INLINE F max_of_groups(F v) {
    v = vmax(v, _mm512_shuffle_f32x4(v, v, 0x4E));
    return vmax(v, _mm512_shuffle_f32x4(v, v, 0xB1));
}
DI_INLINE F sum_of_groups(F v) {
    v = v + _mm512_shuffle_f32x4(v, v, 0x4E);
    return v + _mm512_shuffle_f32x4(v, v, 0xB1);
}

/// Scores of n keys → probabilities in place; maxima and sums of the four heads.
DI_INLINE void softmax_tile16(float* p, int64_t n, float* top, float* sum) {
    const F minus_inf = vset(-__builtin_inff());
    const int64_t padded = (n + kKeys - 1) / kKeys * kKeys;
    for (int64_t i = kHeads * n; i < kHeads * padded; ++i) p[i] = -__builtin_inff();
    F m = minus_inf;
    for (int64_t j = 0; j < padded; j += kKeys) m = vmax(vload(p + kHeads * j), m);  // passes NaN
    m = max_of_groups(m);
    F s = vzero();
    for (int64_t j = 0; j < padded; j += kKeys) {
        const F e = vexp(vload(p + kHeads * j) - m);
        vstore(p + kHeads * j, e);
        s = s + e;
    }
    _mm_storeu_ps(top, _mm512_castps512_ps128(m));
    _mm_storeu_ps(sum, _mm512_castps512_ps128(sum_of_groups(s)));
}

/// o[h] = Σ_j p[4j + h] · keys[j], one chain over j per element, for `count` heads.
DI_INLINE void value_tile16(
    const float* p, const uint8_t* const* keys, int64_t n, int64_t dh, int count, float* o) {
    const I upper = iset(static_cast<int32_t>(0xFFFF0000u));
    for (int64_t d = 0; d < dh; d += 64) {
        F acc[kHeads][4];
        DI_UNROLL
        for (int h = 0; h < kHeads; ++h) {
            DI_UNROLL
            for (int i = 0; i < 4; ++i) acc[h][i] = vzero();
        }
        for (int64_t j = 0; j < n; ++j) {
            const I a = iload(keys[j] + 2 * d), b = iload(keys[j] + 2 * d + 64);
            const F v[4] = {
                as_f(isll<16>(a)), as_f(iand(a, upper)), as_f(isll<16>(b)), as_f(iand(b, upper))};
            DI_UNROLL
            for (int h = 0; h < kHeads; ++h) {
                const F w = vset(p[kHeads * j + h]);
                DI_UNROLL
                for (int i = 0; i < 4; ++i) acc[h][i] = vfma(w, v[i], acc[h][i]);
            }
        }
        for (int h = 0; h < kHeads && h < count; ++h) {
            DI_UNROLL
            for (int i = 0; i < 4; ++i) vstore(o + h * dh + d + 16 * i, acc[h][i]);
        }
    }
}

void attend_keys16(const AttentionArgs& a, float* scratch, float* part) {
    const int64_t n = a.num_keys, dh = a.dh;
    const uint8_t* keys[kKeyBlock + kKeys];
    for (int64_t j = 0; j < n; ++j) keys[j] = a.keys[j];
    for (int64_t j = n; j % kKeys != 0; ++j) keys[j] = a.keys[n - 1];
    float* p = scratch;
    for (int64_t h0 = 0; h0 < a.heads; h0 += kHeads) {
        const int count = static_cast<int>(a.heads - h0 < kHeads ? a.heads - h0 : kHeads);
        const uint16_t* q[kHeads];
        for (int h = 0; h < kHeads; ++h) q[h] = a.q + (h0 + (h < count ? h : count - 1)) * dh;
        for (int64_t j = 0; j < n; j += kKeys)
            score_tile16(q, keys + j, dh, a.scale, p + kHeads * j);
        float top[kHeads], sum[kHeads];
        softmax_tile16(p, n, top, sum);
        for (int h = 0; h < count; ++h) {
            part[h0 + h] = top[h];
            part[a.heads + h0 + h] = sum[h];
        }
        value_tile16(p, keys, n, dh, count, part + 2 * a.heads + h0 * dh);
    }
}

void finish_row16(const float* state, int64_t heads, int64_t dh, uint16_t* out) {
    for (int64_t h = 0; h < heads; ++h) {
        const F total = vset(state[heads + h]);
        const float* o = state + 2 * heads + h * dh;
        for (int64_t d = 0; d < dh; d += 32) {
            const I even = round_bf16_bits(vload(o + d) / total),
                    odd = round_bf16_bits(vload(o + d + 16) / total);
            _mm512_storeu_si512(out + h * dh + d, ior(even, isll<16>(odd)));
        }
    }
}

}  // namespace

extern const AttentionKernels kAttention_avx512bf16;
const AttentionKernels kAttention_avx512bf16 = {
    &widen_window_key16, &widen_entry_key16, 2, &attend_keys16, &merge_block, &finish_row16};

}  // namespace deepinfer::cpu
