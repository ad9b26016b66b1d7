#include "ops/hyper_connection/mhc.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

HostTensor random_tensor(const std::string& seed, std::vector<int64_t> dims, double scale) {
    SeededRandom random(seed);
    HostTensor t(DType::kF32, std::move(dims));
    t.fill_normal(random, scale);
    return t;
}

OpCase mixes_case(int64_t hc, int64_t d) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size()), outs = (2 + hc) * hc;
        HostTensor x(DType::kBF16, {rows, hc, d}), pre(bench.acc(), {rows, hc}),
            post(bench.acc(), {rows, hc}), comb(bench.acc(), {rows, hc, hc});
        HostTensor fn = random_tensor(
                       "mhc fn", {outs, hc * d}, 1.0 / std::sqrt(static_cast<double>(hc * d))),
                   base = random_tensor("mhc base", {outs}, 0.5);
        HostTensor scale = HostTensor::from(DType::kF32, {3}, {1.0, 0.7, 1.5});
        bench.rows(x, ids, "mhc", 1.0);
        bench.ops().mhc_mixes(bench.stream(),
                              bench.put(x),
                              bench.put(fn),
                              bench.put(base),
                              bench.put(scale),
                              20,
                              1e-6f,
                              1e-20f,
                              bench.put(pre),
                              bench.put(post),
                              bench.put(comb));
        bench.finish();
        return outputs(std::move(pre), std::move(post), std::move(comb));
    };
    return {"mixes_hc" + std::to_string(hc) + "_d" + std::to_string(d),
            {Tolerance::f32(), Tolerance::f32(), Tolerance::f32()},
            run};
}

enum class Which { kCollapse, kExpand, kMean };

OpCase streams_case(Which which, int64_t hc, int64_t d, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, hc, d}, 0), y(DType::kBF16, {rows, d}),
            mix(bench.acc(), {rows, hc}), comb(bench.acc(), {rows, hc, hc});
        HostTensor one(DType::kBF16, {rows, d}, pad), all(DType::kBF16, {rows, hc, d});
        bench.rows(x, ids, "streams x", 1.0);
        bench.rows(y, ids, "streams y", 1.0);
        bench.rows(mix, ids, "streams mix", 1.0);
        bench.rows(comb, ids, "streams comb", 0.5);
        const Tensor xt = bench.put(x), onet = bench.put(one), allt = bench.put(all),
                     mixt = bench.put(mix);
        if (which == Which::kCollapse) bench.ops().mhc_collapse(bench.stream(), xt, mixt, onet);
        if (which == Which::kMean) bench.ops().streams_mean(bench.stream(), xt, onet);
        if (which == Which::kExpand)
            bench.ops().mhc_expand(bench.stream(), bench.put(y), xt, mixt, bench.put(comb), allt);
        bench.finish();
        return outputs(which == Which::kExpand ? std::move(all) : std::move(one));
    };
    const std::string op = which == Which::kCollapse ? "collapse"
                           : which == Which::kExpand ? "expand"
                                                     : "mean";
    return {
        op + "_hc" + std::to_string(hc) + "_d" + std::to_string(d), {Tolerance::bf16_store()}, run};
}

DI_TWIN_LAWS(Mhc,
             mixes_case(4, 32),
             mixes_case(4, 256),
             mixes_case(2, 33),
             mixes_case(4, 1),
             mixes_case(3, 40),
             streams_case(Which::kCollapse, 4, 256, 0),
             streams_case(Which::kCollapse, 2, 33, 3),
             streams_case(Which::kExpand, 4, 256, 0),
             streams_case(Which::kExpand, 3, 17, 0),
             streams_case(Which::kMean, 4, 256, 512),
             streams_case(Which::kMean, 3, 9, 1));

