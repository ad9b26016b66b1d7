// The tiny tower and aligner of vision spec 6.2, op by op as VisionEncoder runs them: on every
// implementation the features that the specification printed, computed there in float64.
#include <cmath>

#include "support/op_bench.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kWidth = 16, kHeads = 2, kHeadDim = 8, kInner = 12, kPatch = 12, kText = 7;
constexpr int64_t kGridH = 4, kGridW = 5, kPatches = kGridH * kGridW, kRatio = 3;
constexpr int64_t kCellsH = 2, kCellsW = 2, kCells = kCellsH * kCellsW;
constexpr float kEps = 1e-6f;

/// Element j of tensor number k, in the order of the specification.
double element(int k, int64_t j, bool norm) {
    const double v = std::sin(1.3 * k + 0.37 * static_cast<double>(j));
    return norm ? 1 + 0.1 * v : 0.2 * v;
}

/// Hands the 23 tensors out in their order.
class Weights {
  public:
    HostWeight matrix(int64_t n, int64_t k) {
        HostTensor values(DType::kBF16, {n, k});
        fill(&values, false);
        HostWeight w;
        w.dtype = DType::kBF16;
        w.n = n;
        w.k = k;
        for (int64_t i = 0; i < n * k; ++i) {
            const uint64_t bits = values.bits(i);
            w.weight.push_back(static_cast<uint8_t>(bits & 0xFF));
            w.weight.push_back(static_cast<uint8_t>(bits >> 8));
        }
        return w;
    }
    HostTensor bias(int64_t n) { return vector(n, false); }
    HostTensor norm() { return vector(kWidth, true); }
    int count() const { return next_; }

  private:
    HostTensor vector(int64_t n, bool norm) {
        HostTensor t(DType::kF32, {n});
        fill(&t, norm);
        return t;
    }
    void fill(HostTensor* t, bool norm) {
        for (int64_t j = 0; j < t->numel(); ++j) t->set(j, element(next_, j, norm));
        ++next_;
    }
    int next_ = 0;
};

struct Block {
    HostTensor norm1, wqkv_bias, wo_bias, norm2;
    HostWeight wqkv, wo, w1, w2;
};

class TinyTower : public ::testing::TestWithParam<Implementation> {};
INSTANTIATE_TEST_SUITE_P(All, TinyTower, ::testing::ValuesIn(implementations()), [](const auto& p) {
    return p.param.name();
});

