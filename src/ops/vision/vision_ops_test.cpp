// The picture ops: row-wise ones under the common laws, attention under its own.
#include <cmath>

#include "ops/vision/image_rows.h"
#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

HostTensor bias_of(int64_t n) {
    SeededRandom random("bias");
    HostTensor b(DType::kF32, {n});
    b.fill_normal(random, 0.5);
    return b;
}

OpCase linear_bias_case(int64_t n, int64_t k, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const auto rows = static_cast<int64_t>(ids.size());
        SeededRandom random("linear_bias");
        const HostWeight w = HostWeight::random(random, DType::kBF16, n, k);
        HostTensor x(DType::kBF16, {rows, k}, pad), y(DType::kBF16, {rows, n}, pad), b = bias_of(n);
        bench.rows(x, ids, "linear_bias", 1.0);
        bench.ops().linear_bias(
            bench.stream(), bench.put(x), bench.put(w), bench.put(b), bench.put(y));
        bench.finish();
        return outputs(std::move(y));
    };
    return {"n" + std::to_string(n) + "_k" + std::to_string(k) + "_pad" + std::to_string(pad),
            {Tolerance::bf16_store()},
            run};
}

DI_TWIN_LAWS(LinearBias,
             linear_bias_case(64, 608, 0),
             linear_bias_case(33, 64, 8),
             linear_bias_case(7, 9, 1),
             linear_bias_case(5, 9216, 0));

OpCase swiglu_case(int64_t n, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const auto rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, 2 * n}, pad), y(DType::kBF16, {rows, n}, pad);
        bench.rows(x, ids, "vit_swiglu", 3.0);
        bench.ops().vit_swiglu(bench.stream(), bench.put(x), bench.put(y));
        bench.finish();
        return outputs(std::move(y));
    };
    return {"n" + std::to_string(n), {Tolerance::bf16_store()}, run};
}
DI_TWIN_LAWS(VitSwiglu, swiglu_case(12, 3), swiglu_case(128, 0), swiglu_case(2816, 16));

OpCase add_case(int64_t n) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const auto rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, n}, 8), y(DType::kBF16, {rows, n});
        bench.rows(x, ids, "add x", 3.0);
        bench.rows(y, ids, "add y", 0.3);
        bench.ops().add_bf16(bench.stream(), bench.put(x), bench.put(y));
        bench.finish();
        return outputs(std::move(x));
    };
    return {"n" + std::to_string(n), {Tolerance::bf16_store()}, run};
}
DI_TWIN_LAWS(AddBf16, add_case(7), add_case(64), add_case(1024));

OpCase gelu_case(int64_t n) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        HostTensor x(DType::kBF16, {static_cast<int64_t>(ids.size()), n}, 4);
        bench.rows(x, ids, "gelu", 2.0);
        bench.ops().gelu(bench.stream(), bench.put(x));
        bench.finish();
        return outputs(std::move(x));
    };
    return {"n" + std::to_string(n), {Tolerance::bf16_store()}, run};
}
DI_TWIN_LAWS(Gelu, gelu_case(7), gelu_case(256));

OpCase rope_case(int64_t heads, int64_t d) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const auto rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, heads, d}, 32), cs(bench.acc(), {rows, d / 2, 2});
        bench.rows(x, ids, "vit_rope", 1.0);
        for (size_t r = 0; r < ids.size(); ++r) {
            for (int64_t i = 0; i < d / 2; ++i) {
                const double a = static_cast<float>(0.1 * ids[r] * static_cast<double>(i + 1));
                const int64_t at = (static_cast<int64_t>(r) * (d / 2) + i) * 2;
                cs.set(at, std::cos(a));
                cs.set(at + 1, std::sin(a));
            }
        }
        bench.ops().vit_rope(bench.stream(), bench.put(x), bench.put(cs));
        bench.finish();
        return outputs(std::move(x));
    };
    return {"h" + std::to_string(heads) + "_d" + std::to_string(d), {Tolerance::bf16_store()}, run};
}
DI_TWIN_LAWS(VitRope, rope_case(2, 8), rope_case(8, 64));

class VisionOps : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         VisionOps,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(VisionOps, RopePairsHalves) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x = HostTensor::from(DType::kBF16, {1, 1, 4}, {1, 2, 3, 4}),
               cs = HostTensor::from(bench.acc(), {1, 2, 2}, {0, 1, 1, 0});
    bench.ops().vit_rope(bench.stream(), bench.put(x), bench.put(cs));
    bench.finish();
    EXPECT_EQ(
        difference(x, HostTensor::from(DType::kBF16, {1, 1, 4}, {-3, 2, 1, 4}), Tolerance::equal()),
        "");
}

TEST_P(VisionOps, GeluIsTheErfForm) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x = HostTensor::from(DType::kBF16, {1, 3}, {-1, 0, 2});
    bench.ops().gelu(bench.stream(), bench.put(x));
    bench.finish();
    EXPECT_NEAR(x.get(0), -0.158655, 0.0006);  // tanh form: -0.158808
    EXPECT_EQ(x.get(1), 0.0);
    EXPECT_NEAR(x.get(2), 1.9545, 0.005);
}

