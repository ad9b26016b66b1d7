// Device side of tensor/dtype.h and tensor/quant_block.h: the same bits, one lane or one small
// group at a time.
//
// bf16 values travel as their 16 bits. Nothing here rounds except where its name says so.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deepinfer::cuda {

__device__ __forceinline__ float bf16_value(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

/// Nearest even; NaN keeps its upper bits and becomes quiet (as to_bf16 on the host).
__device__ __forceinline__ uint16_t round_bf16_bits(float x) {
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float round_bf16(float x) {
    return bf16_value(round_bf16_bits(x));
}

__device__ __forceinline__ float e4m3_value(uint32_t c) {
    const uint32_t mag = c & 0x7Fu;
    const uint32_t sign = (c & 0x80u) << 24;
    if (mag == 0x7F) return __uint_as_float(0x7FC00000u);
    // As bits of a float whose exponent is 120 too small; the product is exact, subnormal codes
    // included.
    return __uint_as_float((mag << 20) | sign) * 0x1p120f;
}

/// Nearest even, saturating, NaN as 0x7F: the host's float_to_e4m3, in one instruction.
__device__ __forceinline__ uint8_t e4m3_code(float x) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(pair & 0xFFu);
}

__device__ __forceinline__ float ue8m0_value(uint32_t c) {
    if (c == 255) return __uint_as_float(0x7FC00000u);
    return c == 0 ? 0x1p-127f : __uint_as_float(c << 23);
}

/// Value of an E2M1 code; code 8 is +0, as in the host table.
__device__ __forceinline__ float e2m1_value(uint32_t code) {
    const uint32_t mag = code & 7u;
    const float v =
        __uint_as_float(mag << 22) * 0x1p126f;  // ee m in the exponent's low bits: exact
    return (code & 8u) != 0 && mag != 0 ? -v : v;
}

__device__ __forceinline__ uint32_t e2m1_code(float x) {
    const float a = fabsf(x);
    uint32_t c = 0;
    c += a > 0.25f;
    c += a >= 0.75f;
    c += a > 1.25f;
    c += a >= 1.75f;
    c += a > 2.5f;
    c += a >= 3.5f;
    c += a > 5.0f;
    return c | ((__float_as_uint(x) >> 28) & 8u);
}

/// Byte of 2^ceil(log2(amax / top)), inverse_top = fp32(1 / top).
__device__ __forceinline__ uint32_t ue8m0_scale_byte(float amax, float inverse_top) {
    const uint32_t bits = __float_as_uint(__fmul_rn(amax, inverse_top));
    return ((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
}

/// 1 / scale for a scale byte in 1..254; a power of two, so x · inverse equals the division x /
/// scale.
__device__ __forceinline__ float ue8m0_inverse(uint32_t e) {
    if (e >= 255) return __uint_as_float(0x7FC00000u);
    return e == 254 ? 0x1p-127f : __uint_as_float((254u - e) << 23);
}

/// fmaxf over the lanes of aligned groups of `Width` (a power of two).
template <int Width>
__device__ __forceinline__ float group_max(float v) {
#pragma unroll
    for (int d = Width / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, d, Width));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
    return v;
}

/// Sum over a block of `Threads` (a multiple of 32) in one fixed tree; every thread gets it.
/// `shared` holds Threads / 32 floats and may be reused after the next __syncthreads().
template <int Threads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < Threads / 32; ++i) total += shared[i];
    __syncthreads();
    return total;
}

/// Eight bf16 in a row. With `aligned` (16-byte address) one load, else eight; the values are the
/// same.
struct Bf16x8 {
    uint16_t v[8];
};
__device__ __forceinline__ Bf16x8 load8(const uint16_t* p, bool aligned) {
    Bf16x8 r;
    if (aligned) {
        *reinterpret_cast<uint4*>(r.v) = *reinterpret_cast<const uint4*>(p);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) r.v[i] = p[i];
    }
    return r;
}
__device__ __forceinline__ void store8(uint16_t* p, const Bf16x8& r, bool aligned) {
    if (aligned) {
        *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(r.v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) p[i] = r.v[i];
    }
}

}  // namespace deepinfer::cuda
