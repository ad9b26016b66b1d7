#include "ops/linear/linear.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

std::string format_name(DType t) {
    switch (t) {
        case DType::kFP8E4M3:
            return "fp8";
        case DType::kFP4:
            return "fp4";
        case DType::kBF16:
            return "bf16";
        default:
            return "f32";
    }
}

OpCase linear_case(DType format, int64_t n, int64_t k, bool acc_out, int64_t pad = 0) {
    const std::string name = format_name(format) + "_n" + std::to_string(n) + "_k" +
                             std::to_string(k) + (acc_out ? "_acc" : "_bf16") +
                             (pad > 0 ? "_padded" : "");
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        SeededRandom random("linear weight " + name);
        const HostWeight w = HostWeight::random(random, format, n, k);
        HostTensor x(DType::kBF16, {rows, k}, pad),
            y(acc_out ? bench.acc() : DType::kBF16, {rows, n}, pad);
        bench.rows(x, ids, "linear", 1.0);
        const Tensor xt = bench.put(x);
        if (format == DType::kFP8E4M3 || format == DType::kFP4)
            bench.ops().quant_q8(bench.stream(), xt, xt);
        bench.ops().linear(bench.stream(), xt, bench.put(w), bench.put(y));
        bench.finish();
        return outputs(std::move(y));
    };
    return {name, {acc_out ? Tolerance::f32() : Tolerance::bf16_store()}, run};
}

std::vector<OpCase> linear_cases() {
    std::vector<OpCase> cases;
    for (DType format : {DType::kFP8E4M3, DType::kFP4}) {
        cases.push_back(linear_case(format, 1, 32, false));
        cases.push_back(linear_case(format, 31, 96, false, 5));
        cases.push_back(linear_case(format, 33, 160, true));
        cases.push_back(linear_case(format, 64, 512, false));
        cases.push_back(linear_case(format, 80, 1280, false, 8));
    }
    for (DType format : {DType::kBF16, DType::kF32}) {
        cases.push_back(linear_case(format, 1, 1, true));
        cases.push_back(linear_case(format, 7, 33, true, 3));
        cases.push_back(linear_case(format, 32, 64, false));
        cases.push_back(linear_case(format, 65, 512, true));
        cases.push_back(linear_case(format, 12, 256, false, 4));
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Linear,
                         TwinLaws,
                         ::testing::Combine(::testing::ValuesIn(implementations()),
                                            ::testing::Values(OpCases{"Linear", &linear_cases})),
                         twin_test_name);

[[maybe_unused]] const bool kLinearListed = list_twin_cases({"Linear", &linear_cases});

class Linear : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Linear,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

void check_golden(const Implementation& implementation, const std::string& file, DType format) {
    OpBench bench(implementation);
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/" + file));
    HostWeight w;
    w.dtype = format;
    w.n = g["weight"].shape[0];
    w.k = g["x"].shape[1];
    w.weight = g["weight"].bytes;
    w.scale = g["scale"].bytes;
    HostTensor x = HostTensor::from(g["x"], DType::kBF16), y(DType::kBF16, {x.dim(0), w.n}),
               y_acc(bench.acc(), {x.dim(0), w.n});
    const Tensor xt = bench.put(x);
    const WeightMatrix wt = bench.put(w);
    bench.ops().quant_q8(bench.stream(), xt, xt);
    bench.ops().linear(bench.stream(), xt, wt, bench.put(y));
    bench.ops().linear(bench.stream(), xt, wt, bench.put(y_acc));
    bench.finish();
    EXPECT_EQ(difference(y,
                         HostTensor::from(g["y"], DType::kBF16),
                         bench.exact() ? Tolerance::equal() : Tolerance::bf16_store()),
              "");
    EXPECT_EQ(difference(y_acc,
                         HostTensor::from(g["y_exact"], DType::kF64),
                         Tolerance::f32(bench.exact() ? 1e-12 : 1e-6)),
              "");
}

TEST_P(Linear, GoldenFp8) {
    check_golden(GetParam(), "lin_fp8.safetensors", DType::kFP8E4M3);
}
TEST_P(Linear, GoldenFp4) {
    check_golden(GetParam(), "lin_fp4.safetensors", DType::kFP4);
}

TEST(WeightValue, ReadsEveryFormat) {
    // First bytes of two released rows (model spec 2.2).
    const uint8_t fp8[32] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5}, fp8_scale[1] = {0x73};
    const uint8_t fp4[16] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa}, fp4_scale[1] = {0x78};
    const float want8[] = {-0.00390625f,
                           0.03515625f,
                           -0.0390625f,
                           0.0703125f,
                           0.03125f,
                           0.017578125f,
                           -0.03125f,
                           -0.0126953125f};
    const float want4[] = {0,
                           -0.0078125f,
                           0,
                           -0.0078125f,
                           -0.015625f,
                           -0.03125f,
                           -0.0078125f,
                           0.015625f,
                           -0.0234375f,
                           -0.0078125f,
                           -0.046875f,
                           -0.0078125f,
                           0.0078125f,
                           0.015625f,
                           -0.0078125f,
                           -0.0078125f};
    WeightMatrix w;
    w.n = 1;
    w.k = 32;
    w.dtype = DType::kFP8E4M3;
    w.weight = fp8;
    w.scale = fp8_scale;
    float row[32];
    weight_row(w, 0, row);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(row[i], want8[i]) << i;
    w.dtype = DType::kFP4;
    w.weight = fp4;
    w.scale = fp4_scale;
    for (int i = 0; i < 16; ++i) EXPECT_EQ(weight_value(w, 0, i), want4[i]) << i;
}

TEST(WeightValue, ScalesAreTilesForFp8AndRowsForFp4) {
    SeededRandom random("WeightValue.ScalesAreTilesForFp8AndRowsForFp4");
    for (DType format : {DType::kFP8E4M3, DType::kFP4}) {
        const HostWeight h = HostWeight::random(random, format, 70, 96);
        const WeightMatrix w = h.view();
        for (int64_t r = 0; r < w.n; ++r) {
            for (int64_t c = 0; c < w.k; ++c) {
                const int64_t i = r * w.k + c;
                const bool fp8 = format == DType::kFP8E4M3;
                const size_t block =
                    static_cast<size_t>(fp8 ? r / 32 * 3 + c / 32 : r * 3 + c / 32);
                const uint8_t byte = h.weight[static_cast<size_t>(fp8 ? i : i / 2)];
                const float code =
                    fp8 ? e4m3_to_float(byte)
                        : e2m1_to_float(static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4));
                ASSERT_EQ(weight_value(w, r, c), code * std::ldexp(1.0f, h.scale[block] - 127));
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
