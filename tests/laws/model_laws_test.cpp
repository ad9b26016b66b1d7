// Laws of the forward pass on the nano checkpoint, bitwise: chunking, batching, threads, block
// placement and slots do not matter, and nothing is read that was not written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "judge/sequence.h"
#include "kvcache/cache_memory.h"
#include "support/golden_file.h"
#include "support/seeded_random.h"

namespace deepinfer {
namespace {

using testing::checkpoint_path;
using testing::SeededRandom;

constexpr int64_t kMaxTokens = 160;
constexpr int kSlots = 4;
constexpr int kBlocks = 16;

struct Sequence {
    std::vector<int32_t> ids;
    std::vector<int32_t> blocks;  // in order
    int32_t slot = 0;
    int64_t done = 0;
};

/// Logits of every row as bytes, so that equality is equality of bits.
using Rows = std::vector<std::vector<uint8_t>>;

class Lab {
  public:
    Lab(const std::string& checkpoint,
        const std::string& backend,
        const std::string& isa,
        int threads) {
        BackendOptions options;
        options.isa = isa;
        options.num_threads = threads;
        ModelLimits limits;
        limits.max_rows = kMaxTokens;
        limits.max_logit_rows = kMaxTokens;
        limits.max_seqs = kSlots;
        limits.max_positions = kMaxTokens;
        limits.block_tokens = 16;
        Result<LoadedModel> m = load_model(checkpoint_path(checkpoint), backend, options, limits);
        if (!m.ok()) {
            ADD_FAILURE() << m.status().to_string();
            std::abort();
        }
        model_ = std::move(m).value();
        fresh_cache();
    }

    void fresh_cache() {
        Device& device = model_.backend->device();
        Result<CacheMemory> c = CacheMemory::allocate(
            device, model_.model->cache_geometry(), model_.backend->ops().acc, kBlocks, kSlots);
        ASSERT_TRUE(c.ok());
        cache_ = std::make_unique<CacheMemory>(std::move(c).value());
        // NaN everywhere: a row that is read before it was written poisons its logits.
        for (const CacheView::Layer& l : cache_->view().layers) {
            for (const Tensor& t : {l.window_ring, l.kv_pool, l.key_pool, l.tail}) {
                if (t) std::memset(t.data, 0xFF, static_cast<size_t>(t.bytes()));
            }
        }
    }

    Sequence make(int64_t length,
                  int32_t slot,
                  const std::vector<int32_t>& blocks,
                  const std::string& seed) const {
        SeededRandom random(seed);
        Sequence s;
        for (int64_t i = 0; i < length; ++i)
            s.ids.push_back(static_cast<int32_t>(random.below(2030)));
        s.slot = slot;
        s.blocks = blocks;
        return s;
    }

    /// One step with `counts[i]` further tokens of each sequence; returns the logits of all rows in
    /// order.
    Rows step(std::vector<Sequence*> seqs, const std::vector<int64_t>& counts) {
        Batch batch;
        for (size_t i = 0; i < seqs.size(); ++i) {
            Sequence& s = *seqs[i];
            SequenceChunk c;
            c.slot = s.slot;
            c.start_pos = static_cast<int32_t>(s.done);
            c.num_tokens = static_cast<int32_t>(counts[i]);
            const int64_t end = s.done + counts[i], back = std::min<int64_t>(s.done, 3);
            c.block_ids.assign(s.blocks.begin(), s.blocks.begin() + (end + 15) / 16);
            c.lookback.assign(s.ids.begin() + s.done - back, s.ids.begin() + s.done);
            batch.token_ids.insert(
                batch.token_ids.end(), s.ids.begin() + s.done, s.ids.begin() + end);
            batch.seqs.push_back(c);
            s.done = end;
        }
        batch.logit_rows.resize(batch.token_ids.size());
        std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
        const Tensor logits = model_.model->forward(batch, cache_->view());
        Rows out;
        for (int64_t i = 0; i < logits.dim(0); ++i) {
            out.push_back(to_host(*model_.backend, logits.rows(i, i + 1)));
            for (double x : acc_to_host(*model_.backend, logits.rows(i, i + 1))) {
                if (!std::isfinite(x)) {
                    ADD_FAILURE() << "row " << i << " of the step holds " << x;
                    return out;
                }
            }
        }
        return out;
    }

    /// A whole sequence alone, `chunk` tokens a step.
    Rows alone(Sequence s, int64_t chunk) {
        fresh_cache();
        Rows out;
        while (s.done < static_cast<int64_t>(s.ids.size())) {
            const int64_t n = std::min<int64_t>(chunk, static_cast<int64_t>(s.ids.size()) - s.done);
            for (auto& row : step({&s}, {n})) out.push_back(std::move(row));
        }
        return out;
    }

