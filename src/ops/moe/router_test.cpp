#include "ops/moe/router.h"

#include <algorithm>

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase scores_case(ScoringFunc func, DType format, int64_t experts, int64_t d, float temperature) {
    const std::string f = func == ScoringFunc::kSoftmax   ? "softmax"
                          : func == ScoringFunc::kSigmoid ? "sigmoid"
                                                          : "sqrtsoftplus";
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        SeededRandom random("router gate");
        const HostWeight gate = HostWeight::random(random, format, experts, d, 3.0);
        HostTensor u(DType::kBF16, {rows, d}, 4), scores(bench.acc(), {rows, experts}, 3);
        bench.rows(u, ids, "router u", 2.0);
        bench.ops().router_scores(
            bench.stream(), bench.put(u), bench.put(gate), temperature, func, bench.put(scores));
        bench.finish();
        return outputs(std::move(scores));
    };
    return {f + "_e" + std::to_string(experts) + "_d" + std::to_string(d) +
                (format == DType::kF32 ? "_f32" : ""),
            {Tolerance::f32()},
            run};
}

/// Scores and biases on a grid, so that ties are common and sums are exact.
OpCase topk_case(int64_t experts, int64_t k, bool images) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor scores(bench.acc(), {rows, experts}, 5), bias(DType::kF32, {experts}),
            bias_vl(DType::kF32, {experts}), image(DType::kU8, {rows}),
            out(DType::kI32, {rows, k}, 1);
        SeededRandom random("router bias");
        for (int64_t e = 0; e < experts; ++e) {
            bias.set(e, static_cast<double>(random.below(8)) / 16.0);
            bias_vl.set(e, static_cast<double>(random.below(8)) / 16.0);
        }
        for (int64_t r = 0; r < rows; ++r) {
            const int id = ids[static_cast<size_t>(r)];
            SeededRandom row("router scores/" + std::to_string(id));
            for (int64_t e = 0; e < experts; ++e)
                scores.set(r * experts + e, static_cast<double>(row.below(24)) / 16.0);
            if (id == bench.poisoned_row)
                scores.set(r * experts, std::numeric_limits<double>::quiet_NaN());
            image.set(r, id % 3 == 1 ? 1 : 0);
        }
        bench.ops().router_topk(bench.stream(),
                                bench.put(scores),
                                bench.put(bias),
                                bench.put(bias_vl),
                                images ? bench.put(image) : Tensor(),
                                bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {
        "topk_e" + std::to_string(experts) + "_k" + std::to_string(k) + (images ? "_images" : ""),
        {Tolerance::equal()},
        run};
}

OpCase weights_case(bool normalize) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor scores(bench.acc(), {rows, 12}), picks(DType::kI32, {rows, 3}),
            weights(bench.acc(), {rows, 3}, 2);
        bench.rows(scores, ids, "router weights", 1.0);
        for (int64_t i = 0; i < scores.numel(); ++i) scores.set(i, std::fabs(scores.get(i)));
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < 3; ++i)
                picks.set(r * 3 + i, static_cast<double>(ids[static_cast<size_t>(r)] % 4 + i * 4));
        }
        bench.ops().router_weights(bench.stream(),
                                   bench.put(scores),
                                   bench.put(picks),
                                   normalize,
                                   1.5f,
                                   bench.put(weights));
        bench.finish();
        return outputs(std::move(weights));
    };
    return {normalize ? "weights_normalized" : "weights_raw", {Tolerance::f32()}, run};
}

