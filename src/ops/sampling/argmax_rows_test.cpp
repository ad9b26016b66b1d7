#include "ops/sampling/argmax_rows.h"

#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

OpCase argmax_case(int64_t n, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor x(bench.acc(), {rows, n}, pad), best(DType::kI32, {rows});
        bench.rows(x, ids, "argmax", 3.0);
        // Few distinct values, so that ties are common; small integers are equal in every table.
        for (int64_t i = 0; i < x.numel(); ++i) {
            if (!std::isnan(x.get(i))) x.set(i, std::round(x.get(i)));
        }
        bench.ops().argmax_rows(bench.stream(), bench.put(x), bench.put(best));
        bench.finish();
        return outputs(std::move(best));
    };
    return {"n" + std::to_string(n) + "_pad" + std::to_string(pad), {Tolerance::equal()}, run};
}

DI_TWIN_LAWS(
    ArgmaxRows, argmax_case(1, 0), argmax_case(2, 1), argmax_case(67, 5), argmax_case(2048, 0));

class ArgmaxRows : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         ArgmaxRows,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(ArgmaxRows, TiesNanAndInfinity) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<double> rows{1,    5,    5,    2,   // tie: the smaller position
                                   nan,  -3,   nan,  -2,  // NaN loses, in front of a value too
                                   -inf, -inf, -inf, -7,  -inf, -inf, -inf, -inf,
                                   nan,  nan,  nan,  nan, 0,    -0.0, inf,  inf};
    HostTensor x = HostTensor::from(bench.acc(), {6, 4}, rows), ids(DType::kI32, {6});
    bench.ops().argmax_rows(bench.stream(), bench.put(x), bench.put(ids));
    bench.finish();
    const std::vector<int> want{1, 3, 3, 0, 0, 2};
    for (int64_t t = 0; t < 6; ++t)
        EXPECT_EQ(ids.get(t), want[static_cast<size_t>(t)]) << "row " << t;
}

}  // namespace
}  // namespace deepinfer::testing
