// linear_bias on packed panels, split into (row block, panel) units like linear_cpu.cpp.
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/panel_gemm.h"

namespace deepinfer::cpu {

void linear_bias_cpu(const Kernels& k,
                     Stream& stream,
                     const Tensor& x,
                     const WeightMatrix& w,
                     const Tensor& bias,
                     Tensor out) {
    const int64_t rows = x.dim(0);
    if (rows == 0) return;
    const PackedWeight* packed = packed_weight(stream, w);
    if (packed == nullptr) return linear_bias_ref<float>(stream, x, w, bias, out);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 && bias.dtype == DType::kF32);
    DI_CHECK_EQ(x.dim(1), w.k);
    DI_CHECK_EQ(out.dim(1), w.n);
    DI_CHECK_EQ(out.dim(0), rows);
    DI_CHECK_EQ(bias.dim(0), w.n);
    const int64_t panels = num_panels(w.n), row_blocks = (rows + kRowBlock - 1) / kRowBlock;
    const Activations a = activations(k,
                                      stream,
                                      &x.ptr<bf16>()->bits,
                                      x.stride[0],
                                      rows,
                                      w.k,
                                      reads_bf16(k.linear, packed->format()),
                                      Slot::kActivations);
    const auto units = [&](int64_t begin, int64_t end) {
        float* c = scratch<float>(Slot::kPanel, kRowBlock * kPanelRows);
        for (int64_t u = begin; u < end; ++u) {
            const int64_t p = u % panels, first = u / panels * kRowBlock,
                          m = std::min(kRowBlock, rows - first), col = p * kPanelRows,
                          n = std::min<int64_t>(kPanelRows, w.n - col);
            panel_gemm(k.linear, *packed, w.k, a, first, m, 0, p, c);
            float shift[kPanelRows] = {};
            std::memcpy(shift, bias.ptr<float>() + col, static_cast<size_t>(n) * sizeof(float));
            for (int64_t r = 0; r < m; ++r) {
                float* y = c + r * kPanelRows;
                for (int j = 0; j < kPanelRows; ++j) y[j] += shift[j];
                uint16_t bits[kPanelRows];
                k.rows.narrow(y, kPanelRows, bits);
                std::memcpy(out.row<bf16>(first + r) + col,
                            bits,
                            static_cast<size_t>(n) * sizeof(uint16_t));
            }
        }
    };
    parallel_for(stream, row_blocks * panels, panel_grain(w.k, std::min(rows, kRowBlock)), units);
}

}  // namespace deepinfer::cpu