  private:
    LoadedModel model_;
    std::unique_ptr<CacheMemory> cache_;
};

std::string first_difference(const Rows& a, const Rows& b) {
    if (a.size() != b.size()) return "row counts differ";
    for (size_t i = 0; i < a.size(); ++i) {
        if (a[i] != b[i]) return "row " + std::to_string(i) + " differs";
    }
    return "";
}

const std::vector<int32_t> kInOrder = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

struct Implementation {
    const char* backend;
    const char* isa;
};

class ModelLaws : public ::testing::TestWithParam<Implementation> {
  protected:
    void SetUp() override {
        register_ref_backends();
        register_cpu_backend();
        BackendOptions options;
        options.isa = GetParam().isa;
        Result<std::unique_ptr<Backend>> b = create_backend(GetParam().backend, options);
        if (!b.ok()) GTEST_SKIP() << b.status().message();
    }
    Lab lab(int threads = 2) const {
        return Lab("nano", GetParam().backend, GetParam().isa, threads);
    }
};

TEST_P(ModelLaws, ChunkingDoesNotMatter) {
    Lab l = lab();
    // 131 tokens: odd, several rings (16 + 12 slots) and more entries than index_topk.
    const Sequence s = l.make(131, 1, kInOrder, "ModelLaws.ChunkingDoesNotMatter");
    const Rows whole = l.alone(s, 131);
    for (int64_t chunk : {1, 7, 16, 64})
        EXPECT_EQ(first_difference(whole, l.alone(s, chunk)), "") << "chunk " << chunk;
}

TEST_P(ModelLaws, RowIgnoresItsBatch) {
    Lab l = lab();
    Sequence a = l.make(70, 0, {3, 9, 1, 12, 5}, "batch.a");
    Sequence b = l.make(33, 3, {0, 7, 2}, "batch.b");
    Sequence c = l.make(9, 1, {4}, "batch.c");
    const Rows a1 = l.alone(a, 70), b1 = l.alone(b, 33), c1 = l.alone(c, 9);
    l.fresh_cache();
    // Steps that mix prefill chunks and single tokens of three sequences in changing order.
    Rows ra, rb, rc;
    const auto take = [](Rows& to, const Rows& from, size_t begin, size_t n) {
        to.insert(to.end(),
                  from.begin() + static_cast<long>(begin),
                  from.begin() + static_cast<long>(begin + n));
    };
    Rows r = l.step({&a, &b}, {31, 5});
    take(ra, r, 0, 31), take(rb, r, 31, 5);
    r = l.step({&c, &b, &a}, {8, 27, 1});
    take(rc, r, 0, 8), take(rb, r, 8, 27), take(ra, r, 35, 1);
    r = l.step({&a, &c}, {37, 1});
    take(ra, r, 0, 37), take(rc, r, 37, 1);
    r = l.step({&b, &a}, {1, 1});
    take(rb, r, 0, 1), take(ra, r, 1, 1);
    EXPECT_EQ(first_difference(a1, ra), "") << "sequence a";
    EXPECT_EQ(first_difference(b1, rb), "") << "sequence b";
    EXPECT_EQ(first_difference(c1, rc), "") << "sequence c";
}

TEST_P(ModelLaws, BlocksAndSlotsDoNotMatter) {
    Lab l = lab();
    const Sequence s = l.make(90, 0, kInOrder, "blocks");
    Sequence moved = s;
    moved.slot = 2;
    moved.blocks = {15, 3, 8, 0, 11, 6, 1};
    EXPECT_EQ(first_difference(l.alone(s, 32), l.alone(moved, 32)), "");
}

TEST_P(ModelLaws, ThreadsDoNotMatter) {
    Lab one = lab(1), two = lab(2), three = lab(3);
    const Sequence s = one.make(75, 0, kInOrder, "threads");
    const Rows rows = one.alone(s, 40);
    EXPECT_EQ(first_difference(rows, two.alone(s, 40)), "");
    EXPECT_EQ(first_difference(rows, three.alone(s, 40)), "");
}

TEST_P(ModelLaws, TheTestsCanFail) {
    Lab l = lab();
    const Sequence s = l.make(20, 0, kInOrder, "fail");
    Sequence other = s;
    other.ids[3] ^= 1;
    EXPECT_NE(first_difference(l.alone(s, 20), l.alone(other, 20)), "");
}

INSTANTIATE_TEST_SUITE_P(Cpu,
                         ModelLaws,
                         ::testing::Values(Implementation{"cpu", ""},
                                           Implementation{"cpu", "baseline"},
                                           Implementation{"cpu", "avx2"}),
                         [](const auto& row) {
                             return std::string(row.param.isa[0] != 0 ? row.param.isa : "best");
                         });
INSTANTIATE_TEST_SUITE_P(Twins,
                         ModelLaws,
                         ::testing::Values(Implementation{"ref", ""}, Implementation{"exact", ""}),
                         [](const auto& row) { return std::string(row.param.backend); });

}  // namespace
}  // namespace deepinfer
