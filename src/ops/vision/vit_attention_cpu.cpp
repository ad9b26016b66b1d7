// Attention of the vision tower as two GEMMs with a running softmax between them.
//
// One head of one picture at a time: its keys are packed as weight panels (32 keys each) and its
// values as panels of 32 features per run of 256 keys; then blocks of 64 query rows walk the runs.
// The GEMM kernels are those of the linear layers, so scores and values cost what a linear costs.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/scratch.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kQueryRows = 64;  // of a block: scores and probabilities of a run fit into L2
constexpr int64_t kKeyRun = 256;

struct Head {
    const Kernels& k;
    const Tensor& qkv;
    int64_t first, n;       // rows of the picture
    int64_t dh, dhp;        // head width, and that rounded up to whole panels
    int64_t q, key, value;  // columns of the head
    float* keys;            // [panels][dhp][32]
    float* values;          // runs of [dhp / 32][keys of the run][32]

    int64_t padded() const { return (n + kPanelRows - 1) / kPanelRows * kPanelRows; }
    const uint16_t* bits(int64_t row, int64_t col) const {
        return &qkv.row<bf16>(first + row)[col].bits;
    }
};

float value_of(uint16_t b) {
    const uint32_t u = static_cast<uint32_t>(b) << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}

/// Packs keys and values [32 · panel, 32 · panel + 32).
void pack_panel(const Head& h, int64_t panel) {
    const int64_t begin = panel * kPanelRows, run = begin / kKeyRun * kKeyRun;
    const int64_t run_keys = std::min(kKeyRun, h.padded() - run);
    float* keys = h.keys + begin * h.dhp;
    for (int64_t r = 0; r < kPanelRows; ++r) {
        const bool there = begin + r < h.n;
        const uint16_t* k = there ? h.bits(begin + r, h.key) : nullptr;
        const uint16_t* v = there ? h.bits(begin + r, h.value) : nullptr;
        for (int64_t i = 0; i < h.dhp; ++i) {
            const bool inside = there && i < h.dh;
            keys[i * kPanelRows + r] = inside ? value_of(k[i]) : 0.0f;
            float* panel_of_i = h.values + run * h.dhp + i / kPanelRows * run_keys * kPanelRows;
            panel_of_i[(begin - run + r) * kPanelRows + i % kPanelRows] =
                inside ? value_of(v[i]) : 0.0f;
        }
    }
}

/// Query rows [begin, begin + rows) of the picture.
void attend(const Head& h, int64_t begin, int64_t rows, float scale, const Tensor& out) {
    const int64_t dhp = h.dhp, feature_panels = dhp / kPanelRows;
    float* p =
        scratch<float>(Slot::kVitRows, kQueryRows * (2 * kKeyRun + 2 * dhp + kPanelRows + 3));
    float* scores = p;
    float* probs = scores + kQueryRows * kKeyRun;
    float* q = probs + kQueryRows * kKeyRun;
    float* acc = q + kQueryRows * dhp;
    float* c = acc + kQueryRows * dhp;
    float* top = c + kQueryRows * kPanelRows;
    float* sum = top + kQueryRows;
    float* correction = sum + kQueryRows;
    std::fill_n(q, rows * dhp, 0.0f);
    std::fill_n(acc, rows * dhp, 0.0f);
    std::fill_n(top, rows, -INFINITY);
    std::fill_n(sum, rows, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* x = h.bits(begin + r, h.q);
        for (int64_t i = 0; i < h.dh; ++i) q[r * dhp + i] = value_of(x[i]);
    }
    for (int64_t run = 0; run < h.n; run += kKeyRun) {
        const int64_t keys = std::min(kKeyRun, h.n - run),
                      panels = (keys + kPanelRows - 1) / kPanelRows, padded = panels * kPanelRows;
        GemmArgs g;
        g.x = q;
        g.ldx = dhp;
        g.num_rows = rows;
        g.k = dhp;
        for (int64_t i = 0; i < panels; ++i) {
            g.panel = reinterpret_cast<const uint8_t*>(h.keys + (run + i * kPanelRows) * dhp);
            g.c = scores + i * rows * kPanelRows;
            h.k.linear.f32(g);
        }
        h.k.vit.softmax_block({scores, rows, keys, scale, top, sum, correction, probs, kKeyRun});
        g.x = probs;
        g.ldx = kKeyRun;
        g.k = padded;
        g.c = c;
        for (int64_t i = 0; i < feature_panels; ++i) {
            g.panel =
                reinterpret_cast<const uint8_t*>(h.values + run * dhp + i * padded * kPanelRows);
            h.k.linear.f32(g);
            h.k.vit.accumulate(c, rows, correction, acc + i * kPanelRows, dhp);
        }
    }
    for (int64_t r = 0; r < rows; ++r)
        h.k.vit.finish_row(
            acc + r * dhp, sum[r], h.dh, &out.row<bf16>(h.first + begin + r)[h.q].bits);
}

}  // namespace

void vit_attention_cpu(const Kernels& k,
                       Stream& stream,
                       const Tensor& qkv,
                       const Tensor& cu_rows,
                       double scale,
                       Tensor out) {
    const int64_t heads = qkv.dim(2), dh = qkv.dim(3), d = heads * dh;
    DI_CHECK(qkv.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(cu_rows.dtype == DType::kI32 && scale > 0.0);
    DI_CHECK_EQ(qkv.dim(1), 3);
    DI_CHECK_EQ(out.dim(0), qkv.dim(0));
    DI_CHECK_EQ(out.dim(1), d);
    const int64_t pictures = cu_rows.dim(0) - 1,
                  dhp = (dh + kPanelRows - 1) / kPanelRows * kPanelRows;
    const int32_t* cu = cu_rows.ptr<int32_t>();
    DI_CHECK(cu[0] == 0 && cu[pictures] == qkv.dim(0));
    for (int64_t b = 0; b < pictures; ++b) {
        for (int64_t head = 0; head < heads; ++head) {
            Head h{k,
                   qkv,
                   cu[b],
                   cu[b + 1] - cu[b],
                   dh,
                   dhp,
                   head * dh,
                   d + head * dh,
                   2 * d + head * dh,
                   nullptr,
                   nullptr};
            if (h.n == 0) continue;
            h.keys = scratch<float>(Slot::kVitKeys, h.padded() * dhp);
            h.values = scratch<float>(Slot::kVitValues, h.padded() * dhp);
            parallel_for(stream, h.padded() / kPanelRows, 8, [&](int64_t begin, int64_t end) {
                for (int64_t p = begin; p < end; ++p) pack_panel(h, p);
            });
            const int64_t blocks = (h.n + kQueryRows - 1) / kQueryRows;
            parallel_for(stream, blocks, 1, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i)
                    attend(h,
                           i * kQueryRows,
                           std::min(kQueryRows, h.n - i * kQueryRows),
                           static_cast<float>(scale),
                           out);
            });
        }
    }
}

}  // namespace deepinfer::cpu
