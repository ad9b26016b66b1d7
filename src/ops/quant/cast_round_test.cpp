#include "ops/quant/cast_round.h"

#include "support/twin_test.h"
#include "tensor/quant_block.h"

namespace deepinfer::testing {
namespace {

enum class Which { kQ8, kQ4m, kScale };

OpCase cast_case(Which which, int64_t n, int64_t pad, bool in_place) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor x(DType::kBF16, {rows, n}, pad), y(DType::kBF16, {rows, n}, 2 * pad);
        bench.rows(x, ids, "cast_round", 2.0);
        const Tensor xt = bench.put(x), yt = in_place ? xt : bench.put(y);
        const OpTable& ops = bench.ops();
        if (which == Which::kQ8) ops.quant_q8(bench.stream(), xt, yt);
        if (which == Which::kQ4m) ops.quant_q4m(bench.stream(), xt, yt);
        if (which == Which::kScale) ops.scale_bf16(bench.stream(), xt, 0.08838834764f, yt);
        bench.finish();
        return outputs(in_place ? std::move(x) : std::move(y));
    };
    const std::string op = which == Which::kQ8 ? "q8" : which == Which::kQ4m ? "q4m" : "scale";
    return {op + "_n" + std::to_string(n) + "_pad" + std::to_string(pad) +
                (in_place ? "_in_place" : ""),
            {Tolerance::equal()},
            run};
}

DI_TWIN_LAWS(CastRound,
             cast_case(Which::kQ8, 32, 0, false),
             cast_case(Which::kQ8, 96, 5, true),
             cast_case(Which::kQ8, 5120, 0, true),
             cast_case(Which::kQ4m, 32, 1, false),
             cast_case(Which::kQ4m, 128, 0, true),
             cast_case(Which::kScale, 1, 0, false),
             cast_case(Which::kScale, 33, 2, true));

class CastRound : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         CastRound,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(CastRound, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g8 = read_golden(data_path("unit/q8.safetensors")),
         g4 = read_golden(data_path("unit/q4m.safetensors"));
    HostTensor x8 = HostTensor::from(g8["x"], DType::kBF16, 7),
               x4 = HostTensor::from(g4["x"], DType::kBF16), y8(DType::kBF16, x8.dims()),
               y4(DType::kBF16, x4.dims());
    bench.ops().quant_q8(bench.stream(), bench.put(x8), bench.put(y8));
    bench.ops().quant_q4m(bench.stream(), bench.put(x4), bench.put(y4));
    bench.finish();
    EXPECT_EQ(difference(y8, HostTensor::from(g8["y"], DType::kBF16), Tolerance::equal()), "");
    EXPECT_EQ(difference(y4, HostTensor::from(g4["y"], DType::kBF16), Tolerance::equal()), "");
}

// Every bf16 value as the largest of its block and as a small one beside 1.0: all magnitudes, ties,
// NaN and infinity.
TEST_P(CastRound, EveryBf16Value) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x(DType::kBF16, {2 * 65536 / 64, 64}), y8(DType::kBF16, x.dims()),
        y4(DType::kBF16, x.dims());
    for (int64_t i = 0; i < x.numel(); ++i) x.set(i, i % 32 == 0 ? 1.0 : 0.0);
    for (int64_t v = 0; v < 65536; ++v) {
        x.set(v / 32 * 64 + 1 + v % 31, to_float(bf16{static_cast<uint16_t>(v)}));
        x.set(v / 32 * 64 + 32 + v % 32, to_float(bf16{static_cast<uint16_t>(v)}));
    }
    bench.ops().quant_q8(bench.stream(), bench.put(x), bench.put(y8));
    bench.ops().quant_q4m(bench.stream(), bench.put(x), bench.put(y4));
    bench.finish();
    for (int64_t b = 0; b < x.numel(); b += 32) {
        float block[32];
        uint8_t codes[32], packed[16];
        for (int64_t i = 0; i < 32; ++i) block[i] = static_cast<float>(x.get(b + i));
        const float scale8 = ue8m0_to_float(q8_block(block, codes)),
                    scale4 = ue8m0_to_float(q4m_block(block, packed));
        for (int64_t i = 0; i < 32; ++i) {
            const float w8 = round_bf16(e4m3_to_float(codes[i]) * scale8);
            const float w4 = round_bf16(
                e2m1_to_float(static_cast<uint8_t>(packed[i / 2] >> (4 * (i & 1)))) * scale4);
            ASSERT_TRUE(y8.get(b + i) == w8 || (std::isnan(w8) && std::isnan(y8.get(b + i))))
                << block[i] << " gave " << y8.get(b + i) << ", expected " << w8;
            ASSERT_TRUE(y4.get(b + i) == w4 || (std::isnan(w4) && std::isnan(y4.get(b + i))))
                << block[i] << " gave " << y4.get(b + i) << ", expected " << w4;
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
