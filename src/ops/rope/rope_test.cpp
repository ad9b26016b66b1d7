#include "ops/rope/rope.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

HostTensor frequencies(int64_t pairs) {
    HostTensor f(DType::kF32, {pairs});
    for (int64_t i = 0; i < pairs; ++i)
        f.set(i, std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs)));
    return f;
}

/// Positions spread over [0, 2^20).
HostTensor positions(const std::vector<int>& ids) {
    HostTensor p(DType::kI32, {static_cast<int64_t>(ids.size())});
    for (size_t i = 0; i < ids.size(); ++i)
        p.set(static_cast<int64_t>(i), (ids[i] * 104729 + (ids[i] == 0 ? 0 : 1048575)) % 1048576);
    return p;
}

OpCase table_case(int64_t pairs) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        HostTensor p = positions(ids), f = frequencies(pairs),
                   t(bench.acc(), {static_cast<int64_t>(ids.size()), pairs, 2});
        bench.ops().rope_table(bench.stream(), bench.put(p), bench.put(f), bench.put(t));
        bench.finish();
        return outputs(std::move(t));
    };
    return {"table_pairs" + std::to_string(pairs), {Tolerance::f32(2e-7)}, run, false};
}

OpCase rope_case(int64_t heads, int64_t d, int64_t pairs, bool inverse, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor p = positions(ids), f = frequencies(pairs), t(bench.acc(), {rows, pairs, 2}),
                   x(DType::kBF16, {rows, heads, d}, pad);
        bench.rows(x, ids, "rope", 1.0);
        const Tensor tt = bench.put(t);
        bench.ops().rope_table(bench.stream(), bench.put(p), bench.put(f), tt);
        bench.ops().rope(bench.stream(), bench.put(x), tt, inverse);
        bench.finish();
        return outputs(std::move(x));
    };
    return {"heads" + std::to_string(heads) + "_d" + std::to_string(d) + "_pairs" +
                std::to_string(pairs) + (inverse ? "_inverse" : ""),
            {Tolerance::bf16_store()},
            run};
}

DI_TWIN_LAWS(Rope,
             table_case(1),
             table_case(8),
             table_case(32),
             rope_case(1, 16, 8, false, 0),
             rope_case(3, 6, 1, true, 5),
             rope_case(8, 64, 8, true, 0),
             rope_case(5, 512, 32, false, 16),
             rope_case(1, 128, 32, false, 0));

class Rope : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Rope,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(Rope, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/rope.safetensors"));
    for (const std::string name : {"nano_window",
                                   "nano_compress",
                                   "nano512_compress",
                                   "release_window",
                                   "release_compress"}) {
        HostTensor p = HostTensor::from(g[name + ".pos"], DType::kI32),
                   f = HostTensor::from(g[name + ".freq"], DType::kF32);
        HostTensor x = HostTensor::from(g[name + ".x"], DType::kBF16),
                   table(bench.acc(), {p.dim(0), f.dim(0), 2});
        HostTensor back = x;  // the golden turns x itself backwards
        const Tensor t = bench.put(table);
        bench.ops().rope_table(bench.stream(), bench.put(p), bench.put(f), t);
        bench.ops().rope(bench.stream(), bench.put(x), t, false);
        bench.ops().rope(bench.stream(), bench.put(back), t, true);
        bench.finish();
        HostTensor c(bench.acc(), {p.dim(0), f.dim(0)}), s(bench.acc(), {p.dim(0), f.dim(0)});
        for (int64_t i = 0; i < c.numel(); ++i) {
            c.set(i, table.get(2 * i));
            s.set(i, table.get(2 * i + 1));
        }
        EXPECT_EQ(
            difference(c, HostTensor::from(g[name + ".cos"], DType::kF32), Tolerance::f32(2e-7)),
            "")
            << name;
        EXPECT_EQ(
            difference(s, HostTensor::from(g[name + ".sin"], DType::kF32), Tolerance::f32(2e-7)),
            "")
            << name;
        const Tolerance tolerance = bench.exact() ? Tolerance::equal() : Tolerance::bf16_store();
        EXPECT_EQ(difference(x, HostTensor::from(g[name + ".rotated"], DType::kBF16), tolerance),
                  "")
            << name;
        EXPECT_EQ(
            difference(back, HostTensor::from(g[name + ".rotated_back"], DType::kBF16), tolerance),
            "")
            << name;
    }
}

TEST_P(Rope, RotatesAdjacentPairsOfTheTrailingDimsOnly) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    // A quarter turn of pair 0 and none of pair 1; two leading dims pass through.
    HostTensor x = HostTensor::from(DType::kBF16, {1, 1, 6}, {1, 2, 3, 4, 5, 6});
    HostTensor t = HostTensor::from(bench.acc(), {1, 2, 2}, {0, 1, 1, 0});
    bench.ops().rope(bench.stream(), bench.put(x), bench.put(t), false);
    bench.finish();
    EXPECT_EQ(
        difference(
            x, HostTensor::from(DType::kBF16, {1, 1, 6}, {1, 2, -4, 3, 5, 6}), Tolerance::equal()),
        "");
}

}  // namespace
}  // namespace deepinfer::testing
