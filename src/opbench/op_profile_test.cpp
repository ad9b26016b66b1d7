// The profiled backend: the same bits, whole steps, the costs of bench ops.
#include "deepinfer/op_profile.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "ops/backend.h"
#include "ops/numeric_class.h"

namespace deepinfer {
namespace {

class OpProfile : public ::testing::Test {
  protected:
    void SetUp() override {
        register_cpu_backend();
        register_profiled_backend("cpu");
        BackendOptions options;
        options.num_threads = 1;
        profiled_ = create_backend("cpu+profile", options).value();
    }
    /// One step: embed (its beginning) and a product; returns the product.
    std::vector<uint16_t> step(Backend& b) {
        const OpTable& ops = b.ops();
        std::vector<uint16_t> embed(4 * 32, 0x3F80), weight(64 * 32), streams(2 * 32), y(2 * 64);
        for (size_t i = 0; i < weight.size(); ++i)
            weight[i] = static_cast<uint16_t>(0x3E00 + i % 97);
        std::vector<int32_t> ids{1, 3};
        const auto matrix = [](std::vector<uint16_t>& v, int64_t n) {
            WeightMatrix w;
            w.n = n;
            w.k = 32;
            w.weight = v.data();
            return w;
        };
        WeightMatrix w = matrix(weight, 64);
        EXPECT_TRUE(b.prepare(w).ok());
        Stream& stream = b.device().stream();
        ops.embed_streams(stream,
                          matrix(embed, 4),
                          Tensor(ids.data(), DType::kI32, {2}),
                          Tensor(streams.data(), DType::kBF16, {2, 1, 32}));
        ops.linear(stream,
                   Tensor(streams.data(), DType::kBF16, {2, 32}),
                   w,
                   Tensor(y.data(), DType::kBF16, {2, 64}));
        return y;
    }
    std::unique_ptr<Backend> profiled_;
};

TEST_F(OpProfile, GivesTheSameBitsAndKeepsTheClasses) {
    BackendOptions options;
    options.num_threads = 1;
    const std::unique_ptr<Backend> plain = create_backend("cpu", options).value();
    EXPECT_EQ(step(*profiled_), step(*plain));
    start_op_profile();
    EXPECT_EQ(step(*profiled_), step(*plain));
    stop_op_profile();
    const std::vector<OpSite> a = op_sites(plain->ops()), b = op_sites(profiled_->ops());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].numeric_class, b[i].numeric_class);
}

TEST_F(OpProfile, CountsWholeStepsAndTheirCosts) {
    step(*profiled_);  // not yet
    start_op_profile();
    for (int i = 0; i < 3; ++i) step(*profiled_);
    int64_t steps = 0;
    const std::vector<ProfiledOp> ops = stop_op_profile(&steps);
    step(*profiled_);  // no more
    EXPECT_EQ(steps, 3);
    ASSERT_EQ(ops.size(), 2u);
    EXPECT_EQ(ops[0].op, "embed_streams");
    EXPECT_EQ(ops[1].op, "linear");
    EXPECT_EQ(ops[1].calls, 3);
    EXPECT_EQ(ops[1].stored, 64 * 32 * 2);
    EXPECT_EQ(ops[1].bytes, 64 * 32 * 2 + 2 * (32 + 64) * 2);
    EXPECT_EQ(ops[1].flops, 2 * 2 * 32 * 64);
    EXPECT_GT(ops[1].seconds, 0);
}

TEST_F(OpProfile, MeasuresRoofsOfAnyWorkingSet) {
    for (const double bytes : {1.0, 5000.0, 1e6, 3e7}) EXPECT_GT(profiled_read_roof(bytes), 1e8);
    EXPECT_GT(profiled_dot_roof(), 1e8);
    profiled_.reset();
    EXPECT_EQ(profiled_dot_roof(), 0);
}

}  // namespace
}  // namespace deepinfer
