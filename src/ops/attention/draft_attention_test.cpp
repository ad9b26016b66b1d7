#include "ops/attention/draft_attention.h"

#include <map>

#include "support/twin_test.h"
#include "tensor/quant_block.h"

namespace deepinfer::testing {
namespace {

constexpr int kSlots = 64;

struct Shape {
    int64_t heads, dh;
    int window, ring, block;
    std::string name() const {
        return "h" + std::to_string(heads) + "_d" + std::to_string(dh) + "_w" +
               std::to_string(window) + "_b" + std::to_string(block);
    }
};

/// Rings with random contents of plausible size, the same for every batch.
HostTensor random_rings(const Shape& s) {
    static std::map<std::string, HostTensor> made;
    if (made.count(s.name()) != 0) return made[s.name()];
    HostTensor ring(DType::kU8, {kSlots, s.ring, window_row_bytes(s.dh)});
    SeededRandom random("draft rings");
    for (int64_t i = 0; i < ring.numel(); ++i) {
        const bool code = i % ring.dim(2) < s.dh;
        ring.set(i,
                 code ? float_to_e4m3(static_cast<float>(random.normal() * 64.0))
                      : static_cast<double>(120 + random.below(3)));
    }
    return made[s.name()] = ring;
}

HostTensor sinks(int64_t heads) {
    HostTensor sink(DType::kF32, {heads});
    for (int64_t h = 0; h < heads; ++h)
        sink.set(h, h == 1 ? 30.0 : 0.5 - static_cast<double>(h % 5));  // head 1: the sink wins
    return sink;
}

/// The block of sequence `id`, `rows` long: around the ring, at the start, above a floor.
TestSequence block_of(const Shape& s, int id, int rows) {
    const int position = id % 11 == 4 ? 0 : id * 13 % (3 * s.ring);
    const int floor = id % 5 == 2 ? position - position / 4 : id % 7 == 6 ? position + 2 : 0;
    return {position, rows, id, floor, {}};
}

/// A row of the laws is one whole block: rows of a block do depend on each other.
OpCase draft_case(const Shape& s) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t blocks = static_cast<int64_t>(ids.size()), rows = blocks * s.block;
        HostTensor q(DType::kBF16, {blocks, s.block * s.heads * s.dh}),
            kv(DType::kBF16, {blocks, s.block * s.dh}),
            out(DType::kBF16, {blocks, s.block * s.heads * s.dh}),
            step(DType::kU8, {rows, window_row_bytes(s.dh)});
        std::vector<TestSequence> seqs;
        for (int id : ids) seqs.push_back(block_of(s, id, s.block));
        bench.rows(q, ids, "draft q", 1.0);
        bench.rows(kv, ids, "draft kv", 1.0);
        TestBatch batch(seqs);
        HostTensor ring = random_rings(s), sink = sinks(s.heads);
        const Tensor st = bench.put(step);
        bench.ops().window_pack(bench.stream(), bench.put(kv).reshaped({rows, s.dh}), st);
        bench.ops().draft_attention(bench.stream(),
                                    bench.put(q).reshaped({rows, s.heads, s.dh}),
                                    batch.put(bench),
                                    {st, bench.put(ring), Tensor(), 0, s.window},
                                    bench.put(sink),
                                    1.0 / std::sqrt(static_cast<double>(s.dh)),
                                    bench.put(out).reshaped({rows, s.heads, s.dh}));
        bench.finish();
        return outputs(std::move(out));
    };
    return {s.name(), {Tolerance::bf16_store()}, run};
}

DI_TWIN_LAWS(DraftAttention,
             draft_case({1, 32, 1, 4, 1}),
             draft_case({4, 64, 16, 28, 5}),
             draft_case({3, 96, 63, 70, 2}),
             draft_case({4, 512, 61, 76, 5}),
             draft_case({2, 64, 65, 80, 7}));

class DraftAttention : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         DraftAttention,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

/// out [rows, H, dh] of blocks with the given ids and lengths.
HostTensor run_blocks(OpBench& bench,
                      const Shape& s,
                      const std::vector<std::pair<int, int>>& blocks) {
    std::vector<TestSequence> seqs;
    std::vector<int> row_ids;
    for (const auto& [id, length] : blocks) {
        seqs.push_back(block_of(s, id, length));
        for (int i = 0; i < length; ++i) row_ids.push_back(id * 100 + i);
    }
    const int64_t rows = static_cast<int64_t>(row_ids.size());
    HostTensor q(DType::kBF16, {rows, s.heads, s.dh}), kv(DType::kBF16, {rows, s.dh}),
        out(DType::kBF16, {rows, s.heads, s.dh}), step(DType::kU8, {rows, window_row_bytes(s.dh)});
    bench.rows(q, row_ids, "ragged q", 1.0);
    bench.rows(kv, row_ids, "ragged kv", 1.0);
    TestBatch batch(seqs);
    HostTensor ring = random_rings(s), sink = sinks(s.heads);
    const Tensor st = bench.put(step);
    bench.ops().window_pack(bench.stream(), bench.put(kv), st);
    bench.ops().draft_attention(bench.stream(),
                                bench.put(q),
                                batch.put(bench),
                                {st, bench.put(ring), Tensor(), 0, s.window},
                                bench.put(sink),
                                0.125,
                                bench.put(out));
    bench.finish();
    return out;
}

