// The arithmetic of token choice, as one source for every device: integer softmax weights and
// Gumbel noise. Only fma, +, -, *, / and integer operations on fp64 appear, each with one IEEE
// rounding and in a fixed order, so a CPU of any instruction set and a GPU give the same bits
// (build device code with -fmad=false as host code is built with -ffp-contract=off; no expression
// here needs either).
//
// Everything is `static` and force-inlined: this file is compiled into several instruction-set
// variants of one program, and the linker must never pick one variant's copy for another.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"

#define DI_MATH DI_HD static inline __attribute__((always_inline))

namespace deepinfer::sampling_math {

/// Weights are multiples of 2^-40 of the most likely token's: a row of 2^18 tokens sums below 2^58.
inline constexpr int kWeightBits = 40;
inline constexpr double kLn2Hi = 0x1.62e42fefa0000p-1;  ///< 37 bits: exact times any exponent
inline constexpr double kLn2Lo = 0x1.cf79abc9e3b3ap-40;
/// Gumbel noise never exceeds this: -log(2^-65) is 45.055 (engine spec 5.4).
inline constexpr double kGumbelMax = 45.1;

DI_MATH uint64_t to_bits(double x) {
    return __builtin_bit_cast(uint64_t, x);
}
DI_MATH double from_bits(uint64_t b) {
    return __builtin_bit_cast(double, b);
}

/// floor(exp(x) · 2^40) for x <= 0; NaN and -inf give 0. exp is within 1 ulp (Taylor to r^13 over
/// |r| <= ln2/2: remainder 4e-18). Branch-free: loops over it vectorise.
DI_MATH uint64_t weight40(double x) {
    constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    x = x > -28.0 ? x : -28.0;           // exp(-28) · 2^40 < 1; also catches NaN
    const double t = fma(x, 0x1.71547652b82fep0, kRound);
    const double n = t - kRound;
    double r = fma(n, -kLn2Hi, x);
    r = fma(n, -kLn2Lo, r);
    double p = 0x1.6124613a86d09p-33;  // 1/13!
    p = fma(p, r, 0x1.1eed8eff8d898p-29);
    p = fma(p, r, 0x1.ae64567f544e4p-26);
    p = fma(p, r, 0x1.27e4fb7789f5cp-22);
    p = fma(p, r, 0x1.71de3a556c734p-19);
    p = fma(p, r, 0x1.a01a01a01a01ap-16);
    p = fma(p, r, 0x1.a01a01a01a01ap-13);
    p = fma(p, r, 0x1.6c16c16c16c17p-10);
    p = fma(p, r, 0x1.1111111111111p-7);
    p = fma(p, r, 0x1.5555555555555p-5);
    p = fma(p, r, 0x1.5555555555555p-3);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    const double scale = from_bits((to_bits(t) + 1023 + kWeightBits) << 52);
    const double v = p * scale;  // a power of two: exact
    const double up = v + 0x1p52;
    const uint64_t rounded = to_bits(up) - to_bits(0x1p52);
    return rounded - static_cast<uint64_t>(up - 0x1p52 > v);
}

/// 2·atanh(s) for |s| <= 0.172, by its series in s² up to s^23.
DI_MATH double two_atanh(double s) {
    const double z = s * s;
    double p = 2.0 / 23;
    p = fma(p, z, 2.0 / 21);
    p = fma(p, z, 2.0 / 19);
    p = fma(p, z, 2.0 / 17);
    p = fma(p, z, 2.0 / 15);
    p = fma(p, z, 2.0 / 13);
    p = fma(p, z, 2.0 / 11);
    p = fma(p, z, 2.0 / 9);
    p = fma(p, z, 2.0 / 7);
    p = fma(p, z, 2.0 / 5);
    p = fma(p, z, 2.0 / 3);
    return fma(p * z, s, 2.0 * s);
}

/// log(x) for normal positive x.
DI_MATH double log_positive(double x) {
    // x = 2^k · f with f in [sqrt(1/2), sqrt(2))
    const uint64_t shifted = to_bits(x) - 0x3fe6a09e667f3bcdull;
    const int64_t k = static_cast<int64_t>(shifted) >> 52;
    const double f = from_bits(to_bits(x) - (static_cast<uint64_t>(k) << 52));
    const double kd = static_cast<double>(k);
    const double l = two_atanh((f - 1.0) / (f + 1.0));
    return fma(kd, kLn2Hi, fma(kd, kLn2Lo, l));
}

/// Standard Gumbel noise from a 32-bit word x and, used only if x < 2^16, a refinement word y.
/// w, the distance from the winning end of the unit interval, is exact in fp64, so tokens of
/// probability 1e-11 and less get their share (engine spec 5.4).
DI_MATH double gumbel_from_words(uint32_t x, uint32_t y) {
    const double w = x >= 0x10000u ? (static_cast<double>(x) + 0.5) * 0x1p-32
                                   : (static_cast<double>((uint64_t{x} << 32) | y) + 0.5) * 0x1p-64;
    // -log1p(-w); for w >= 1/4 the difference 1 - w is exact
    const double e = w < 0.25 ? two_atanh(w / (2.0 - w)) : -log_positive(1.0 - w);
    return -log_positive(e);
}

/// Gumbel noise of one token under a key.
DI_MATH double gumbel_noise(const NoiseKey& key, uint32_t token_id) {
    const uint32_t x = noise_word(key, token_id);
    uint32_t y = 0;
    if (x < 0x10000u) {
        NoiseKey fine = key;
        fine.stream += kNoiseRefineOffset;
        y = noise_word(fine, token_id);
    }
    return gumbel_from_words(x, y);
}

/// Scaled distance to the row's maximum: the exponent of a weight.
DI_MATH double scaled_logit(float logit, double max_logit, double inv_temperature) {
    return (static_cast<double>(logit) - max_logit) * inv_temperature;
}

/// Score whose argmax is the choice: (logit - max)/temperature + noise.
DI_MATH double gumbel_score(float logit, double max_logit, double inv_temperature, double noise) {
    return fma(static_cast<double>(logit) - max_logit, inv_temperature, noise);
}

/// log of a weight sum, in units of the most likely token's weight.
DI_MATH double log_weight_sum(uint64_t sum) {
    return log_positive(static_cast<double>(sum)) - kWeightBits * 0x1.62e42fefa39efp-1;
}

/// The fp32 nearest to `l`, kept finite if the logit it came from is: an edit is not a mask, and a
/// mask
/// (-inf) is never revived.
DI_MATH float edited_logit(float before, double l) {
    constexpr float kMax = 3.4028234663852886e38f;
    if (before >= -kMax && before <= kMax) l = l > kMax ? kMax : (l < -kMax ? -kMax : l);
    return static_cast<float>(l);
}

DI_MATH float biased_logit(float logit, double bias) {
    return edited_logit(logit, static_cast<double>(logit) + bias);
}

/// Penalties of a token that occurs in the prompt or, `count` times, in the output.
DI_MATH float penalized_logit(
    float logit, double repetition, double frequency, double presence, int64_t count) {
    double l = logit;
    l = l > 0 ? l / repetition : l * repetition;
    if (count > 0) l = fma(-frequency, static_cast<double>(count), l) - presence;
    return edited_logit(logit, l);
}

}  // namespace deepinfer::sampling_math
