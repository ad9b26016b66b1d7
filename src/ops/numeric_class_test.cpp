// Every op of the table, at every level: a numeric class is declared, and the op takes part in the
// laws that the class promises.
#include "ops/numeric_class.h"

#include <set>
#include <string>
#include <vector>

#include "device/host_device.h"
#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

class KernelsOf : public EveryImplementation {};

TEST_P(KernelsOf, EveryOpDeclaresItsClass) {
    const OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const std::vector<OpSite> sites = op_sites(bench.ops());
    EXPECT_GE(sites.size(), 40u);
    for (const OpSite& s : sites) {
        EXPECT_GE(s.numeric_class, NumericClass::kRowInvariant)
            << "op " << s.op << " of " << GetParam()
            << ": choose() the kernel beside the op table, with what its bits depend on";
        EXPECT_NE(s.kernel_name, "") << s.op;
    }
    EXPECT_TRUE(check_numeric_classes(bench.ops(), NumericClass::kRowInvariant).ok());
    EXPECT_EQ(numeric_summary(bench.ops()).find("undeclared"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(Ops,
                         KernelsOf,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

void nobody_declared(Stream&, const Tensor&, const WeightMatrix&, Tensor) {}
void splits_k_by_rows(Stream&, const Tensor&, const WeightMatrix&, Tensor) {}

TEST(NumericClass, AKernelOfALesserClassIsRefusedByName) {
    OpTable t = ref_op_table();
    EXPECT_TRUE(check_numeric_classes(t, NumericClass::kRowInvariant).ok());
    EXPECT_FALSE(check_numeric_classes(t, NumericClass::kExact).ok()) << "sums are no moves";

    t.linear = &nobody_declared;
    Status s = check_numeric_classes(t, NumericClass::kBatchDependent);
    EXPECT_EQ(s.message(),
              "op linear of backend ref runs a kernel of numeric class undeclared, expected "
              "batch_dependent or better");

    choose(t.linear, &splits_k_by_rows, "splits_k_by_rows", NumericClass::kBatchDependent);
    EXPECT_TRUE(check_numeric_classes(t, NumericClass::kBatchDependent).ok());
    s = check_numeric_classes(t, NumericClass::kRowInvariant);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(s.message(),
              "op linear of backend ref runs the kernel splits_k_by_rows of numeric class "
              "batch_dependent, expected row_invariant or better");
    EXPECT_NE(numeric_summary(t).find(", 1 batch_dependent"), std::string::npos)
        << numeric_summary(t);
}

TEST(NumericClass, OpsWithoutAKernelHaveNoClass) {
    OpTable t = ref_op_table();
    const size_t before = op_sites(t).size();
    t.linear_bias = nullptr;  // a backend that takes no pictures
    EXPECT_EQ(op_sites(t).size(), before - 1);
    EXPECT_TRUE(check_numeric_classes(t, NumericClass::kRowInvariant).ok());
    EXPECT_TRUE(op_sites(OpTable()).empty());
}

TEST(NumericClassDeathTest, ADeclarationIsNotChangedLater) {
    OpTable t;
    choose(t.linear, &splits_k_by_rows, "splits_k_by_rows", NumericClass::kBatchDependent);
    choose(t.linear, &splits_k_by_rows, "splits_k_by_rows", NumericClass::kBatchDependent);
    EXPECT_DEATH(choose(t.linear, &splits_k_by_rows, "splits_k_by_rows", NumericClass::kExact),
                 "declared before");
}

/// Ops that ran, by name.
std::set<std::string>& ops_that_ran() {
    static std::set<std::string> ran;
    return ran;
}

/// The twin of one op, noting that it ran.
template <int kId, typename... A>
struct Noted {
    static inline void (*op)(A...) = nullptr;
    static inline const char* name = "";
    static void call(A... a) {
        ops_that_ran().insert(name);
        op(a...);
    }
};
template <int kId, typename... A>
void note(const char* name, void (*&op)(A...)) {
    if (op == nullptr) return;
    Noted<kId, A...>::op = op;
    Noted<kId, A...>::name = name;
    op = &Noted<kId, A...>::call;
}

/// The fp32 twins, noted.
OpTable noted_twins() {
    OpTable t = ref_op_table();
    // clang-format off
#define DI_NOTE(op) note<__COUNTER__>(#op, t.op)
    DI_NOTE(rms_norm); DI_NOTE(linear); DI_NOTE(grouped_o_proj); DI_NOTE(quant_q8); DI_NOTE(quant_q4m);
    DI_NOTE(scale_bf16); DI_NOTE(rope_table); DI_NOTE(rope); DI_NOTE(mhc_mixes); DI_NOTE(mhc_collapse);
    DI_NOTE(mhc_expand); DI_NOTE(streams_mean); DI_NOTE(engram_hash); DI_NOTE(engram_lookup);
    DI_NOTE(engram_gate); DI_NOTE(embed_streams); DI_NOTE(gather_rows); DI_NOTE(window_pack);
    DI_NOTE(window_store); DI_NOTE(kv_entry_store); DI_NOTE(index_key_store); DI_NOTE(compress_pool);
    DI_NOTE(compress_tail_store); DI_NOTE(index_scores); DI_NOTE(candidate_blocks); DI_NOTE(topk_select);
    DI_NOTE(sparse_attention); DI_NOTE(router_scores); DI_NOTE(router_topk); DI_NOTE(router_weights);
    DI_NOTE(swiglu); DI_NOTE(moe_ffn); DI_NOTE(mhc_step); DI_NOTE(rms_norm_q8); DI_NOTE(sample_rows);
    DI_NOTE(draft_attention); DI_NOTE(add_rows); DI_NOTE(argmax_rows); DI_NOTE(linear_bias);
    DI_NOTE(vit_rope); DI_NOTE(vit_attention); DI_NOTE(vit_swiglu); DI_NOTE(add_bf16); DI_NOTE(gelu);
    DI_NOTE(pixel_unshuffle); DI_NOTE(place_rows);
#undef DI_NOTE
    // clang-format on
    return t;
}

class NotedBackend final : public Backend {
  public:
    std::string name() const override { return "noted"; }
    std::string description() const override { return "twins that note what ran"; }
    Device& device() override { return device_; }
    const OpTable& ops() const override { return ops_; }
    Status prepare(WeightMatrix&) override { return {}; }
    Status prepare(Tensor&) override { return {}; }

  private:
    HostDevice device_{1};
    OpTable ops_ = noted_twins();
};

/// Ops whose row law stands elsewhere, and where.
const std::set<std::string> kLawsElsewhere = {
    "vit_attention",  // keys of the whole picture: VitAttention.* of vision_ops_test.cpp
    "sample_rows",    // no twin in the table: src/sampler/sample_rows_test.cpp
    "mhc_step",       // fusions that the twins leave out: tests/gpu/rows_gpu_test.cpp
    "rms_norm_q8",
    // Moves that name their rows: KvStore.RingHoldsTheNewestRowsWhateverTheChunks,
    "window_store",
    "compress_tail_store",  // CompressPool.*, tests/laws (chunks do not matter),
    "pixel_unshuffle",      // VisionOps.UnshuffleIsChannelMajorWithZerosBeyondTheEdge,
    "place_rows",           // VisionOps.PlacedRowsReplaceEveryStream
};

TEST(NumericClass, EveryOpOfTheTableTakesPartInTheRowLaws) {
    register_backend("noted", [](const BackendOptions&) -> Result<std::unique_ptr<Backend>> {
        return std::unique_ptr<Backend>(new NotedBackend());
    });
    ops_that_ran().clear();
    OpBench bench({"noted", ""});
    ASSERT_TRUE(bench.ok());
    const auto all_ran = [] {
        for (const std::string& name : op_names()) {
            if (ops_that_ran().count(name) + kLawsElsewhere.count(name) == 0) return false;
        }
        return true;
    };
    // The first case of each op is mostly enough; the large ones take their time.
    for (size_t i = 0, more = 1; more != 0 && !(i > 0 && all_ran()); ++i) {
        more = 0;
        for (const OpCases& op : all_twin_cases()) {
            const std::vector<OpCase> cases = op.make();
            ASSERT_FALSE(cases.empty()) << op;
            if (i < cases.size()) cases[i].run(bench, {0});
            more += i + 1 < cases.size() ? 1 : 0;
        }
    }
    for (const std::string& name : op_names()) {
        EXPECT_TRUE(ops_that_ran().count(name) != 0 || kLawsElsewhere.count(name) != 0)
            << "op " << name << " has no case in DI_TWIN_LAWS: its class is a word only";
        EXPECT_FALSE(ops_that_ran().count(name) != 0 && kLawsElsewhere.count(name) != 0)
            << "op " << name << " takes part: take it off the list of exceptions";
    }
}

}  // namespace
}  // namespace deepinfer::testing