TEST_P(VisionOps, SwigluRoundsTheGateFirst) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x(DType::kBF16, {1, 32}), y(DType::kBF16, {1, 16});
    for (int64_t i = 0; i < 16; ++i) {
        x.set(i, 1.0);
        x.set(16 + i, 1.5);
    }
    bench.ops().vit_swiglu(bench.stream(), bench.put(x), bench.put(y));
    bench.finish();
    // silu(1) = 0.731059 → 0.73046875 in bf16; times 1.5 = 1.095703125 → 1.09375 (unrounded 1.0966
    // would give 1.09375 or 1.1015625).
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(y.get(i), 1.09375);
}

/// Attention of pictures with these numbers of patches; data depends on (picture id, row) alone.
HostTensor attend(OpBench& bench,
                  const std::vector<std::pair<int, int64_t>>& pictures,
                  int64_t heads,
                  int64_t dh) {
    std::vector<double> cu{0};
    std::vector<int> ids;
    for (const auto& [id, n] : pictures) {
        for (int64_t i = 0; i < n; ++i) ids.push_back(id * 1000 + static_cast<int>(i));
        cu.push_back(static_cast<double>(ids.size()));
    }
    const auto rows = static_cast<int64_t>(ids.size());
    HostTensor qkv(DType::kBF16, {rows, 3, heads, dh}),
        cu_rows = HostTensor::from(DType::kI32, {static_cast<int64_t>(cu.size())}, cu),
        out(DType::kBF16, {rows, heads * dh});
    bench.rows(qkv, ids, "vit_attention", 1.5);
    bench.ops().vit_attention(bench.stream(),
                              bench.put(qkv),
                              bench.put(cu_rows),
                              1.0 / std::sqrt(static_cast<double>(dh)),
                              bench.put(out));
    bench.finish();
    return out;
}

TEST_P(VisionOps, AttentionMatchesItsTwin) {
    OpBench bench(GetParam()), judge(judge_of(GetParam()));
    DI_SKIP_UNLESS_AVAILABLE(bench);
    // Around the panels of 32 keys, the blocks of 64 rows and the runs of 256 keys.
    for (const int64_t n : {1, 2, 31, 32, 33, 63, 65, 255, 256, 257, 300, 520}) {
        for (const auto& [heads, dh] : {std::pair<int64_t, int64_t>{2, 16}, {1, 64}, {3, 8}}) {
            if (n > 300 && dh != 64) continue;
            EXPECT_EQ(difference(attend(bench, {{1, n}}, heads, dh),
                                 attend(judge, {{1, n}}, heads, dh),
                                 Tolerance::bf16_store()),
                      "")
                << n << " patches, " << heads << " heads of " << dh;
        }
    }
}

TEST_P(VisionOps, APictureIgnoresItsBatch) {
    OpBench bench(GetParam()), one(GetParam(), 1);
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const HostTensor alone = attend(bench, {{2, 70}}, 2, 16);
    const HostTensor packed = attend(bench, {{1, 300}, {2, 70}, {3, 0}, {4, 5}}, 2, 16);
    const HostTensor single = attend(one, {{4, 5}, {2, 70}}, 2, 16);
    for (int64_t r = 0; r < 70; ++r) {
        ASSERT_EQ(alone.row_bytes(r), packed.row_bytes(300 + r)) << "row " << r;
        ASSERT_EQ(alone.row_bytes(r), single.row_bytes(5 + r)) << "row " << r;
    }
}

TEST_P(VisionOps, NanStaysInItsPicture) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const HostTensor clean = attend(bench, {{1, 40}, {2, 40}}, 1, 16);
    bench.poisoned_row = 1003;  // begins in q: its own row alone
    const HostTensor poisoned = attend(bench, {{1, 40}, {2, 40}}, 1, 16);
    for (int64_t r = 0; r < 80; ++r) {
        if (r == 3) {
            EXPECT_TRUE(std::isnan(poisoned.get(r * 16)));
        } else {
            ASSERT_EQ(clean.row_bytes(r), poisoned.row_bytes(r)) << "row " << r;
        }
    }
}

TEST_P(VisionOps, UnshuffleIsChannelMajorWithZerosBeyondTheEdge) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x = HostTensor::from(DType::kBF16, {2, 2}, {1, 2, 3, 4}),
               cells = HostTensor::from(DType::kI32, {1, 4}, {0, -1, 1, -1}),
               out(DType::kBF16, {1, 8});
    bench.ops().pixel_unshuffle(bench.stream(), bench.put(x), bench.put(cells), bench.put(out));
    bench.finish();
    EXPECT_EQ(difference(out,
                         HostTensor::from(DType::kBF16, {1, 8}, {1, 0, 3, 0, 2, 0, 4, 0}),
                         Tolerance::equal()),
              "");
}

TEST_P(VisionOps, PlacedRowsReplaceEveryStream) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x = HostTensor::from(DType::kBF16, {3, 2, 1}, {1, 2, 3, 4, 5, 6}),
               src = HostTensor::from(DType::kBF16, {2, 1}, {8, 9}),
               rows = HostTensor::from(DType::kI32, {2}, {2, 0});
    bench.ops().place_rows(bench.stream(), bench.put(src), bench.put(rows), bench.put(x));
    bench.finish();
    EXPECT_EQ(
        difference(
            x, HostTensor::from(DType::kBF16, {3, 2, 1}, {9, 9, 3, 4, 8, 8}), Tolerance::equal()),
        "");
}

}  // namespace
}  // namespace deepinfer::testing