TEST_P(TinyTower, GivesTheSpecificationsNumbers) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const OpTable& ops = bench.ops();
    Stream& stream = bench.stream();

    Weights all;
    HostWeight patch = all.matrix(kWidth, kPatch);
    HostTensor patch_bias = all.bias(kWidth);
    std::vector<Block> blocks(2);
    for (Block& b : blocks) {
        b.norm1 = all.norm();
        b.wqkv = all.matrix(3 * kWidth, kWidth);
        b.wqkv_bias = all.bias(3 * kWidth);
        b.wo = all.matrix(kWidth, kWidth);
        b.wo_bias = all.bias(kWidth);
        b.norm2 = all.norm();
        b.w1 = all.matrix(2 * kInner, kWidth);
        b.w2 = all.matrix(kWidth, kInner);
    }
    HostTensor norm = all.norm();
    const HostWeight align1 = all.matrix(kText, kRatio * kRatio * kWidth);
    HostTensor align1_bias = all.bias(kText);
    const HostWeight align2 = all.matrix(kText, kText);
    HostTensor align2_bias = all.bias(kText);
    ASSERT_EQ(all.count(), 23);

    HostTensor patches(DType::kBF16, {kPatches, kPatch}), positions(DType::kI32, {2 * kPatches}),
        cells(DType::kI32, {kCells, kRatio * kRatio});
    for (int64_t j = 0; j < patches.numel(); ++j)
        patches.set(j, std::sin(0.11 * static_cast<double>(j)));
    for (int64_t i = 0; i < kPatches; ++i) {
        positions.set(2 * i, static_cast<double>(i / kGridW));
        positions.set(2 * i + 1, static_cast<double>(i % kGridW));
    }
    for (int64_t c = 0; c < kCells; ++c) {
        for (int64_t i = 0; i < kRatio * kRatio; ++i) {
            const int64_t y = c / kCellsW * kRatio + i / kRatio;
            const int64_t x = c % kCellsW * kRatio + i % kRatio;
            const bool inside = y < kGridH && x < kGridW;
            cells.set(c * kRatio * kRatio + i, inside ? static_cast<double>(y * kGridW + x) : -1.0);
        }
    }
    HostTensor freqs = HostTensor::from(DType::kF32, {2}, {1.0, 0.0});
    freqs.set(1, 1.0f / static_cast<float>(std::pow(10000.0, 0.5)));
    HostTensor cu_rows = HostTensor::from(DType::kI32, {2}, {0, static_cast<double>(kPatches)});
    HostTensor cos_sin(bench.acc(), {2 * kPatches, kHeadDim / 4, 2});
    HostTensor x(DType::kBF16, {kPatches, kWidth}), h(DType::kBF16, {kPatches, kWidth}),
        y(DType::kBF16, {kPatches, kWidth}), qkv(DType::kBF16, {kPatches, 3 * kWidth}),
        gate_up(DType::kBF16, {kPatches, 2 * kInner}), gated(DType::kBF16, {kPatches, kInner}),
        tower(DType::kBF16, {kPatches, kWidth}),
        z(DType::kBF16, {kCells, kRatio * kRatio * kWidth}), mid(DType::kBF16, {kCells, kText}),
        rows(DType::kBF16, {kCells, kText});

    const Tensor xs = bench.put(x), hs = bench.put(h), ys = bench.put(y), qkvs = bench.put(qkv),
                 wide = bench.put(gate_up), narrow = bench.put(gated), cu = bench.put(cu_rows),
                 table = bench.put(cos_sin), towers = bench.put(tower), zs = bench.put(z),
                 mids = bench.put(mid), out = bench.put(rows);
    ops.rope_table(stream, bench.put(positions), bench.put(freqs), table);
    ops.linear_bias(stream, bench.put(patches), bench.put(patch), bench.put(patch_bias), xs);
    for (Block& b : blocks) {
        ops.rms_norm(stream, xs, bench.put(b.norm1), kEps, hs);
        ops.linear_bias(stream, hs, bench.put(b.wqkv), bench.put(b.wqkv_bias), qkvs);
        Tensor q_and_k(qkvs.data, DType::kBF16, {kPatches, 2 * kHeads, kHeadDim});
        q_and_k.stride[0] = 3 * kWidth;
        ops.vit_rope(stream, q_and_k, Tensor(table.data, table.dtype, {kPatches, kHeadDim / 2, 2}));
        ops.vit_attention(stream,
                          qkvs.reshaped({kPatches, 3, kHeads, kHeadDim}),
                          cu,
                          1.0 / std::sqrt(static_cast<double>(kHeadDim)),
                          hs);
        ops.linear_bias(stream, hs, bench.put(b.wo), bench.put(b.wo_bias), ys);
        ops.add_bf16(stream, xs, ys);
        ops.rms_norm(stream, xs, bench.put(b.norm2), kEps, hs);
        ops.linear(stream, hs, bench.put(b.w1), wide);
        ops.vit_swiglu(stream, wide, narrow);
        ops.linear(stream, narrow, bench.put(b.w2), hs);
        ops.add_bf16(stream, xs, hs);
    }
    ops.rms_norm(stream, xs, bench.put(norm), kEps, towers);
    ops.pixel_unshuffle(stream, towers, bench.put(cells), zs);
    ops.linear_bias(stream, zs, bench.put(align1), bench.put(align1_bias), mids);
    ops.gelu(stream, mids);
    ops.linear_bias(stream, mids, bench.put(align2), bench.put(align2_bias), out);
    bench.finish();

    constexpr double kBf16 = 1e-2;  // vision spec 6.2; every step of the tower rounds to bf16
    const double first[] = {1.3152704, 0.7849964, 1.2395174, 1.1305394};
    const double last[] = {1.3004931, 0.7777147, 1.2652793, 1.1728803};
    for (int64_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(tower.get(i), first[i], kBf16) << "patch 0, feature " << i;
        EXPECT_NEAR(tower.get((kPatches - 1) * kWidth + i), last[i], kBf16)
            << "patch 19, feature " << i;
    }
    const double aligned[] = {
        0.1150021,  -0.4764731, 0.2392648,  -0.5555722, -0.0000151, -0.1384171, -0.3512041,
        0.0528381,  -0.3251215, 0.0436193,  -0.3736648, -0.1142274, -0.1257773, -0.2585221,
        -0.0837507, -0.1980016, -0.0363256, -0.3646080, -0.0497097, -0.2447324, -0.1204139,
        -0.0726571, -0.2000233, -0.0439756, -0.3495555, -0.0676999, -0.2291408, -0.1289823};
    for (int64_t i = 0; i < kCells * kText; ++i)
        EXPECT_NEAR(rows.get(i), aligned[i], kBf16) << "cell " << i / kText << ", " << i % kText;
}

}  // namespace
}  // namespace deepinfer::testing
