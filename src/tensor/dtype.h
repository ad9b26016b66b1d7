// Element types of the model and their exact conversions (spec: checkpoint encodings).
//
// bf16 and the 8- and 4-bit floats are stored as raw bytes; everything here is a pure function of
// those bits, tested exhaustively against the unit vectors.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace deepinfer {

enum class DType : uint8_t {
    kF32,
    kF64,
    kBF16,
    kFP8E4M3,  ///< 1-4-3, bias 7, max 448, no infinity, 0x7F/0xFF NaN
    kUE8M0,    ///< byte c is 2^(c-127), 255 NaN
    kFP4,      ///< two E2M1 values a byte, low nibble first; shapes count values, not bytes
    kU8,
    kI32,
    kI64,
};

const char* dtype_name(DType t);

/// Bits of one element (4 for kFP4).
constexpr int dtype_bits(DType t) {
    switch (t) {
        case DType::kF64:
        case DType::kI64:
            return 64;
        case DType::kF32:
        case DType::kI32:
            return 32;
        case DType::kBF16:
            return 16;
        case DType::kFP4:
            return 4;
        default:
            return 8;
    }
}

/// Two-byte brain float. g++ 12 has no __bf16, and a struct keeps accidental arithmetic out.
struct bf16 {
    uint16_t bits = 0;
};

inline float to_float(bf16 x) {
    return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

/// Round to nearest even; NaN stays NaN.
inline bf16 to_bf16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}
/// A double reaches bf16 through fp32 (two roundings), as the exact goldens do.
inline bf16 to_bf16(double x) {
    return to_bf16(static_cast<float>(x));
}

inline float round_bf16(float x) {
    return to_float(to_bf16(x));
}

/// Value of an FP8 E4M3FN code.
inline float e4m3_to_float(uint8_t c) {
    const uint32_t sign = static_cast<uint32_t>(c & 0x80u) << 24;
    const uint32_t mag = c & 0x7Fu;
    if (mag == 0x7F) return std::numeric_limits<float>::quiet_NaN();
    if (mag < 8) {  // subnormal: mag · 2^-9
        const float v = static_cast<float>(mag) * 0x1p-9f;
        return sign != 0 ? -v : v;
    }
    return std::bit_cast<float>(sign | ((mag << 20) + (120u << 23)));
}

/// Nearest E4M3 code, ties to even, clamped to ±448; NaN gives 0x7F.
inline uint8_t float_to_e4m3(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint8_t sign = static_cast<uint8_t>((u >> 24) & 0x80u);
    const float a = std::fabs(x);
    if (std::isnan(x)) return 0x7F;
    if (a >= 448.0f) return static_cast<uint8_t>(sign | 0x7Eu);
    if (a < 0x1p-6f) {  // subnormal step 2^-9; nearbyint is ties-to-even in the default mode
        const float q = (a * 0x1p9f + 0x1p23f) - 0x1p23f;
        return static_cast<uint8_t>(sign | static_cast<uint8_t>(q));
    }
    const uint32_t m = u & 0x7FFFFFFFu;
    const uint32_t r = (m + 0x7FFFFu + ((m >> 20) & 1u)) >> 20;  // keep three mantissa bits
    return static_cast<uint8_t>(sign | (r - (120u << 3)));
}

/// 2^(c-127); 0 is 2^-127 (subnormal), 255 is NaN.
inline float ue8m0_to_float(uint8_t c) {
    if (c == 255) return std::numeric_limits<float>::quiet_NaN();
    if (c == 0) return 0x1p-127f;
    return std::bit_cast<float>(static_cast<uint32_t>(c) << 23);
}

/// Value of an E2M1 code 0..15 (code 8 is +0 here; the sign of zero never matters downstream).
inline float e2m1_to_float(uint8_t code) {
    constexpr float kTable[16] = {0.0f,
                                  0.5f,
                                  1.0f,
                                  1.5f,
                                  2.0f,
                                  3.0f,
                                  4.0f,
                                  6.0f,
                                  0.0f,
                                  -0.5f,
                                  -1.0f,
                                  -1.5f,
                                  -2.0f,
                                  -3.0f,
                                  -4.0f,
                                  -6.0f};
    return kTable[code & 15u];
}

/// Nearest E2M1 code, ties to the even code, clamped to ±6; the sign bit is copied (so -0 is code
/// 8).
inline uint8_t float_to_e2m1(float x) {
    const float a = std::fabs(x);
    // Thresholds between magnitudes; a tie goes to the even code, hence > at odd and >= at even
    // targets.
    uint8_t c = 0;
    c = static_cast<uint8_t>(c + (a > 0.25f));
    c = static_cast<uint8_t>(c + (a >= 0.75f));
    c = static_cast<uint8_t>(c + (a > 1.25f));
    c = static_cast<uint8_t>(c + (a >= 1.75f));
    c = static_cast<uint8_t>(c + (a > 2.5f));
    c = static_cast<uint8_t>(c + (a >= 3.5f));
    c = static_cast<uint8_t>(c + (a > 5.0f));
    return static_cast<uint8_t>(c | ((std::bit_cast<uint32_t>(x) >> 28) & 8u));
}

}  // namespace deepinfer
