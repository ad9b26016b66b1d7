// linear and grouped_o_proj on packed panels. Work is split into (row block, panel) units; a unit's
// outputs depend on nothing but its own rows and panel.
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/gemm_inl.h"
#include "backends/cpu/panel_gemm.h"

namespace deepinfer::cpu {

extern const LinearKernels kLinear_baseline;
const LinearKernels kLinear_baseline = linear_kernels();
extern const RoofKernels kRoof_baseline;
const RoofKernels kRoof_baseline = roof_kernels();

namespace {

/// Stores c [rows, 32] to columns [col, col + n) of out, n <= 32.
void store_panel(const Kernels& k,
                 const float* c,
                 int64_t rows,
                 const Tensor& out,
                 int64_t first,
                 int64_t col,
                 int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* src = c + r * kPanelRows;
        if (out.dtype == DType::kF32) {
            std::memcpy(
                out.row<float>(first + r) + col, src, static_cast<size_t>(n) * sizeof(float));
        } else if (n == kPanelRows) {
            k.rows.narrow(src, n, &out.row<bf16>(first + r)[col].bits);
        } else {
            uint16_t t[kPanelRows];
            k.rows.narrow(src, kPanelRows, t);
            std::memcpy(
                out.row<bf16>(first + r) + col, t, static_cast<size_t>(n) * sizeof(uint16_t));
        }
    }
}

/// All outputs of w; panel p reads the activation columns from column_of(p).
template <typename ColumnOf>
void run_panels(const Kernels& k,
                Stream& stream,
                const Tensor& x,
                const WeightMatrix& w,
                const PackedWeight& packed,
                const ColumnOf& column_of,
                const Tensor& out) {
    const int64_t rows = x.dim(0), panels = num_panels(w.n);
    const Activations a = activations(k,
                                      stream,
                                      &x.ptr<bf16>()->bits,
                                      x.stride[0],
                                      rows,
                                      x.dim(1),
                                      reads_bf16(k.linear, packed.format()),
                                      Slot::kActivations);
    const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
    parallel_for(stream,
                 row_blocks * panels,
                 panel_grain(w.k, std::min(rows, kRowBlock)),
                 [&](int64_t begin, int64_t end) {
                     float* c = scratch<float>(Slot::kPanel, kRowBlock * kPanelRows);
                     for (int64_t u = begin; u < end; ++u) {
                         const int64_t p = u % panels, first = u / panels * kRowBlock,
                                       m = std::min(kRowBlock, rows - first);
                         panel_gemm(k.linear, packed, w.k, a, first, m, column_of(p), p, c);
                         store_panel(k,
                                     c,
                                     m,
                                     out,
                                     first,
                                     p * kPanelRows,
                                     std::min<int64_t>(kPanelRows, w.n - p * kPanelRows));
                     }
                 });
}

}  // namespace

void linear_cpu(
    const Kernels& k, Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out) {
    if (x.dim(0) == 0) return;
    const PackedWeight* packed = packed_weight(stream, w);
    if (packed == nullptr) return linear_ref<float>(stream, x, w, out);
    DI_CHECK(x.dtype == DType::kBF16 && (out.dtype == DType::kBF16 || out.dtype == DType::kF32));
    DI_CHECK_EQ(x.dim(1), w.k);
    DI_CHECK_EQ(out.dim(1), w.n);
    DI_CHECK_EQ(out.dim(0), x.dim(0));
    run_panels(
        k, stream, x, w, *packed, [](int64_t) { return int64_t{0}; }, out);
}

void grouped_o_proj_cpu(const Kernels& k,
                        Stream& stream,
                        const Tensor& o,
                        const WeightMatrix& wo_a,
                        int groups,
                        Tensor out) {
    if (o.dim(0) == 0) return;
    const int64_t ol = wo_a.n / groups;
    const PackedWeight* packed = ol % kPanelRows == 0 ? packed_weight(stream, wo_a) : nullptr;
    if (packed == nullptr) return grouped_o_proj_ref<float>(stream, o, wo_a, groups, out);
    DI_CHECK(o.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(o.dim(1), groups * wo_a.k);
    DI_CHECK_EQ(out.dim(1), wo_a.n);
    run_panels(
        k, stream, o, wo_a, *packed, [&](int64_t p) { return p * kPanelRows / ol * wo_a.k; }, out);
}

}  // namespace deepinfer::cpu