class Mhc : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Mhc,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(Mhc, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/mhc.safetensors"));
    HostTensor x = HostTensor::from(g["x"], DType::kBF16),
               y = HostTensor::from(g["y"], DType::kBF16);
    HostTensor fn = HostTensor::from(g["fn"], DType::kF32),
               base = HostTensor::from(g["base"], DType::kF32),
               scale = HostTensor::from(g["scale"], DType::kF32);
    const int64_t rows = x.dim(0), hc = x.dim(1), d = x.dim(2);
    HostTensor pre(bench.acc(), {rows, hc}), post(bench.acc(), {rows, hc}),
        comb(bench.acc(), {rows, hc, hc});
    HostTensor collapsed(DType::kBF16, {rows, d}), expanded(DType::kBF16, {rows, hc, d});
    const Tensor xt = bench.put(x), pret = bench.put(pre), postt = bench.put(post),
                 combt = bench.put(comb);
    bench.ops().mhc_mixes(bench.stream(),
                          xt,
                          bench.put(fn),
                          bench.put(base),
                          bench.put(scale),
                          20,
                          1e-6f,
                          1e-20f,
                          pret,
                          postt,
                          combt);
    bench.ops().mhc_collapse(bench.stream(), xt, pret, bench.put(collapsed));
    bench.ops().mhc_expand(bench.stream(), bench.put(y), xt, postt, combt, bench.put(expanded));
    bench.finish();
    EXPECT_EQ(difference(pre, HostTensor::from(g["pre"], DType::kF32), Tolerance::f32()), "");
    EXPECT_EQ(difference(post, HostTensor::from(g["post"], DType::kF32), Tolerance::f32()), "");
    EXPECT_EQ(difference(comb, HostTensor::from(g["comb"], DType::kF32), Tolerance::f32()), "");
    const Tolerance tolerance = bench.exact() ? Tolerance::equal() : Tolerance::bf16_store();
    EXPECT_EQ(difference(collapsed, HostTensor::from(g["collapsed"], DType::kBF16), tolerance), "");
    EXPECT_EQ(difference(expanded, HostTensor::from(g["expanded"], DType::kBF16), tolerance), "");
}

/// mhc_mixes on given mixes m: a one-hot x and fn columns that hold m, so that fn · v · rr = m ·
/// sqrt(n).
TEST_P(Mhc, GoldenSinkhorn) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/sinkhorn.safetensors"));
    for (const auto& [name, hc] :
         std::vector<std::pair<std::string, int64_t>>{{"hc2", 2}, {"hc4", 4}}) {
        const int64_t outs = (2 + hc) * hc, rows = g[name + ".mixes"].shape[0];
        const std::vector<double> mixes = g[name + ".mixes"].doubles();
        HostTensor base = HostTensor::from(g[name + ".base"], DType::kF32),
                   scale = HostTensor::from(g[name + ".scale"], DType::kF32);
        // Row r of the batch is one-hot at element r; the mean square is 1 / n and rr = sqrt(n), a
        // power of two.
        const int64_t n = 64;
        HostTensor x(DType::kBF16, {rows, hc, n / hc}), fn(DType::kF32, {outs, n});
        for (int64_t i = 0; i < x.numel(); ++i) x.set(i, i / n == i % n ? 1.0 : 0.0);
        for (int64_t j = 0; j < outs; ++j) {
            for (int64_t i = 0; i < n; ++i)
                fn.set(j * n + i, i < rows ? mixes[static_cast<size_t>(i * outs + j)] / 8.0 : 0.0);
        }
        HostTensor pre(bench.acc(), {rows, hc}), post(bench.acc(), {rows, hc}),
            comb(bench.acc(), {rows, hc, hc});
        bench.ops().mhc_mixes(bench.stream(),
                              bench.put(x),
                              bench.put(fn),
                              bench.put(base),
                              bench.put(scale),
                              20,
                              1e-6f,
                              1e-20f,
                              bench.put(pre),
                              bench.put(post),
                              bench.put(comb));
        bench.finish();
        EXPECT_EQ(
            difference(pre, HostTensor::from(g[name + ".pre"], DType::kF32), Tolerance::f32()), "")
            << name;
        EXPECT_EQ(
            difference(post, HostTensor::from(g[name + ".post"], DType::kF32), Tolerance::f32()),
            "")
            << name;
        EXPECT_EQ(
            difference(comb, HostTensor::from(g[name + ".comb"], DType::kF32), Tolerance::f32()),
            "")
            << name;
    }
}

template <typename Acc>
void check_hand_sinkhorn() {
    Acc a[16] = {2, 0, 0, -1, 0, 1, 0, 0, -1, 0, 3, 0, Acc(0.5), 0, 0, 0};
    sinkhorn_ref(a, 4, 20, 1e-6f);
    const double first[] = {0.660845, 0.164430, 0.070220, 0.104503},
                 last[] = {0.221348, 0.246829, 0.105409, 0.426413};
    for (int k = 0; k < 4; ++k) {  // model spec 7.4
        EXPECT_NEAR(a[k], first[k], 1e-6);
        EXPECT_NEAR(a[12 + k], last[k], 1e-6);
        EXPECT_NEAR(a[k] + a[4 + k] + a[8 + k] + a[12 + k], 0.999999, 5e-7);
    }
}
TEST(Sinkhorn, HandVector) {
    check_hand_sinkhorn<float>();
    check_hand_sinkhorn<double>();
    auto g = read_golden(data_path("unit/sinkhorn.safetensors"));
    std::vector<double> a = g["hand.logits"].doubles();
    sinkhorn_ref(a.data(), 4, 20, 1e-6f);
    const std::vector<double> want = g["hand.comb"].doubles();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], want[i], 1e-6);
}

}  // namespace
}  // namespace deepinfer::testing
