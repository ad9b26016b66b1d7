// Index scores: keys become an fp32 panel for the GEMM kernel (dots exact), then the head sum.
#pragma once

#include "backends/cpu/kernels/cache_rows_inl.h"

namespace deepinfer::cpu {
namespace {

inline void widen_keys(const uint8_t* const* keys, int64_t di, float* panel) {
    for (int lane0 = 0; lane0 < kPanelRows; lane0 += kLanes) {
        for (int64_t b = 0; b < di; b += 32) {
            float scales[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                const uint8_t* key = keys[lane0 + i];
                scales[i] = key != nullptr ? ue8m0_value(key[di / 2 + b / 32]) : 0.0f;
            }
            const F s = vload(scales);
            for (int64_t g = b; g < b + 32; g += 8) {
                uint32_t words[kLanes];
                for (int i = 0; i < kLanes; ++i) {
                    const uint8_t* key = keys[lane0 + i];
                    words[i] = 0;
                    if (key != nullptr) __builtin_memcpy(&words[i], key + g / 2, 4);
                }
                I d = iload(words);
                for (int t = 0; t < 8; ++t) {
                    vstore(panel + (g + t) * kPanelRows + lane0, fp4_decode(d) * s);
                    d = isrl<4>(d);
                }
            }
        }
    }
}

/// kBf16 panel: half (16 keys), pair of dims, key, dim of the pair. Products e2m1 · 2^e are exact
/// in bf16.
inline void widen_keys_bf16(const uint8_t* const* keys, int64_t di, uint16_t* panel) {
    for (int lane0 = 0; lane0 < kPanelRows; lane0 += kLanes) {
        uint16_t* half = panel + lane0 / 16 * di * 16 + lane0 % 16 * 2;
        for (int64_t b = 0; b < di; b += 32) {
            float scales[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                const uint8_t* key = keys[lane0 + i];
                scales[i] = key != nullptr ? ue8m0_value(key[di / 2 + b / 32]) : 0.0f;
            }
            const F s = vload(scales);
            for (int64_t g = b; g < b + 32; g += 8) {
                uint32_t words[kLanes];
                for (int i = 0; i < kLanes; ++i) {
                    const uint8_t* key = keys[lane0 + i];
                    words[i] = 0;
                    if (key != nullptr) __builtin_memcpy(&words[i], key + g / 2, 4);
                }
                I d = iload(words);
                for (int t = 0; t < 8; t += 2) {
                    const I even = as_i(fp4_decode(d) * s), odd = as_i(fp4_decode(isrl<4>(d)) * s);
                    vstore(reinterpret_cast<float*>(half + (g + t) / 2 * 32),
                           as_f(ior(isrl<16>(even),
                                    iand(odd, iset(static_cast<int32_t>(0xFFFF0000u))))));
                    d = isrl<8>(d);
                }
            }
        }
    }
}

inline void head_sum(const float* dots, const float* hw, int64_t heads, float* scores) {
    F acc[kV];
    DI_UNROLL
    for (int i = 0; i < kV; ++i) acc[i] = vzero();
    for (int64_t h = 0; h < heads; ++h) {
        DI_UNROLL
        for (int i = 0; i < kV; ++i) {
            const F d = vload(dots + h * kPanelRows + i * kLanes);
            // Two roundings at every level, like the twin: equal scores stay equal everywhere.
            acc[i] = acc[i] + vset(hw[h]) * vsel(vlt(d, vzero()), vzero(), d);
        }
    }
    DI_UNROLL
    for (int i = 0; i < kV; ++i) vstore(scores + i * kLanes, acc[i]);
}

constexpr IndexKernels index_kernels() {
    return {&widen_keys_bf16, &widen_keys, &head_sum};
}

}  // namespace
}  // namespace deepinfer::cpu
