// Kernels over one row of activations: norm, quantizers, rotation, feed-forward gate.
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace deepinfer::cpu {
namespace {

inline void rms_norm_row(
    const uint16_t* x, const float* weight, float eps, int64_t n, uint16_t* out) {
    F s = vzero();
    for (int64_t i = 0; i < n; i += kLanes) {
        const F v = vload_bf16(x + i);
        s = vfma(v, v, s);
    }
    const float mean = vsum(s) / static_cast<float>(n);
    const F r = vset(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < n; i += kLanes) {
        vstore_bf16(out + i, vload_bf16(x + i) * r * vload(weight + i));
    }
}

inline void widen_row(const uint16_t* x, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vload_bf16(x + i));
}

inline void narrow_row(const float* x, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; i += kLanes) vstore_bf16(out + i, vload(x + i));
}

constexpr int kBlock = 32;
constexpr int kBlockV = kBlock / kLanes;

/// Largest magnitude of a block; NaN is passed over (max returns its second operand then).
DI_INLINE float block_amax(const F* v) {
    F a = vzero();
    DI_UNROLL
    for (int i = 0; i < kBlockV; ++i) a = vmax(vabs(v[i]), a);
    return vhmax(a);
}

/// UE8M0 byte of a scale: ue8m0_scale of tensor/quant_block.h.
DI_INLINE int scale_byte(float amax, float inverse_top) {
    const float ratio = amax * inverse_top;
    uint32_t bits;
    __builtin_memcpy(&bits, &ratio, 4);
    return static_cast<int>(((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u));
}
/// 2^(byte - 127) for bytes 1..254.
DI_INLINE float pow2_of(int byte) {
    const int32_t u = byte << 23;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

constexpr int kNanScale = 255;

DI_INLINE F copy_sign(F magnitude, F sign) {
    return as_f(ior(as_i(magnitude), iand(as_i(sign), iset(static_cast<int32_t>(0x80000000u)))));
}

/// |y| to the nearest E4M3 magnitude, ties to even, at most 448. NaN gives anything.
DI_INLINE F round_e4m3(F y) {
    const F a = vmin(vset(448.0f), vabs(y));
    const I m = as_i(a);
    const F normal = as_f(iand(iadd(iadd(m, iset(0x7FFFF)), iand(isrl<20>(m), iset(1))),
                               iset(static_cast<int32_t>(0xFFF00000u))));
    const F sub = (a + vset(16384.0f)) - vset(16384.0f);  // steps of 2^-9
    return vsel(vlt(a, vset(0.015625f)), sub, normal);
}

/// |y| to the nearest E2M1 magnitude, ties to the even code, at most 6; NaN gives 0.
DI_INLINE F round_e2m1(F y) {
    const F a = vmin(vset(6.0f), vabs(y));
    const I m = as_i(a);
    const F normal = as_f(iand(iadd(iadd(m, iset(0x1FFFFF)), iand(isrl<22>(m), iset(1))),
                               iset(static_cast<int32_t>(0xFFC00000u))));
    const F low = (a + vset(4194304.0f)) - vset(4194304.0f);  // steps of 0.5
    return vsel(vnan(y), vzero(), vsel(vlt(a, vset(1.0f)), low, normal));
}

constexpr uint16_t kQuietNan = 0x7FC0;

inline void quant_q8_row(const uint16_t* x, int64_t k, uint16_t* out) {
    for (int64_t b = 0; b < k; b += kBlock) {
        F v[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) v[i] = vload_bf16(x + b + i * kLanes);
        const float amax = block_amax(v);
        const int e = scale_byte(amax > 1e-4f ? amax : 1e-4f, 1.0f / 448.0f);
        if (e >= kNanScale) {
            for (int i = 0; i < kBlock; ++i) out[b + i] = kQuietNan;
            continue;
        }
        const F scale = vset(pow2_of(e)), inverse = vset(pow2_of(254 - e));
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) {
            const F q = copy_sign(round_e4m3(v[i] * inverse) * scale, v[i]);
            istore_u16(out + b + i * kLanes, isel(vnan(v[i]), iset(kQuietNan), isrl<16>(as_i(q))));
        }
    }
}

inline void quant_q4m_row(const uint16_t* x, int64_t k, uint16_t* out) {
    for (int64_t b = 0; b < k; b += kBlock) {
        F v[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) v[i] = vload_bf16(x + b + i * kLanes);
        const float amax = block_amax(v), least = 6.0f * 0x1p-126f;
        const int e = scale_byte(amax > least ? amax : least, 1.0f / 6.0f);
        if (e >= kNanScale) {
            for (int i = 0; i < kBlock; ++i) out[b + i] = kQuietNan;
            continue;
        }
        const F scale = vset(pow2_of(e)), inverse = vset(pow2_of(254 - e));
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) {
            const F a = round_e2m1(v[i] * inverse);
            // Code 8 reads as +0: no sign on a zero.
            const F q = vsel(vlt(vzero(), a), copy_sign(a * scale, v[i]), vzero());
            istore_u16(out + b + i * kLanes, isrl<16>(as_i(q)));
        }
    }
}

