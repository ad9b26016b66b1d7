// Packing of stored weights into the panels that the GEMM kernels read (kernels/kernels.h).
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/kernels/kernels.h"
#include "ops/weight_matrix.h"

namespace deepinfer::cpu {

/// Panel format of a weight at a level.
PanelFormat panel_format(DType dtype, Isa isa);
/// Bytes from one panel to the next (64-byte aligned).
int64_t panel_bytes(PanelFormat format, int64_t k);
/// Panels of a weight: ceil(n / 32); missing rows of the last one are zero.
constexpr int64_t num_panels(int64_t n) {
    return (n + kPanelRows - 1) / kPanelRows;
}

/// True if the kernels can run this weight, as far as shape and scales tell: k a multiple of 32 up
/// to kMaxPanelK, every scale within 2^±100 (beyond that a widened weight could leave the normal
/// range of its type). Nor may it have NaN codes: has_nan_codes(). Other weights stay unpacked and
/// the twin computes them, for every number of rows.
bool packable(const WeightMatrix& w);
/// Whether rows [begin, end) of an FP8 weight hold a NaN code; false for other formats.
bool has_nan_codes(const WeightMatrix& w, int64_t begin, int64_t end);
/// Packs panels [begin, end) of w into out (num_panels(n) · panel_bytes).
void pack_panels(
    const WeightMatrix& w, PanelFormat format, int64_t begin, int64_t end, uint8_t* out);

}  // namespace deepinfer::cpu
