// Kernels of the vision tower: the softmax between the two products of its attention, and its
// row-wise steps.
#pragma once

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"

namespace deepinfer::cpu {
namespace {

inline void vit_softmax_block(const VitSoftmaxArgs& a) {
    constexpr int kPanelV = kPanelRows / kLanes;
    const int64_t panels = (a.num_keys + kPanelRows - 1) / kPanelRows;
    const int64_t last = a.num_keys - (panels - 1) * kPanelRows;  // keys of the last panel
    const F scale = vset(a.scale);
    for (int64_t r = 0; r < a.num_rows; ++r) {
        float* tail = a.scores + ((panels - 1) * a.num_rows + r) * kPanelRows;
        for (int64_t j = last; j < kPanelRows; ++j) tail[j] = -__builtin_inff();
        F top = vset(-__builtin_inff());
        for (int64_t p = 0; p < panels; ++p) {
            const float* s = a.scores + (p * a.num_rows + r) * kPanelRows;
            DI_UNROLL
            for (int i = 0; i < kPanelV; ++i) top = vmax(vload(s + i * kLanes), top);
        }
        const float block_top = vhmax(top) * a.scale, before = a.top[r];
        const float now = block_top > before ? block_top : before;
        const F shift = vset(now);
        F sum = vzero();
        float* out = a.probs + r * a.ld_probs;
        for (int64_t p = 0; p < panels; ++p) {
            const float* s = a.scores + (p * a.num_rows + r) * kPanelRows;
            DI_UNROLL
            for (int i = 0; i < kPanelV; ++i) {
                const F e = vexp(vload(s + i * kLanes) * scale - shift);
                vstore(out + p * kPanelRows + i * kLanes, e);
                sum = sum + e;
            }
        }
        const float correction = first_lane(vexp(vset(before - now)));
        a.correction[r] = correction;
        a.sum[r] = a.sum[r] * correction + vsum(sum);
        a.top[r] = now;
    }
}

/// acc[r, 0..32) = acc · correction[r] + c[r, 0..32)
inline void vit_accumulate(
    const float* c, int64_t num_rows, const float* correction, float* acc, int64_t ld_acc) {
    for (int64_t r = 0; r < num_rows; ++r) {
        const F k = vset(correction[r]);
        DI_UNROLL
        for (int i = 0; i < kPanelRows; i += kLanes) {
            float* y = acc + r * ld_acc + i;
            vstore(y, vload(y) * k + vload(c + r * kPanelRows + i));
        }
    }
}

inline void vit_finish_row(const float* acc, float sum, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = bf16_bits(acc[i] / sum);
}

inline void vit_swiglu_row(const uint16_t* gate, const uint16_t* up, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; i += kLanes) {
        const F g = vload_bf16(gate + i);
        vstore_bf16(out + i, round_bf16(g * vsigmoid(g)) * vload_bf16(up + i));
    }
}

inline void vit_add_row(uint16_t* x, const uint16_t* y, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes)
        vstore_bf16(x + i, vload_bf16(x + i) + vload_bf16(y + i));
}

inline void vit_rope_row(uint16_t* x, const float* cos_sin, int64_t heads, int64_t d) {
    const int64_t half = d / 2;
    for (int64_t h = 0; h < heads; ++h, x += d) {
        for (int64_t i = 0; i < half; ++i) {
            const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            const float a = bf16_value(x[i]), b = bf16_value(x[i + half]);
            x[i] = bf16_bits(a * c - b * s);
            x[i + half] = bf16_bits(b * c + a * s);
        }
    }
}

constexpr VitKernels vit_kernels() {
    return {&vit_softmax_block,
            &vit_accumulate,
            &vit_finish_row,
            &vit_swiglu_row,
            &vit_add_row,
            &vit_rope_row};
}

}  // namespace
}  // namespace deepinfer::cpu
