// Laws of prefill truncation: `exact` has the bits of `off` and `compact` those of its one-chunk
// run, for every length around the borders and every chunking, in the logits of the prompt's end
// and of the tokens after it, and in the drafts. Rings start as NaN, so a window that reaches below
// its floor poisons what follows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "judge/sequence.h"
#include "kvcache/cache_memory.h"
#include "support/golden_file.h"
#include "support/seeded_random.h"

namespace deepinfer {
namespace {

#ifdef DEEPINFER_FULL_LAWS
#define SUITE TruncationLawsFull
#else
#define SUITE TruncationLaws
#endif

using testing::checkpoint_path;
using testing::SeededRandom;

constexpr int kBlockTokens = 16;
using Bits = std::vector<std::vector<uint8_t>>;

class Lab {
  public:
    Lab(const std::string& checkpoint,
        const std::string& backend,
        TruncationMode mode,
        int64_t keep)
        : mode_(mode) {
        register_ref_backends();
        register_cpu_backend();
        BackendOptions options;
        options.num_threads = 2;
        ModelLimits limits;
        limits.max_rows = 512;
        limits.max_logit_rows = 64;
        limits.max_seqs = 4;
        limits.max_positions = 512;
        limits.block_tokens = kBlockTokens;
        limits.max_draft_seqs = 1;
        limits.truncation.mode = mode;
        limits.truncation.keep = keep;
        Result<LoadedModel> m = load_model(checkpoint_path(checkpoint), backend, options, limits);
        DI_CHECK_MSG(m.ok(), m.status().message());
        model_ = std::move(m).value();
        Result<CacheMemory> c = CacheMemory::allocate(model_.backend->device(),
                                                      model_.model->cache_geometry(),
                                                      model_.backend->ops().acc,
                                                      64,
                                                      4);
        DI_CHECK_MSG(c.ok(), c.status().message());
        cache_ = std::make_unique<CacheMemory>(std::move(c).value());
    }

    const PrefillTruncation& truncation() const { return model_.model->limits().truncation; }

    /// Logits of the prompt's last row and of `after` tokens behind it, and the drafts at the end.
    Bits run(const std::vector<int32_t>& prompt, int64_t chunk, const std::vector<int32_t>& after) {
        poison();
        Bits out;
        std::vector<int32_t> ids = prompt;
        ids.insert(ids.end(), after.begin(), after.end());
        const auto length = static_cast<int64_t>(prompt.size()),
                   total = static_cast<int64_t>(ids.size());
        for (int64_t done = 0; done < total;) {
            const int64_t n = done < length ? std::min(chunk, length - done) : 1;
            const bool wanted = done + n >= length;
            Batch batch;
            add(batch, ids, done, n, length, 1);
            if (wanted) batch.logit_rows = {static_cast<int32_t>(n - 1)};
            const Tensor logits = model_.model->forward(batch, cache_->view());
            EXPECT_EQ(logits.dim(0), wanted ? 1 : 0);
            if (wanted) out.push_back(finite_bits(logits));
            done += n;
        }
        DraftBatch drafts;
        drafts.seqs.push_back({1, static_cast<int32_t>(total), 5, 0});
        const DraftResult d = model_.model->draft(drafts, cache_->view());
        out.push_back(finite_bits(d.confidence));
        out.push_back(to_host(*model_.backend, d.tokens));
        return out;
    }

    /// One step of `rows` rows of a prompt beside a decode row of another sequence: the decode
    /// row's logits.
    std::vector<uint8_t> decode_beside(const std::vector<int32_t>& other,
                                       const std::vector<int32_t>& prompt,
                                       int64_t rows) {
        poison();
        const auto n = static_cast<int64_t>(other.size());
        Batch first;
        add(first, other, 0, n - 1, n - 1, 0);
        model_.model->forward(first, cache_->view());
        Batch batch;
        if (rows > 0) add(batch, prompt, 0, rows, static_cast<int64_t>(prompt.size()), 1);
        add(batch, other, n - 1, 1, n - 1, 0);
        batch.logit_rows = {static_cast<int32_t>(rows)};
        return finite_bits(model_.model->forward(batch, cache_->view()));
    }

  private:
    void add(Batch& batch,
             const std::vector<int32_t>& ids,
             int64_t start,
             int64_t rows,
             int64_t prompt_tokens,
             int32_t slot) const {
        SequenceChunk c;
        c.slot = slot;
        c.start_pos = static_cast<int32_t>(start);
        c.num_tokens = static_cast<int32_t>(rows);
        if (mode_ != TruncationMode::kOff) c.prompt_tokens = static_cast<int32_t>(prompt_tokens);
        for (int32_t b = 0; b < 32; ++b) c.block_ids.push_back(slot * 32 + b);
        const int64_t back = std::min<int64_t>(start, 3);
        c.lookback.assign(ids.begin() + start - back, ids.begin() + start);
        batch.token_ids.insert(
            batch.token_ids.end(), ids.begin() + start, ids.begin() + start + rows);
        batch.seqs.push_back(c);
    }

    std::vector<uint8_t> finite_bits(const Tensor& t) {
        for (const double v : acc_to_host(*model_.backend, t)) {
            if (!std::isfinite(v)) {
                ADD_FAILURE() << "a value is " << v
                              << ": something was read that was never written";
                break;
            }
        }
        return to_host(*model_.backend, t);
    }

