// Kernels over the residual streams of one token: mHC sums, collapse, expand, Engram gate.
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace deepinfer::cpu {
namespace {

/// G outputs of R rows at once. Each output has kLanes chains over i and the fixed tree of vsum at
/// the end, so neither grouping shows in the bits.
template <int R, int G>
DI_INLINE void mix_group(const float* x, const float* fn, int64_t n, float* m, int num_out) {
    F acc[R][G];
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int o = 0; o < G; ++o) acc[r][o] = vzero();
    }
    for (int64_t i = 0; i < n; i += kLanes) {
        F v[R];
        DI_UNROLL
        for (int r = 0; r < R; ++r) v[r] = vload(x + r * n + i);
        DI_UNROLL
        for (int o = 0; o < G; ++o) {
            const F w = vload(fn + o * n + i);
            DI_UNROLL
            for (int r = 0; r < R; ++r) acc[r][o] = vfma(w, v[r], acc[r][o]);
        }
    }
    DI_UNROLL
    for (int r = 0; r < R; ++r) {
        DI_UNROLL
        for (int o = 0; o < G; ++o) m[r * num_out + o] = vsum(acc[r][o]);
    }
}

template <int R, int G>
DI_INLINE void mix_rows(const float* x, const float* fn, int64_t n, int num_out, float* m) {
    int o = 0;
    for (; o + G <= num_out; o += G) mix_group<R, G>(x, fn + o * n, n, m + o, num_out);
    for (; o < num_out; ++o) mix_group<R, 1>(x, fn + o * n, n, m + o, num_out);
}

inline float sum_of_squares(const float* x, int64_t n) {
    F s[4] = {vzero(), vzero(), vzero(), vzero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        DI_UNROLL
        for (int j = 0; j < 4; ++j) {
            const F v = vload(x + i + j * kLanes);
            s[j] = vfma(v, v, s[j]);
        }
    }
    for (; i < n; i += kLanes) {
        const F v = vload(x + i);
        s[0] = vfma(v, v, s[0]);
    }
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

inline void mix_sums(const uint16_t* x,
                     int64_t ldx,
                     int num_rows,
                     const float* fn,
                     int64_t n,
                     int num_out,
                     float* wide,
                     float* m,
                     float* squares) {
    for (int r = 0; r < num_rows; ++r) {
        for (int64_t i = 0; i < n; i += kLanes)
            vstore(wide + r * n + i, vload_bf16(x + r * ldx + i));
        squares[r] = sum_of_squares(wide + r * n, n);
    }
    if (num_rows == kMixRows)
        return mix_rows < kMixRows, kLanes == 16 ? 6 : 2 > (wide, fn, n, num_out, m);
    for (int r = 0; r < num_rows; ++r)
        mix_rows<1, kLanes == 16 ? 24 : 12>(wide + r * n, fn, n, num_out, m + r * num_out);
}

inline void collapse(const uint16_t* x, const float* pre, int hc, int64_t d, uint16_t* out) {
    for (int64_t i = 0; i < d; i += kLanes) {
        F a = vset(pre[0]) * vload_bf16(x + i);
        for (int s = 1; s < hc; ++s) a = vfma(vset(pre[s]), vload_bf16(x + s * d + i), a);
        vstore_bf16(out + i, a);
    }
}

template <int HC>
DI_INLINE void expand_hc(const uint16_t* y,
                         const uint16_t* x,
                         const float* post,
                         const float* comb,
                         int64_t d,
                         uint16_t* out) {
    for (int64_t i = 0; i < d; i += kLanes) {
        const F v = vload_bf16(y + i);
        F xs[HC];
        DI_UNROLL
        for (int j = 0; j < HC; ++j) xs[j] = vload_bf16(x + j * d + i);
        DI_UNROLL
        for (int k = 0; k < HC; ++k) {
            F a = vset(post[k]) * v;
            DI_UNROLL
            for (int j = 0; j < HC; ++j) a = vfma(vset(comb[j * HC + k]), xs[j], a);
            vstore_bf16(out + k * d + i, a);
        }
    }
}

inline void expand(const uint16_t* y,
                   const uint16_t* x,
                   const float* post,
                   const float* comb,
                   int hc,
                   int64_t d,
                   uint16_t* out) {
    if (hc == 4) return expand_hc<4>(y, x, post, comb, d, out);
    for (int k = 0; k < hc; ++k) {
        for (int64_t i = 0; i < d; i += kLanes) {
            F a = vset(post[k]) * vload_bf16(y + i);
            for (int j = 0; j < hc; ++j)
                a = vfma(vset(comb[j * hc + k]), vload_bf16(x + j * d + i), a);
            vstore_bf16(out + k * d + i, a);
        }
    }
}

inline void engram_sums(const uint16_t* x,
                        const uint16_t* key,
                        const float* q,
                        const float* k,
                        int64_t d,
                        float* sums) {
    F xx = vzero(), kk = vzero(), xk = vzero();
    for (int64_t i = 0; i < d; i += kLanes) {
        const F a = vload_bf16(x + i), b = vload_bf16(key + i);
        xx = vfma(a, a, xx);
        kk = vfma(b, b, kk);
        xk = vfma(a * (vload(q + i) * vload(k + i)), b, xk);
    }
    sums[0] = vsum(xx);
    sums[1] = vsum(kk);
    sums[2] = vsum(xk);
}

inline void add_scaled(uint16_t* x, const uint16_t* value, float gate, int64_t d) {
    for (int64_t i = 0; i < d; i += kLanes) {
        vstore_bf16(x + i, vfma(vset(gate), vload_bf16(value + i), vload_bf16(x + i)));
    }
}

inline void sum_rows(const uint16_t* const* rows, int64_t n, int64_t d, uint16_t* out) {
    for (int64_t i = 0; i < d; i += kLanes) {
        F a = vzero();
        for (int64_t r = 0; r < n; ++r) a = a + vload_bf16(rows[r] + i);
        vstore_bf16(out + i, a);
    }
}

constexpr MhcKernels mhc_kernels() {
    return {&mix_sums, &collapse, &expand, &engram_sums, &add_scaled, &sum_rows};
}

}  // namespace
}  // namespace deepinfer::cpu
