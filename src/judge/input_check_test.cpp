// Judge files are outside input: what would index or size something is refused by name.
#include "judge/input_check.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

/// Two ratio-2 layers and a ratio-1 candidate source: enough for every rule.
ModelConfig config() {
    ModelConfig c;
    c.num_hidden_layers = 5;
    c.compress_ratios = {0, 0, 2, 2, 1};
    c.kv_source_layer_ids = {2, 4};
    c.index_source_layer_ids = {2, 4};
    c.candidate_source_layer_id = 4;
    c.candidate_block_size = 4;
    c.candidate_topk_blocks = 2;
    c.index_topk = 3;
    c.n_routed_experts = 8;
    c.num_experts_per_tok = 2;
    return c;
}

const PhaseShape kPrompt{false, 4, 0, 4};

Status given(const std::string& name, NamedTensor t) {
    return check_given({{name, std::move(t)}}, config(), kPrompt, "file");
}
Status forced(const std::string& name, NamedTensor t) {
    return check_choices({{name, std::move(t)}}, config(), kPrompt);
}

TEST(InputCheck, EntriesAscendInsideTheCache) {
    EXPECT_TRUE(given("L2.entries", i32_tensor({2}, {0, 1})).ok());
    EXPECT_TRUE(given("L4.entries", i32_tensor({2}, {0, 3})).ok());
    EXPECT_FALSE(given("L2.entries", i32_tensor({1}, {2})).ok());
    EXPECT_FALSE(given("L2.entries", i32_tensor({1}, {-1})).ok());
    EXPECT_FALSE(given("L2.entries", i32_tensor({1}, {2147483647})).ok());
    EXPECT_FALSE(given("L2.entries", i32_tensor({2}, {1, 0})).ok());
    EXPECT_FALSE(given("L2.entries", i32_tensor({1, 1}, {0})).ok());
    EXPECT_FALSE(given("L2.entries", f32_tensor({1}, {0})).ok());
    EXPECT_FALSE(given("L3.entries", i32_tensor({1}, {0})).ok()) << "layer 3 owns none";
    EXPECT_FALSE(given("L99.entries", i32_tensor({1}, {0})).ok());
}

TEST(InputCheck, ForcedExpertsAreDistinctAscendingAndInRange) {
    EXPECT_TRUE(forced("L0.expert_ids", i32_tensor({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})).ok());
    EXPECT_FALSE(forced("L0.expert_ids", i32_tensor({4, 2}, {0, 1, 2, 2, 4, 5, 6, 7})).ok());
    EXPECT_FALSE(forced("L0.expert_ids", i32_tensor({4, 2}, {0, 1, 2, 3, 4, 5, 6, 8})).ok());
    EXPECT_FALSE(forced("L0.expert_ids", i32_tensor({3, 2}, {0, 1, 2, 3, 4, 5})).ok());
    EXPECT_FALSE(forced("L9.expert_ids", i32_tensor({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})).ok());
}

TEST(InputCheck, ForcedMasksPickOnlyWhatTheRowSees) {
    // Ratio 1: row p sees p + 1 entries; width ceil(4 / 8) = 1.
    EXPECT_TRUE(forced("L4.topk_mask", u8_tensor({4, 1}, {1, 3, 7, 7})).ok());
    EXPECT_FALSE(forced("L4.topk_mask", u8_tensor({4, 1}, {2, 3, 7, 7})).ok()) << "a future entry";
    EXPECT_FALSE(forced("L4.topk_mask", u8_tensor({4, 1}, {1, 3, 7, 15})).ok())
        << "more than index_topk";
    EXPECT_FALSE(forced("L4.topk_mask", u8_tensor({4, 2}, {1, 0, 3, 0, 7, 0, 7, 128})).ok());
    EXPECT_FALSE(forced("L4.topk_mask", u8_tensor({4}, {1, 3, 7, 7})).ok());
    EXPECT_FALSE(forced("L4.topk_mask", u8_tensor({}, {1})).ok());
    EXPECT_FALSE(forced("L3.topk_mask", u8_tensor({4, 1}, {1, 1, 1, 1})).ok());
    // One block of four entries is visible from the first row on.
    EXPECT_TRUE(forced("L4.candidate_mask", u8_tensor({4, 1}, {1, 1, 1, 1})).ok());
    EXPECT_FALSE(forced("L4.candidate_mask", u8_tensor({4, 1}, {1, 1, 1, 2})).ok());
    EXPECT_FALSE(forced("L2.candidate_mask", u8_tensor({4, 1}, {0, 1, 1, 1})).ok());
}

}  // namespace
}  // namespace deepinfer
