#include "ops/linear/grouped_o_proj.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase grouped_case(int groups, int64_t in, int64_t ol, int64_t pad) {
    const std::string name =
        "g" + std::to_string(groups) + "_in" + std::to_string(in) + "_ol" + std::to_string(ol);
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        SeededRandom random("grouped_o_proj weight " + name);
        const HostWeight w = HostWeight::random(random, DType::kFP8E4M3, groups * ol, in);
        HostTensor o(DType::kBF16, {rows, groups * in}, pad),
            y(DType::kBF16, {rows, groups * ol}, pad);
        bench.rows(o, ids, "grouped_o_proj", 1.0);
        bench.ops().grouped_o_proj(
            bench.stream(), bench.put(o), bench.put(w), groups, bench.put(y));
        bench.finish();
        return outputs(std::move(y));
    };
    return {name, {Tolerance::bf16_store()}, run};
}

DI_TWIN_LAWS(GroupedOProj,
             grouped_case(1, 32, 32, 0),
             grouped_case(2, 256, 64, 8),
             grouped_case(4, 64, 24, 3),
             grouped_case(2, 1024, 64, 0));

class GroupedOProj : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         GroupedOProj,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(GroupedOProj, GroupsSeeTheirOwnHeadsAndNoQuantizer) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    // Two groups of one output: weights 1 (code 0x38, scale 2^0). 1 + 2^-7 survives only
    // unquantized.
    HostWeight w;
    w.dtype = DType::kFP8E4M3;
    w.n = 2;
    w.k = 32;
    w.weight.assign(64, 0x38);
    w.scale.assign(1, 127);
    HostTensor o(DType::kBF16, {1, 64}), y(DType::kBF16, {1, 2});
    for (int64_t i = 0; i < 64; ++i) o.set(i, 0.0);
    o.set(3, 1.0 + 0x1p-7);
    o.set(32 + 5, -3.0);
    bench.ops().grouped_o_proj(bench.stream(), bench.put(o), bench.put(w), 2, bench.put(y));
    bench.finish();
    EXPECT_EQ(y.get(0), 1.0 + 0x1p-7);
    EXPECT_EQ(y.get(1), -3.0);
}

}  // namespace
}  // namespace deepinfer::testing