inline void pack_q8_row(const uint16_t* x, int64_t k, uint8_t* row) {
    for (int64_t b = 0; b < k; b += kBlock) {
        F v[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) v[i] = vload_bf16(x + b + i * kLanes);
        const float amax = block_amax(v);
        const int e = scale_byte(amax > 1e-4f ? amax : 1e-4f, 1.0f / 448.0f);
        row[k + b / kBlock] = static_cast<uint8_t>(e);
        if (e >= kNanScale) {
            for (int i = 0; i < kBlock; ++i) row[b + i] = 0x7F;
            continue;
        }
        const F inverse = vset(pow2_of(254 - e));
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) {
            const F a = round_e4m3(v[i] * inverse);
            const I normal = isub(isrl<20>(as_i(a)), iset(120 << 3));
            const I sub = vround(a * vset(512.0f));
            const I code = isel(vlt(a, vset(0.015625f)), sub, normal);
            const I sign = iand(isrl<24>(as_i(v[i])), iset(0x80));
            istore_u8(row + b + i * kLanes, isel(vnan(v[i]), iset(0x7F), ior(code, sign)));
        }
    }
}

/// E2M1 codes of magnitudes from round_e2m1 and the sign of x (kept on zeros): 0..15 per lane.
DI_INLINE I e2m1_codes(F magnitude, F x) {
    // Twice the magnitude is 0, 1, 2, 3, 4, 6, 8 or 12; from 4 on every second or fourth is
    // missing.
    const I n = vround(magnitude * vset(2.0f));
    const I upper =
        isel(vlt(vset(3.5f), magnitude), iadd(isrl<2>(n), iset(4)), iadd(isrl<1>(n), iset(2)));
    const I code = isel(vlt(vset(1.75f), magnitude), upper, n);
    return ior(code, isll<3>(isrl<31>(as_i(x))));
}

/// 32 codes → 16 bytes, even index in the low nibble.
DI_INLINE void store_nibbles(const I* codes, uint8_t* out) {
    uint8_t c[kBlock];
    DI_UNROLL
    for (int i = 0; i < kBlockV; ++i) istore_u8(c + i * kLanes, codes[i]);
    uint64_t w[4];
    __builtin_memcpy(w, c, 32);
    for (int i = 0; i < 4; ++i) {
        // Bytes b0 b1 … b7 → (b0 | b1 << 4), … in the low half.
        uint64_t x = (w[i] | (w[i] >> 4)) & 0x00FF00FF00FF00FFull;
        x = (x | (x >> 8)) & 0x0000FFFF0000FFFFull;
        x = x | (x >> 16);
        __builtin_memcpy(out + 4 * i, &x, 4);
    }
}