    void poison() {
        for (const CacheView::Layer& l : cache_->view().layers) {
            for (const Tensor& t : {l.window_ring, l.kv_pool, l.key_pool, l.tail}) {
                if (t) std::memset(t.data, 0xFF, static_cast<size_t>(t.bytes()));
            }
        }
    }

    TruncationMode mode_;
    LoadedModel model_;
    std::unique_ptr<CacheMemory> cache_;
};

std::vector<int32_t> some_ids(const std::string& seed, int64_t n) {
    SeededRandom random(seed);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random.below(2030)));
    return ids;
}

struct Geometry {
    const char* checkpoint;
    const char* backend;
    std::vector<int64_t> lengths;  ///< around every border of its trapezoid and of keep
    std::vector<int64_t> chunks;
    int64_t keep;
};

std::vector<Geometry> geometries() {
    // nano: W 16, layers 7–11 above mid 6: borders 16, 31, 46, 61, 76, keep 28.
    // nano512: W 128, layers 5–7 above mid 4: borders 128, 255, 382, keep 140.
#ifdef DEEPINFER_FULL_LAWS
    return {{"nano",
             "cpu",
             {1, 2, 15, 16, 17, 27, 28, 29, 31, 32, 61, 75, 76, 77, 92, 140},
             {1, 7, 16, 64, 512},
             28},
            {"nano", "ref", {29, 77}, {9, 512}, 28},
            {"nano", "exact", {29, 77}, {9, 512}, 28},
            {"nano512", "cpu", {127, 128, 129, 141, 255, 256, 382, 383, 400}, {50, 512}, 140},
            {"demo", "cpu", {129, 141, 383, 400}, {64, 512}, 140}};
#else
    return {{"nano", "cpu", {1, 16, 17, 29, 76, 77, 92}, {1, 16, 64}, 28}};
#endif
}

TEST(SUITE, ExactHasTheBitsOfOff) {
    for (const Geometry& g : geometries()) {
        Lab off(g.checkpoint, g.backend, TruncationMode::kOff, 0),
            exact(g.checkpoint, g.backend, TruncationMode::kExact, 0);
        for (const int64_t n : g.lengths) {
            const std::vector<int32_t> prompt = some_ids("exact" + std::to_string(n), n),
                                       after = some_ids("after", 18);
            const Bits want = off.run(prompt, 512, after);
            for (const int64_t chunk : g.chunks) {
                EXPECT_EQ(exact.run(prompt, chunk, after), want)
                    << g.checkpoint << " " << g.backend << ", prompt " << n << ", chunk " << chunk;
            }
        }
    }
}

TEST(SUITE, CompactIgnoresTheChunks) {
    for (const Geometry& g : geometries()) {
        Lab off(g.checkpoint, g.backend, TruncationMode::kOff, 0),
            compact(g.checkpoint, g.backend, TruncationMode::kCompact, g.keep);
        bool differs = false;
        for (const int64_t n : g.lengths) {
            const std::vector<int32_t> prompt = some_ids("compact" + std::to_string(n), n),
                                       after = some_ids("after", 18);
            const Bits want = compact.run(prompt, 512, after), full = off.run(prompt, 512, after);
            if (n <= g.keep) {
                EXPECT_EQ(want, full) << "nothing is cut of a prompt of " << n;
            }
            differs = differs || want != full;
            for (const int64_t chunk : g.chunks) {
                EXPECT_EQ(compact.run(prompt, chunk, after), want)
                    << g.checkpoint << " " << g.backend << ", prompt " << n << ", chunk " << chunk;
            }
        }
        EXPECT_TRUE(differs) << "an approximation that never shows: the test proves nothing";
    }
}

TEST(SUITE, ANeighbourThatIsCutDoesNotShow) {
    for (const TruncationMode mode : {TruncationMode::kCompact, TruncationMode::kExact}) {
        Lab lab("nano", "cpu", mode, 28);
        const std::vector<int32_t> other = some_ids("other", 45), prompt = some_ids("cut", 200);
        const std::vector<uint8_t> alone = lab.decode_beside(other, prompt, 0);
        // All of its rows skip the upper layers, some do, none does.
        for (const int64_t rows : {1, 90, 124, 125, 173, 199}) {
            EXPECT_EQ(lab.decode_beside(other, prompt, rows), alone) << rows << " rows beside";
        }
    }
}

TEST(SUITE, RowsByLevel) {
    PrefillTruncation t;
    t.window = 128;
    t.num_layers = 40;
    t.mid = 20;
    t.keep = 140;
    t.mode = TruncationMode::kExact;
    EXPECT_EQ(t.num_levels(), 20);
    EXPECT_EQ(t.decoder_rows(100000), 2414);
    EXPECT_EQ(t.first_row(t.level_into(39), 100000), 100000 - 128);
    EXPECT_EQ(t.first_row(t.level_into(40), 100000), 99999);
    EXPECT_EQ(t.level_into(20), 0);
    EXPECT_EQ(t.decoder_rows(100), 100);
    t.mode = TruncationMode::kCompact;
    EXPECT_EQ(t.num_levels(), 2);
    EXPECT_EQ(t.decoder_rows(100000), 140);
    t.mid = 39;  // no layer above: the head alone
    EXPECT_EQ(t.num_levels(), 1);
    EXPECT_EQ(t.first_row(1, 50), 49);
    t.mode = TruncationMode::kOff;
    EXPECT_EQ(t.num_levels(), 0);
    EXPECT_EQ(t.decoder_rows(100000), 100000);
}

}  // namespace
}  // namespace deepinfer