DI_TWIN_LAWS(Router,
             scores_case(ScoringFunc::kSqrtSoftplus, DType::kBF16, 16, 96, 1.0f),
             scores_case(ScoringFunc::kSqrtSoftplus, DType::kF32, 12, 256, 1.0f),
             scores_case(ScoringFunc::kSqrtSoftplus, DType::kBF16, 384, 512, 0.5f),
             scores_case(ScoringFunc::kSigmoid, DType::kBF16, 1, 33, 2.0f),
             scores_case(ScoringFunc::kSoftmax, DType::kBF16, 12, 64, 1.0f),
             topk_case(12, 3, true),
             topk_case(384, 6, true),
             topk_case(16, 16, false),
             topk_case(1, 1, false),
             topk_case(9, 2, false),
             weights_case(true),
             weights_case(false));

class Router : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Router,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(Router, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/router.safetensors"));
    for (const std::string r : {"e16.", "e384."}) {
        HostTensor x = HostTensor::from(g[r + "x"], DType::kBF16),
                   bias = HostTensor::from(g[r + "bias"], DType::kF32),
                   bias_vl = HostTensor::from(g[r + "bias_vl"], DType::kF32);
        HostTensor image = HostTensor::from(g[r + "is_image"], DType::kU8);
        const HostTensor want_ids = HostTensor::from(g[r + "ids"], DType::kI32);
        HostWeight gate;
        gate.n = g[r + "weight"].shape[0];
        gate.k = g[r + "weight"].shape[1];
        gate.weight = g[r + "weight"].bytes;
        HostTensor logits(bench.acc(), {x.dim(0), gate.n}), scores(bench.acc(), {x.dim(0), gate.n}),
            ids(DType::kI32, want_ids.dims()), weights(bench.acc(), want_ids.dims());
        const WeightMatrix w = bench.put(gate);
        const Tensor xt = bench.put(x), st = bench.put(scores), it = bench.put(ids);
        bench.ops().linear(bench.stream(), xt, w, bench.put(logits));
        bench.ops().router_scores(bench.stream(), xt, w, 1.0f, ScoringFunc::kSqrtSoftplus, st);
        bench.ops().router_topk(
            bench.stream(), st, bench.put(bias), bench.put(bias_vl), bench.put(image), it);
        bench.ops().router_weights(bench.stream(), st, it, true, 1.5f, bench.put(weights));
        bench.finish();
        EXPECT_EQ(
            difference(logits, HostTensor::from(g[r + "logits"], DType::kF32), Tolerance::f32()),
            "")
            << r;
        EXPECT_EQ(difference(ids, want_ids, Tolerance::equal()), "") << r;
        EXPECT_EQ(
            difference(weights, HostTensor::from(g[r + "weights"], DType::kF32), Tolerance::f32()),
            "")
            << r;
    }
}

TEST_P(Router, NanLosesAndIdsStayDistinct) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();
    HostTensor scores = HostTensor::from(
        bench.acc(), {3, 4}, {nan, 0.5, nan, -inf, nan, nan, nan, nan, 1, 1, 1, 1});
    HostTensor bias = HostTensor::from(DType::kF32, {4}, {0, 0, 0, 0}), ids(DType::kI32, {3, 3});
    const Tensor b = bench.put(bias);
    bench.ops().router_topk(bench.stream(), bench.put(scores), b, b, Tensor(), bench.put(ids));
    bench.finish();
    EXPECT_EQ(difference(ids,
                         HostTensor::from(DType::kI32, {3, 3}, {0, 1, 3, 0, 1, 2, 0, 1, 2}),
                         Tolerance::equal()),
              "");
}

TEST_P(Router, ZeroScoresGiveZeroWeights) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor scores = HostTensor::from(bench.acc(), {1, 3}, {0, 0, 0}),
               ids = HostTensor::from(DType::kI32, {1, 2}, {0, 2}), weights(bench.acc(), {1, 2});
    bench.ops().router_weights(
        bench.stream(), bench.put(scores), bench.put(ids), true, 1.5f, bench.put(weights));
    bench.finish();
    EXPECT_EQ(
        difference(weights, HostTensor::from(DType::kF32, {1, 2}, {0, 0}), Tolerance::equal()), "");
}

}  // namespace
}  // namespace deepinfer::testing
