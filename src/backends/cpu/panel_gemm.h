// GEMM over packed panels for the op wrappers: activations in the form that the kernels read, and
// one panel's outputs for a block of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/packed_weight.h"
#include "backends/cpu/scratch.h"
#include "tensor/tensor.h"

namespace deepinfer::cpu {

/// Rows that share one pass over a panel: the widened tile serves them all, their outputs stay in
/// L1/L2.
constexpr int64_t kRowBlock = 192;

/// bf16 activations, widened to fp32 where the kernels of the level want that. Element (row, col)
/// stands at row · ld + col / 32 · step + col % 32.
struct Activations {
    const float* f32 = nullptr;
    const uint16_t* b16 = nullptr;
    int64_t ld = 0, step = kBlockK;
};

/// Rows beyond which activations are copied block by block: rows that lie kilobytes apart share a
/// few sets of the L1 cache, and no prefetcher follows them.
constexpr int64_t kPlainRows = 4;

inline GemmKernel kernel_of(const LinearKernels& k, PanelFormat f) {
    switch (f) {
        case PanelFormat::kFp8:
        case PanelFormat::kFp8Pair:
        case PanelFormat::kFp8Quad:
        case PanelFormat::kFp8Words:
            return k.fp8;
        case PanelFormat::kFp4:
        case PanelFormat::kFp4Bytes:
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

/// Activations of rows x[t, 0..width) (row stride ldx). Copies live in `slot` of this thread.
inline Activations activations(const Kernels& k,
                               Stream& stream,
                               const uint16_t* x,
                               int64_t ldx,
                               int64_t rows,
                               int64_t width,
                               bool as_bf16,
                               Slot slot) {
    Activations a;
    const bool blocked = rows > kPlainRows && width % kBlockK == 0;
    if (as_bf16 && !blocked) {
        a.b16 = x;
        a.ld = ldx;
        return a;
    }
    float* f = as_bf16 ? nullptr : scratch<float>(slot, rows * width);
    uint16_t* b = as_bf16 ? scratch<uint16_t>(slot, rows * width) : nullptr;
    a.f32 = f;
    a.b16 = b;
    a.ld = blocked ? kBlockK : width;
    a.step = blocked ? rows * kBlockK : kBlockK;
    const int64_t piece = blocked ? kBlockK : width;  // columns that stay together
    parallel_for(
        stream, rows, std::max<int64_t>(1, 65536 / width), [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
                for (int64_t col = 0; col < width; col += piece) {
                    const int64_t to = t * a.ld + col / kBlockK * a.step;
                    if (f != nullptr) {
                        k.rows.widen(x + t * ldx + col, piece, f + to);
                    } else {
                        std::memcpy(b + to, x + t * ldx + col, kBlockK * sizeof(uint16_t));
                    }
                }
            }
        });
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
    const int64_t at = first * x.ld + col / kBlockK * x.step + col % kBlockK;
    if (x.f32 != nullptr) {
        g.x = x.f32 + at;
    } else {
        g.x_bf16 = x.b16 + at;
    }
    g.ldx = x.ld;
    g.step = x.step;
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