TEST_P(DraftAttention, BlocksOfManyLengthsEqualThemselvesAlone) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const Shape s{4, 64, 16, 28, 0};
    const std::vector<std::pair<int, int>> blocks{{3, 5}, {4, 1}, {12, 2}, {6, 64}, {30, 3}};
    const HostTensor all = run_blocks(bench, s, blocks);
    int64_t row = 0;
    for (const auto& block : blocks) {
        const HostTensor alone = run_blocks(bench, s, {block});
        for (int64_t i = 0; i < block.second; ++i, ++row)
            ASSERT_EQ(alone.row_bytes(i), all.row_bytes(row))
                << "block " << block.first << " row " << i;
    }
}

/// A block of one row under a window of W is a step of one row under a window of W + 1.
TEST_P(DraftAttention, BlockOfOneIsSparseAttention) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const Shape s{4, 64, 16, 28, 1};
    const std::vector<int> ids{1, 2, 3, 4, 5, 7, 12, 40};
    std::vector<TestSequence> seqs;
    for (int id : ids) {
        seqs.push_back(block_of(s, id, 1));
        seqs.back().window_floor = std::min(seqs.back().window_floor, seqs.back().start);
    }
    HostTensor q(DType::kBF16, {8, s.heads, s.dh}), kv(DType::kBF16, {8, s.dh}),
        draft(DType::kBF16, {8, s.heads, s.dh}), sparse(DType::kBF16, {8, s.heads, s.dh});
    HostTensor step(DType::kU8, {8, window_row_bytes(s.dh)}), ring = random_rings(s),
                                                              sink = sinks(s.heads);
    bench.rows(q, ids, "one q", 1.0);
    bench.rows(kv, ids, "one kv", 1.0);
    TestBatch batch(seqs);
    const BatchView view = batch.put(bench);
    const Tensor st = bench.put(step), qt = bench.put(q), sinkt = bench.put(sink);
    bench.ops().window_pack(bench.stream(), bench.put(kv), st);
    AttentionCache cache{st, bench.put(ring), Tensor(), 1, s.window};
    bench.ops().draft_attention(bench.stream(), qt, view, cache, sinkt, 0.125, bench.put(draft));
    cache.window = s.window + 1;
    bench.ops().sparse_attention(
        bench.stream(), qt, view, cache, Tensor(), sinkt, 0.125, bench.put(sparse));
    bench.finish();
    EXPECT_EQ(difference(draft, sparse, Tolerance::same_bits()), "");
}

// Query zero and sink zero weigh n keys by 1 / (n + 1) each; every position has a dimension of its
// own, so the output shows which keys were seen: the window does not slide, the block sees itself
// both ways.
TEST_P(DraftAttention, UniformWeightsShowTheVisibleKeys) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    constexpr int kDim = 64, kWindow = 6, kRing = 20, kStart = 17, kBlock = 5;
    for (const auto& [floor, stale] :
         std::vector<std::pair<int, int>>{{0, 0}, {14, 0}, {17, 0}, {0, 9}}) {
        // `stale` rows beyond the committed end were written and taken back; they must not show.
        const int written = kStart + stale;
        HostTensor old(DType::kBF16, {written, kDim}), fresh(DType::kBF16, {kBlock, kDim});
        for (int64_t i = 0; i < old.numel(); ++i)
            old.set(i, i % kDim == i / kDim + (i / kDim >= kStart ? 20 : 0) ? 1.0 : 0.0);
        for (int64_t i = 0; i < fresh.numel(); ++i)
            fresh.set(i, i % kDim == kStart + i / kDim ? 1.0 : 0.0);
        HostTensor ring(DType::kU8, {2, kRing, window_row_bytes(kDim)}),
            old_rows(DType::kU8, {written, window_row_bytes(kDim)}),
            step(DType::kU8, {kBlock, window_row_bytes(kDim)});
        for (int64_t i = 0; i < ring.numel(); ++i) ring.set(i, 0x7F);  // NaN codes
        HostTensor q(DType::kBF16, {kBlock, 1, kDim}), out(DType::kBF16, {kBlock, 1, kDim}),
            sink = HostTensor::from(DType::kF32, {1}, {0.0});
        for (int64_t i = 0; i < q.numel(); ++i) q.set(i, 0.0);
        TestBatch before({{0, written, 1, 0, {}}}), batch({{kStart, kBlock, 1, floor, {}}});
        const Tensor rt = bench.put(ring), ot = bench.put(old_rows), st = bench.put(step);
        bench.ops().window_pack(bench.stream(), bench.put(old), ot);
        bench.ops().window_store(bench.stream(), ot, before.put(bench), rt);
        bench.ops().window_pack(bench.stream(), bench.put(fresh), st);
        bench.ops().draft_attention(bench.stream(),
                                    bench.put(q),
                                    batch.put(bench),
                                    {st, rt, Tensor(), 1, kWindow},
                                    bench.put(sink),
                                    0.125,
                                    bench.put(out));
        bench.finish();
        const int lowest = std::max(floor, kStart - kWindow), seen = kStart + kBlock - lowest;
        for (int t = 0; t < kBlock; ++t) {
            for (int d = 0; d < kDim; ++d) {
                const double want = d >= lowest && d < kStart + kBlock ? 1.0 / (seen + 1.0) : 0.0;
                EXPECT_EQ(out.get(t * kDim + d), to_float(to_bf16(want)))
                    << "row " << t << " dim " << d << " floor " << floor << " stale " << stale;
            }
        }
    }
}

}  // namespace
}  // namespace deepinfer::testing
