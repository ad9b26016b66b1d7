// bench ops on a small geometry: every op of the table is measured, records agree with themselves,
// wrong requests get a sentence. Times are never judged.
#include "deepinfer/op_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "opbench/bench_context.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

OpBenchOptions small() {
    static const bool registered = [] {
        register_cpu_backend();
        register_ref_backends();
        return true;
    }();
    (void)registered;
    OpBenchOptions o;
    o.synthetic = DEEPINFER_SOURCE_DIR "/models/demo/config.json";
    o.threads = 2;
    o.rows = {1, 3};
    o.windows = 1;
    o.window_ms = 0.01;
    return o;
}

TEST(OpBench, MeasuresEveryOp) {
    std::set<std::string> seen;
    const Status s = run_op_bench(small(), [&](const OpMeasurement& m) {
        seen.insert(m.op);
        EXPECT_GT(m.med_us, 0) << m.op;
        EXPECT_LE(m.min_us, m.med_us) << m.op;
        EXPECT_LE(m.med_us, m.p90_us) << m.op;
        EXPECT_GT(m.bytes, 0) << m.op;
        EXPECT_GT(m.roof_value, 0) << m.op;
        EXPECT_TRUE(m.roof == "read" || m.roof == "dot") << m.op;
        const double work = m.roof == "dot" ? m.flops : m.bytes;
        EXPECT_NEAR(m.share, work / (m.roof_value * 1e3) / m.med_us, 1e-6 + 1e-6 * m.share) << m.op;
        EXPECT_FALSE(m.shape.empty()) << m.op;
        EXPECT_THAT(m.backend_line, HasSubstr("2 threads"));
        return true;
    });
    ASSERT_TRUE(s.ok()) << s.message();
    const std::vector<std::string> all = benched_ops();
    EXPECT_EQ(seen, std::set<std::string>(all.begin(), all.end()));
}

/// The list of names is the op table up to the picture tower, without the fusions and the device's
/// token choice (the CPU has none): a new op without a case shows here.
TEST(OpBench, NamesCoverTheOpTable) {
    const size_t pointers = (offsetof(OpTable, linear_bias) - offsetof(OpTable, rms_norm) -
                             (offsetof(OpTable, draft_attention) - offsetof(OpTable, mhc_step))) /
                            sizeof(void (*)());
    EXPECT_EQ(benched_ops().size(), pointers);
}

TEST(OpBench, StopsWhenAsked) {
    OpBenchOptions o = small();
    int calls = 0;
    EXPECT_TRUE(run_op_bench(o, [&](const OpMeasurement&) { return ++calls < 3; }).ok());
    EXPECT_EQ(calls, 3);
}

TEST(OpBench, RefusesWhatItCannotMeasure) {
    const auto message = [](auto change) {
        OpBenchOptions o = small();
        change(o);
        return run_op_bench(o, [](const OpMeasurement&) { return true; }).message();
    };
    EXPECT_THAT(message([](OpBenchOptions& o) { o.ops = {"conv2d"}; }), HasSubstr("conv2d"));
    EXPECT_THAT(message([](OpBenchOptions& o) { o.backend = "ref"; }), HasSubstr("roof"));
    EXPECT_THAT(message([](OpBenchOptions& o) { o.rows = {0}; }), HasSubstr("rows"));
    EXPECT_THAT(message([](OpBenchOptions& o) { o.windows = 0; }), HasSubstr("windows"));
    EXPECT_THAT(message([](OpBenchOptions& o) { o.synthetic = "nothing"; }), HasSubstr("nothing"));
    EXPECT_THAT(message([](OpBenchOptions& o) { o.model_dir = "/no/such/dir"; }),
                HasSubstr("/no/such/dir"));
}

}  // namespace
}  // namespace deepinfer