inline void pack_q4m_row(const uint16_t* x, int64_t k, uint8_t* row) {
    for (int64_t b = 0; b < k; b += kBlock) {
        F v[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) v[i] = vload_bf16(x + b + i * kLanes);
        const float amax = block_amax(v), least = 6.0f * 0x1p-126f;
        const int e = scale_byte(amax > least ? amax : least, 1.0f / 6.0f);
        row[k / 2 + b / kBlock] = static_cast<uint8_t>(e);
        // A NaN scale makes every quotient NaN, whose code is its sign alone: as if the inverse
        // were 0.
        const F inverse = vset(e >= kNanScale ? 0.0f : pow2_of(254 - e));
        I codes[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) codes[i] = e2m1_codes(round_e2m1(v[i] * inverse), v[i]);
        store_nibbles(codes, row + b / 2);
    }
}

/// The E4M3 code nearest to a positive scale up to 448: float_to_e4m3 of tensor/dtype.h.
DI_INLINE uint8_t e4m3_scale(float s) {
    if (!(s < 448.0f)) return 0x7E;
    uint32_t u;
    __builtin_memcpy(&u, &s, 4);
    if (s < 0x1p-6f) return static_cast<uint8_t>((s * 512.0f + 8388608.0f) - 8388608.0f);
    return static_cast<uint8_t>(((u + 0x7FFFFu + ((u >> 20) & 1u)) >> 20) - 960u);
}
DI_INLINE float e4m3_scale_value(uint8_t c) {
    if (c < 8) return static_cast<float>(c) * 0x1p-9f;
    const uint32_t u = (static_cast<uint32_t>(c) << 20) + (120u << 23);
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

inline void pack_q4n_row(const uint16_t* x, int64_t k, uint8_t* row) {
    for (int64_t b = 0; b < k; b += kBlock) {  // two groups of 16, each with its scale
        F v[kBlockV];
        DI_UNROLL
        for (int i = 0; i < kBlockV; ++i) v[i] = vload_bf16(x + b + i * kLanes);
        I codes[kBlockV];
        for (int half = 0; half < 2; ++half) {
            constexpr int kHalfV = kBlockV / 2;
            F a = vzero();
            DI_UNROLL
            for (int i = 0; i < kHalfV; ++i) a = vmax(vabs(v[half * kHalfV + i]), a);
            const float amax = vhmax(a), least = 6.0f * 0x1p-9f;
            const uint8_t c = e4m3_scale((amax > least ? amax : least) / 6.0f);
            row[k / 2 + b / 16 + half] = c;
            const F scale =
                vset(e4m3_scale_value(c));  // a true division: the scale is no power of two
            DI_UNROLL
            for (int i = 0; i < kHalfV; ++i) {
                const F y = v[half * kHalfV + i];
                codes[half * kHalfV + i] = e2m1_codes(round_e2m1(y / scale), y);
            }
        }
        store_nibbles(codes, row + b / 2);
    }
}

inline void rope_row(uint16_t* x, const float* cs, int64_t rd, float sign) {
    for (int64_t i = 0; i < rd; i += 2) {
        const float e = bf16_value(x[i]), o = bf16_value(x[i + 1]), c = cs[i], s = sign * cs[i + 1];
        x[i] = bf16_bits(e * c - o * s);
        x[i + 1] = bf16_bits(e * s + o * c);
    }
}

inline void swiglu_row(
    const float* gate, const float* up, float w, float limit, int64_t n, uint16_t* out) {
    const F top = vset(limit), bottom = vset(-limit), weight = vset(w);
    for (int64_t i = 0; i < n; i += kLanes) {
        F g = round_bf16(vload(gate + i)), u = round_bf16(vload(up + i));
        if (limit > 0.0f) {  // NaN is kept: it is the second operand
            g = vmin(top, g);
            u = vmax(bottom, vmin(top, u));
        }
        vstore_bf16(out + i, g / (vset(1.0f) + vexp(vzero() - g)) * u * weight);
    }
}

constexpr RowKernels row_kernels() {
    return {&rms_norm_row,
            &widen_row,
            &narrow_row,
            &quant_q8_row,
            &quant_q4m_row,
            &pack_q8_row,
            &pack_q4m_row,
            &pack_q4n_row,
            &rope_row,
            &swiglu_row};
}

}  // namespace
}  // namespace deepinfer::cpu
