// Laws of drafting: what a sequence drafts follows from its committed tokens alone.
#include <gtest/gtest.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "drafts/draft_lab.h"

namespace deepinfer::testing {
namespace {

class Drafting : public ::testing::TestWithParam<std::string> {
  protected:
    std::vector<int32_t> ids(int n) const { return random_ids("drafting", n, 2000); }
};
INSTANTIATE_TEST_SUITE_P(Backends, Drafting, ::testing::Values("ref", "exact", "cpu"));

TEST_P(Drafting, SequenceIgnoresItsBatch) {
    DraftLab lab("nano", GetParam(), DraftLab::kSlots);
    const std::vector<int> lengths{1, 9, 40, 61};  // shorter and longer than the window of 16
    std::vector<DraftSequence> seqs;
    for (int s = 0; s < DraftLab::kSlots; ++s) {
        const int n = lengths[static_cast<size_t>(s)];
        lab.append(s, 0, {}, random_ids("batch " + std::to_string(s), n, 2000));
        seqs.push_back({s, n, 100 + s, 0});
    }
    std::vector<DraftSequence> reversed(seqs.rbegin(), seqs.rend());
    for (int block : {0, 1, 3}) {
        const std::vector<Drafts> all = lab.draft(seqs, block), back = lab.draft(reversed, block);
        ASSERT_EQ(all[0].tokens.size(), block == 0 ? 5u : static_cast<size_t>(block));
        for (size_t s = 0; s < seqs.size(); ++s) {
            EXPECT_TRUE(lab.draft({seqs[s]}, block)[0] == all[s])
                << "sequence " << s << " block " << block;
            EXPECT_TRUE(back[seqs.size() - 1 - s] == all[s])
                << "sequence " << s << " block " << block;
        }
        EXPECT_NE(all[0].logits, all[1].logits);
    }
    EXPECT_TRUE(lab.draft({}).empty());
}

TEST_P(Drafting, GreedyChoiceIsTheArgmaxAndFeedsTheNextPosition) {
    DraftLab lab("nano", GetParam(), 2);
    lab.append(0, 0, {}, ids(33));
    lab.append(1, 0, {}, ids(20));
    DraftBatch batch;
    batch.seqs = {{0, 33, 7, 0}, {1, 20, 8, 0}};
    const DraftResult greedy = lab.model().draft(batch, lab.cache());
    const std::vector<uint8_t> bytes = to_host(lab.backend(), greedy.tokens);
    const auto* tokens = reinterpret_cast<const int32_t*>(bytes.data());
    const std::vector<Drafts> seen = lab.draft(batch.seqs);
    for (size_t r = 0; r < 2; ++r) {
        for (size_t k = 0; k < 5; ++k) {
            const std::vector<double>& row = seen[r].logits[k];
            EXPECT_EQ(tokens[k * 2 + r], std::max_element(row.begin(), row.end()) - row.begin());
        }
    }
    // Another choice at position 0 leaves position 0 as it is and moves position 1.
    std::vector<std::vector<double>> logits;
    lab.model().draft(batch, lab.cache(), [&](int k, const Tensor& l, Tensor t) {
        logits.push_back(acc_to_host(lab.backend(), l.rows(0, 1)));
        const int32_t forced[2] = {
            k == 0 ? seen[0].tokens[0] + 1 : seen[0].tokens[static_cast<size_t>(k)], 5};
        lab.backend().device().copy_to_device(
            lab.backend().device().stream(), t.data, forced, sizeof forced);
    });
    EXPECT_EQ(logits[0], seen[0].logits[0]);
    EXPECT_NE(logits[1], seen[0].logits[1]);
    EXPECT_EQ(logits[2], seen[0].logits[2]) << "the Markov bias looks one token back";
}

TEST_P(Drafting, ChunksDoNotMatter) {
    DraftLab lab("nano", GetParam(), 1);
    const std::vector<int32_t> prompt = ids(61);
    lab.append(0, 0, {}, prompt);
    const Drafts whole = lab.draft({{0, 61, 3, 0}})[0];
    for (int chunk : {1, 7, 60}) {
        lab.append(1, 0, {}, prompt, chunk);
        EXPECT_TRUE(lab.draft({{1, 61, 3, 0}})[0] == whole) << "chunk " << chunk;
    }
}

/// Rows that were verified and taken back leave no trace in later drafts.
TEST_P(Drafting, RejectedRowsDoNotMatter) {
    DraftLab lab("nano", GetParam(), 1);
    const std::vector<int32_t> text = ids(60);
    for (int length : {3, 30, 41}) {
        lab.append(0, 0, {}, {text.begin(), text.begin() + length});
        const Drafts clean = lab.draft({{0, length, text[static_cast<size_t>(length)], 0}})[0];
        for (int rejected : {1, 6, 12}) {
            lab.append(0, length, text, random_ids("rejected", rejected, 2000));
            EXPECT_TRUE(lab.draft({{0, length, text[static_cast<size_t>(length)], 0}})[0] == clean)
                << length << " + " << rejected;
        }
        // Going on after the rejection equals never having tried.
        lab.append(0, length, text, {text.begin() + length, text.begin() + length + 4});
        lab.append(1, 0, {}, {text.begin(), text.begin() + length + 4});
        EXPECT_TRUE(lab.draft({{0, length + 4, 9, 0}})[0] == lab.draft({{1, length + 4, 9, 0}})[0]);
    }
}

/// Replay: rows below the floor are not there, whatever the ring holds.
TEST_P(Drafting, WindowFloorHidesOlderRows) {
    DraftLab lab("nano", GetParam(), 1);
    const std::vector<int32_t> text = ids(50);
    lab.append(0, 0, {}, text);
    const Drafts all = lab.draft({{0, 50, 3, 0}})[0];
    EXPECT_TRUE(lab.draft({{0, 50, 3, 34}})[0] == all) << "the window of 16 begins there";
    EXPECT_FALSE(lab.draft({{0, 50, 3, 35}})[0] == all);
}

/// Steps that leave the windows behind: the same logits, and later drafts are those of a floor.
TEST_P(Drafting, RowsThatWereLeftBehindAreBelowTheFloor) {
    DraftLab lab("nano", GetParam(), 1);
    const std::vector<int32_t> text = ids(50), other = random_ids("other", 50, 2000);
    const auto part = [&](int from, int to) {
        return std::vector<int32_t>(text.begin() + from, text.begin() + to);
    };
    lab.append(1, 0, {}, other);  // what an earlier sequence left in the ring
    for (const int floor : {42, 49, 50}) {
        EXPECT_EQ(lab.append(1, 0, {}, part(0, floor), 13, false),
                  lab.append(0, 0, {}, part(0, floor)));
        if (floor < 50) {
            EXPECT_EQ(lab.append(1, floor, text, part(floor, 50)),
                      lab.append(0, floor, text, part(floor, 50)));
        }
        EXPECT_TRUE(lab.draft({{1, 50, 3, floor}})[0] == lab.draft({{0, 50, 3, floor}})[0])
            << floor;
    }
}

TEST_P(Drafting, ForwardIsTheSameWithAndWithoutDrafting) {
    DraftLab drafting("nano", GetParam(), 1), plain("nano", GetParam(), 0);
    const std::vector<int32_t> prompt = ids(48);
    EXPECT_EQ(plain.model().cache_geometry().layers.size(), 12u);
    EXPECT_EQ(drafting.model().cache_geometry().layers.size(), 15u);
    EXPECT_EQ(drafting.append(0, 0, {}, prompt), plain.append(0, 0, {}, prompt));
    const std::vector<uint8_t> before = drafting.cache_bytes();
    drafting.draft({{0, 48, 5, 0}});
    EXPECT_EQ(drafting.cache_bytes(), before) << "a draft changes no cache";
    EXPECT_EQ(drafting.append(0, 48, prompt, {5, 6}), plain.append(0, 48, prompt, {5, 6}));
}

/// A backend whose table has lost one drafting op.
class WithoutDrafts final : public Backend {
  public:
    explicit WithoutDrafts(Backend& inner) : inner_(inner), ops_(inner.ops()) {
        ops_.draft_attention = nullptr;
    }
    std::string name() const override { return "plain"; }
    std::string description() const override { return "no drafts"; }
    Device& device() override { return inner_.device(); }
    const OpTable& ops() const override { return ops_; }
    Status prepare(WeightMatrix& w) override { return inner_.prepare(w); }
    Status prepare(Tensor& t) override { return inner_.prepare(t); }

  private:
    Backend& inner_;
    OpTable ops_;
};

TEST(DraftingLoad, BackendWithoutDraftingOpsIsRefused) {
    DraftLab lab("nano", "ref", 0);
    Result<Checkpoint> checkpoint = Checkpoint::open(DEEPINFER_BINARY_DIR "/checkpoints/nano");
    ASSERT_TRUE(checkpoint.ok());
    WithoutDrafts backend(lab.backend());
    const std::vector<int32_t> map(2048, 0);
    ModelLimits limits;
    limits.max_rows = limits.max_seqs = limits.max_logit_rows = 1;
    EXPECT_TRUE(DeepseekV41::load(checkpoint.value(), backend, map, limits).ok());
    limits.max_draft_seqs = 1;
    const auto refused = DeepseekV41::load(checkpoint.value(), backend, map, limits);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
    EXPECT_NE(refused.status().message().find("plain"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::testing
