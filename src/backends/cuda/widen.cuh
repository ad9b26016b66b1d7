// Exact widening of FP8 and FP4 codes to bf16 pairs by bit moves and one packed multiply (no
// conversion chain).
//
// An e4m3 code's magnitude in bits 10..4 of a bf16 is its value times 2^-120, an e2m1 code's in
// bits 8..6 its value times 2^-126 (subnormals included); the multiply brings it back together with
// the block's power of two.
#pragma once

#include "backends/cuda/mma.cuh"

namespace deepinfer::cuda {

/// The same bf16 power of two in both halves; exponent is the biased bf16 exponent (1..254).
__device__ __forceinline__ uint32_t bf16x2_power(uint32_t exponent) {
    return exponent << 7 | exponent << 23;
}
/// Factor that undoes the widening shift of e4m3 and applies a UE8M0 scale byte e: 2^(e - 127 +
/// 120).
__device__ __forceinline__ uint32_t e4m3_factor(uint32_t e) {
    return bf16x2_power(e + 120u);
}

/// Factor from byte `i` of a word of exponents (packed FP4 scales, biased already): two
/// instructions.
template <int I>
__device__ __forceinline__ uint32_t factor_from_byte(uint32_t exponents) {
    return __byte_perm(exponents, 0, I << 12 | 4 << 8 | I << 4 | 4) >> 1;
}

/// Largest scale bytes whose factor is a bf16 number; above them a second multiply is needed.
constexpr uint32_t kMaxE4m3Scale = 134, kMaxE2m1Scale = 128;

/// Codes in bytes 1 and 3 → bf16 pair (low half = byte 1), still to be multiplied by e4m3_factor.
__device__ __forceinline__ uint32_t e4m3_odd(uint32_t w) {
    return ((w >> 4) & 0x07F007F0u) | (w & 0x80008000u);
}
/// Codes in bytes 0 and 2.
__device__ __forceinline__ uint32_t e4m3_even(uint32_t w) {
    return ((w << 4) & 0x07F007F0u) | ((w << 8) & 0x80008000u);
}

/// The two codes of each 16-bit half of a packed FP8 word (packed_weight.cu) → bf16 pairs.
__device__ __forceinline__ uint32_t e4m3_first(uint32_t w) {
    return w & 0x87F087F0u;
}
__device__ __forceinline__ uint32_t e4m3_second(uint32_t w) {
    return ((w << 4) & 0x80F080F0u) | ((w >> 4) & 0x07000700u);
}

/// Nibble i (0..3) of each 16-bit half → bf16 pair, still to be multiplied by e2m1_factor.
template <int I>
__device__ __forceinline__ uint32_t e2m1_nibbles(uint32_t w) {
    if constexpr (I == 0) return ((w << 6) & 0x01C001C0u) | ((w << 12) & 0x80008000u);
    if constexpr (I == 1) return ((w << 2) & 0x01C001C0u) | ((w << 8) & 0x80008000u);
    if constexpr (I == 2) return ((w >> 2) & 0x01C001C0u) | ((w << 4) & 0x80008000u);
    if constexpr (I == 3) return ((w >> 6) & 0x01C001C0u) | (w & 0x80008000u);
}

}  // namespace deepinfer::cuda
