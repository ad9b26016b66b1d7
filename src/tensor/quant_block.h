// The three block quantizers of the model (q8, q4m, q4n) on one block. Pure functions of fp32
// values, defined to the bit; every implementation on every device must give these codes.
//
//   q8   32 values, FP8 E4M3, power-of-two scale with top 448      activations, window rows
//   q4m  32 values, FP4 E2M1, power-of-two scale with top 6        index queries and keys
//   q4n  16 values, FP4 E2M1, E4M3 scale (true division)           compressed KV entries
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tensor/dtype.h"

namespace deepinfer {

constexpr int kQ8Block = 32;
constexpr int kQ4mBlock = 32;
constexpr int kQ4nBlock = 16;

/// Scale byte 2^ceil(log2(amax/top)) as UE8M0: exponent field of the fp32 product, +1 if its
/// mantissa is not 0.
inline uint8_t ue8m0_scale(float amax, float inverse_top) {
    const uint32_t bits = std::bit_cast<uint32_t>(amax * inverse_top);
    return static_cast<uint8_t>(((bits >> 23) & 0xFFu) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u));
}

/// Largest magnitude of n values (NaN is ignored here; it shows in the codes).
inline float block_amax(const float* x, int n) {
    float a = 0.0f;
    for (int i = 0; i < n; ++i) a = std::max(a, std::fabs(x[i]));
    return a;
}

/// x[32] → codes[32], returns the UE8M0 scale byte.
inline uint8_t q8_block(const float* x, uint8_t* codes) {
    const uint8_t e = ue8m0_scale(std::max(block_amax(x, kQ8Block), 1e-4f), 1.0f / 448.0f);
    const float scale = ue8m0_to_float(e);
    for (int i = 0; i < kQ8Block; ++i) codes[i] = float_to_e4m3(x[i] / scale);
    return e;
}

/// x[32] → 16 bytes of nibbles (even index low), returns the UE8M0 scale byte.
inline uint8_t q4m_block(const float* x, uint8_t* packed) {
    const uint8_t e =
        ue8m0_scale(std::max(block_amax(x, kQ4mBlock), 6.0f * 0x1p-126f), 1.0f / 6.0f);
    const float scale = ue8m0_to_float(e);
    for (int i = 0; i < kQ4mBlock; i += 2) {
        packed[i / 2] = static_cast<uint8_t>(float_to_e2m1(x[i] / scale) |
                                             (float_to_e2m1(x[i + 1] / scale) << 4));
    }
    return e;
}

/// x[16] → 8 bytes of nibbles, returns the E4M3 scale byte (saturates at 448).
inline uint8_t q4n_block(const float* x, uint8_t* packed) {
    const uint8_t s = float_to_e4m3(std::max(block_amax(x, kQ4nBlock), 6.0f * 0x1p-9f) / 6.0f);
    const float scale = e4m3_to_float(s);
    for (int i = 0; i < kQ4nBlock; i += 2) {
        packed[i / 2] = static_cast<uint8_t>(float_to_e2m1(x[i] / scale) |
                                             (float_to_e2m1(x[i + 1] / scale) << 4));
    }
    return s;
}

// ---- packed cache rows
// -----------------------------------------------------------------------------
//
// All codes of a row first, then all its scales (model spec 6.1): window row = dim E4M3 codes +
// dim/32 UE8M0, KV entry = dim/2 nibble bytes + dim/16 E4M3, index key = dim/2 nibble bytes +
// dim/32 UE8M0.

constexpr int64_t window_row_bytes(int64_t dim) {
    return dim + dim / kQ8Block;
}
constexpr int64_t kv_entry_bytes(int64_t dim) {
    return dim / 2 + dim / kQ4nBlock;
}
constexpr int64_t index_key_bytes(int64_t dim) {
    return dim / 2 + dim / kQ4mBlock;
}

inline void unpack_window_row(const uint8_t* row, int64_t dim, float* out) {
    for (int64_t i = 0; i < dim; ++i)
        out[i] = e4m3_to_float(row[i]) * ue8m0_to_float(row[dim + i / kQ8Block]);
}
inline void unpack_kv_entry(const uint8_t* row, int64_t dim, float* out) {
    for (int64_t i = 0; i < dim; ++i) {
        const uint8_t code = static_cast<uint8_t>((row[i / 2] >> (4 * (i & 1))) & 15u);
        out[i] = e2m1_to_float(code) * e4m3_to_float(row[dim / 2 + i / kQ4nBlock]);
    }
}
inline void unpack_index_key(const uint8_t* row, int64_t dim, float* out) {
    for (int64_t i = 0; i < dim; ++i) {
        const uint8_t code = static_cast<uint8_t>((row[i / 2] >> (4 * (i & 1))) & 15u);
        out[i] = e2m1_to_float(code) * ue8m0_to_float(row[dim / 2 + i / kQ4mBlock]);
    }
}

}  // namespace deepinfer
