#include "ops/sampling/add_rows.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase add_rows_case(int64_t n, int64_t x_pad, int64_t out_pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor x(bench.acc(), {rows, n}, x_pad), out(bench.acc(), {rows, n}, out_pad);
        bench.rows(x, ids, "add_rows x", 3.0);
        bench.rows(out, ids, "add_rows out", 2.0);
        bench.ops().add_rows(bench.stream(), bench.put(x), bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"n" + std::to_string(n) + "_pad" + std::to_string(x_pad), {Tolerance::f32()}, run};
}

DI_TWIN_LAWS(AddRows,
             add_rows_case(1, 0, 0),
             add_rows_case(1, 4, 0),
             add_rows_case(63, 3, 5),
             add_rows_case(2048, 8192, 0));

class AddRows : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         AddRows,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(AddRows, AddsInPlace) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x = HostTensor::from(bench.acc(), {2, 2}, {1.0, 2.0, -4.0, 0.5}),
               out = HostTensor::from(bench.acc(), {2, 2}, {10.0, 20.0, 4.0, 0.25});
    bench.ops().add_rows(bench.stream(), bench.put(x), bench.put(out));
    bench.finish();
    EXPECT_EQ(out.get(0), 11.0);
    EXPECT_EQ(out.get(1), 22.0);
    EXPECT_EQ(out.get(2), 0.0);
    EXPECT_EQ(out.get(3), 0.75);
    EXPECT_EQ(x.get(0), 1.0);
}

}  // namespace
}  // namespace deepinfer::testing
