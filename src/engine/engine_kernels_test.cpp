// What an engine asks of its backend's kernels before it loads anything.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "backends/ref/ref_backend.h"
#include "deepinfer/engine.h"
#include "ops/backend.h"
#include "ops/numeric_class.h"
#include "support/golden_file.h"

namespace deepinfer {
namespace {

/// A matrix product as it would be with its k split by the number of rows.
void linear_by_rows(Stream& s, const Tensor& x, const WeightMatrix& w, Tensor out) {
    linear_ref<float>(s, x, w, std::move(out));
}
void linear_of_nobody(Stream& s, const Tensor& x, const WeightMatrix& w, Tensor out) {
    linear_ref<float>(s, x, w, std::move(out));
}

/// The twins with another linear.
class OtherLinear final : public Backend {
  public:
    OtherLinear(std::unique_ptr<Backend> inner, LinearOp linear)
        : inner_(std::move(inner)), ops_(inner_->ops()) {
        ops_.linear = linear;
    }
    std::string name() const override { return inner_->name(); }
    std::string description() const override { return inner_->description(); }
    Device& device() override { return inner_->device(); }
    const OpTable& ops() const override { return ops_; }
    Status prepare(WeightMatrix& w) override { return inner_->prepare(w); }
    Status prepare(Tensor& t) override { return inner_->prepare(t); }

  private:
    std::unique_ptr<Backend> inner_;
    OpTable ops_;
};

EngineConfig config_of(const std::string& backend) {
    register_ref_backends();
    const auto other = [](LinearOp linear) {
        return [linear](const BackendOptions& o) -> Result<std::unique_ptr<Backend>> {
            Result<std::unique_ptr<Backend>> inner = create_backend("ref", o);
            if (!inner.ok()) return inner.status();
            return std::unique_ptr<Backend>(new OtherLinear(std::move(inner).value(), linear));
        };
    };
    declare_kernel(kernel_id(&linear_by_rows), "linear_by_rows", NumericClass::kBatchDependent);
    register_backend("ref-by-rows", other(&linear_by_rows));
    register_backend("ref-undeclared", other(&linear_of_nobody));
    EngineConfig c;
    c.model_dir = testing::checkpoint_path("nano");
    c.backend = backend;
    c.threads = 1;
    c.max_num_seqs = 2;
    c.max_model_len = 256;
    return c;
}

TEST(EngineKernels, BatchInvariantRefusesAKernelThatFollowsTheBatch) {
    EngineConfig c = config_of("ref-by-rows");
    const auto refused = Engine::create(c);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.status().message(),
              "batch_invariant (DEEPINFER_BATCH_INVARIANT) is 1: op linear of backend ref runs the "
              "kernel linear_by_rows of numeric class batch_dependent, expected row_invariant or "
              "better");
    c.batch_invariant = false;
    const auto taken = Engine::create(c);
    ASSERT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_NE(taken.value()->description().find("1 batch_dependent"), std::string::npos)
        << taken.value()->description();
}

TEST(EngineKernels, AKernelThatDeclaresNothingIsRefusedInBothModes) {
    EngineConfig c = config_of("ref-undeclared");
    for (const bool invariant : {true, false}) {
        c.batch_invariant = invariant;
        const auto refused = Engine::create(c);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.status().message().find("numeric class undeclared"), std::string::npos)
            << refused.status().message();
    }
}

TEST(EngineKernels, TheStartUpTextSaysWhatTheKernelsPromise) {
    const auto engine = Engine::create(config_of("ref"));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const std::string text = engine.value()->description();
    EXPECT_NE(text.find("kernels  "), std::string::npos);
    EXPECT_NE(text.find(" row_invariant"), std::string::npos);
    EXPECT_EQ(text.find("undeclared"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
