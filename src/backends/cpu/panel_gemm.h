// GEMM over packed panels for the op wrappers: activations in the form that the kernels read, and
// one panel's outputs for a block of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/packed_weight.h"
#include "backends/cpu/scratch.h"
#include "tensor/tensor.h"

namespace deepinfer::cpu {

/// Rows that share one pass over a panel: the widened tile serves them all, their outputs stay in
/// L1/L2.
constexpr int64_t kRowBlock = 192;

/// bf16 activations, widened to fp32 where the kernels of the level want that.
struct Activations {
    const float* f32 = nullptr;
    const uint16_t* b16 = nullptr;
    int64_t ld_f32 = 0, ld_b16 = 0;
};

inline GemmKernel kernel_of(const LinearKernels& k, PanelFormat f) {
    switch (f) {
        case PanelFormat::kFp8:
        case PanelFormat::kFp8Pair:
            return k.fp8;
        case PanelFormat::kFp4:
            return k.fp4;
        case PanelFormat::kBf16:
            return k.bf16;
        default:
            return k.f32;
    }
}

inline bool reads_bf16(const LinearKernels& k, PanelFormat f) {
    return k.reads_bf16 && f != PanelFormat::kF32;
}

/// Activations of rows x[t, 0..k) (row stride ldx). The fp32 form lives in `slot` of this thread.
inline Activations activations(const Kernels& k,
                               Stream& stream,
                               const uint16_t* x,
                               int64_t ldx,
                               int64_t rows,
                               int64_t width,
                               bool as_bf16,
                               Slot slot) {
    Activations a;
    a.b16 = x;
    a.ld_b16 = ldx;
    if (as_bf16) return a;
    float* f = scratch<float>(slot, rows * width);
    parallel_for(
        stream, rows, std::max<int64_t>(1, 65536 / width), [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) k.rows.widen(x + t * ldx, width, f + t * width);
        });
    a.f32 = f;
    a.ld_f32 = width;
    return a;
}

/// c [rows, 32] = rows [first, first + rows) of the activations (columns from `col`) times panel p.
inline void panel_gemm(const LinearKernels& k,
                       const PackedWeight& w,
                       int64_t width,
                       const Activations& x,
                       int64_t first,
                       int64_t rows,
                       int64_t col,
                       int64_t p,
                       float* c) {
    GemmArgs g;
    if (x.f32 != nullptr) {
        g.x = x.f32 + first * x.ld_f32 + col;
        g.ldx = x.ld_f32;
    } else {
        g.x_bf16 = x.b16 + first * x.ld_b16 + col;
        g.ldx = x.ld_b16;
    }
    g.num_rows = rows;
    g.panel = w.panel(p);
    g.k = width;
    g.c = c;
    kernel_of(k, w.format())(g);
}

/// Panels that one thread should have at least, so that handing out the work costs less than doing
/// it.
inline int64_t panel_grain(int64_t k, int64_t rows) {
    return std::max<int64_t>(1, 100000 / (kPanelRows * k * (3 + rows) / 4));
}

}  // namespace deepinfer::cpu
