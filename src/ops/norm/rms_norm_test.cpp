#include "ops/norm/rms_norm.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

HostTensor weights(int64_t n) {
    SeededRandom random("rms_norm weight");
    HostTensor w(DType::kF32, {n});
    for (int64_t i = 0; i < n; ++i) w.set(i, 0.5 + random.uniform());
    return w;
}

OpCase rms_norm_case(int64_t n, int64_t pad, bool in_place) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, n}, pad), y(DType::kBF16, {rows, n}, 2 * pad),
            w = weights(n);
        bench.rows(x, ids, "rms_norm", 3.0);
        const Tensor xt = bench.put(x), yt = in_place ? xt : bench.put(y);
        bench.ops().rms_norm(bench.stream(), xt, bench.put(w), 1e-20f, yt);
        bench.finish();
        return outputs(in_place ? std::move(x) : std::move(y));
    };
    const std::string name =
        "n" + std::to_string(n) + "_pad" + std::to_string(pad) + (in_place ? "_in_place" : "");
    return {name, {Tolerance::bf16_store()}, run};
}

DI_TWIN_LAWS(RmsNorm,
             rms_norm_case(1, 0, false),
             rms_norm_case(15, 3, false),
             rms_norm_case(64, 0, true),
             rms_norm_case(129, 7, true),
             rms_norm_case(1280, 8, false),
             rms_norm_case(5120, 0, false));

class RmsNorm : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         RmsNorm,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(RmsNorm, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/rms_norm.safetensors"));
    HostTensor x = HostTensor::from(g["x"], DType::kBF16),
               w = HostTensor::from(g["weight"], DType::kF32);
    HostTensor y(DType::kBF16, x.dims());
    bench.ops().rms_norm(bench.stream(), bench.put(x), bench.put(w), 1e-20f, bench.put(y));
    bench.finish();
    const Tolerance tolerance = bench.exact() ? Tolerance::equal() : Tolerance::bf16_store();
    EXPECT_EQ(difference(y, HostTensor::from(g["y"], DType::kBF16), tolerance), "");
}

TEST_P(RmsNorm, EpsilonIsNotFlushed) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    // Row 0 is zero: 0 · 1e10 = 0. Row 1 has a mean square of 1e-20, so its size halves by sqrt(2).
    HostTensor x(DType::kBF16, {2, 64}),
        w = HostTensor::from(DType::kF32, {64}, std::vector<double>(64, 1.0)),
        y(DType::kBF16, {2, 64});
    for (int64_t i = 0; i < 64; ++i) {
        x.set(i, 0.0);
        x.set(64 + i, i % 2 == 0 ? 1e-10 : -1e-10);
    }
    bench.ops().rms_norm(bench.stream(), bench.put(x), bench.put(w), 1e-20f, bench.put(y));
    bench.finish();
    for (int64_t i = 0; i < 64; ++i) {
        EXPECT_EQ(y.get(i), 0.0);
        EXPECT_NEAR(y.get(64 + i), (i % 2 == 0 ? 1 : -1) * 0.7071, 0.004);
    }
}

}  // namespace
}  // namespace deepinfer::testing
