#include "ops/attention/sparse_attention.h"

#include <map>
#include <numeric>

#include "support/twin_test.h"
#include "tensor/quant_block.h"

namespace deepinfer::testing {
namespace {

constexpr int kSequences = 64, kBlocksEach = 5;

struct Shape {
    int64_t heads, dh;
    int window, ring, per_block, top_k;
    int64_t pad = 0;
    std::string name() const {
        return "h" + std::to_string(heads) + "_d" + std::to_string(dh) + "_w" +
               std::to_string(window) + "_k" + std::to_string(top_k);
    }
};

/// Window rings and an entry pool with random contents of plausible size, the same for every batch.
// Kept per shape: making them takes longer than the op.
HostTensor random_rings(const Shape& s) {
    static std::map<std::string, HostTensor> made;
    if (made.count(s.name()) != 0) return made[s.name()];
    HostTensor ring(DType::kU8, {kSequences, s.ring, window_row_bytes(s.dh)});
    SeededRandom random("window rings");
    for (int64_t i = 0; i < ring.numel(); ++i) {
        const bool code = i % ring.dim(2) < s.dh;
        ring.set(i,
                 code ? float_to_e4m3(static_cast<float>(random.normal() * 64.0))
                      : static_cast<double>(120 + random.below(3)));
    }
    return made[s.name()] = ring;
}
HostTensor random_entries(const Shape& s) {
    static std::map<std::string, HostTensor> made;
    if (made.count(s.name()) != 0) return made[s.name()];
    HostTensor pool(
        DType::kU8, {kSequences * kBlocksEach * s.per_block, kv_entry_bytes(s.dh)}, s.pad);
    SeededRandom random("kv pool");
    for (int64_t i = 0; i < pool.numel(); ++i) {
        pool.set(i,
                 static_cast<double>(i % pool.dim(1) < s.dh / 2 ? random.below(256)
                                                                : 0x24 + random.below(12)));
    }
    return made[s.name()] = pool;
}
std::vector<int> blocks_of(int id) {
    std::vector<int> blocks;
    for (int i = 0; i < kBlocksEach; ++i)
        blocks.push_back((id * kBlocksEach + i) * 7 % (kSequences * kBlocksEach));
    return blocks;
}

/// Ascending entries below `visible`, −1 padded; every seventh row has none.
void fill_list(HostTensor& lists, int64_t row, int id, int visible) {
    SeededRandom random("attention list/" + std::to_string(id));
    std::vector<int> picks;
    for (int j = 0; j < visible; ++j) {
        if (id % 7 != 3 && static_cast<int64_t>(picks.size()) < lists.dim(1) &&
            random.below(3) != 0)
            picks.push_back(j);
    }
    for (int64_t i = 0; i < lists.dim(1); ++i) {
        lists.set(row * lists.dim(1) + i,
                  i < static_cast<int64_t>(picks.size()) ? picks[static_cast<size_t>(i)] : -1);
    }
}

HostTensor sinks(int64_t heads) {
    HostTensor sink(DType::kF32, {heads});
    for (int64_t h = 0; h < heads; ++h)
        sink.set(h, h == 1 ? 30.0 : 0.5 - static_cast<double>(h % 5));  // head 1: the sink wins
    return sink;
}

/// One row a sequence, at positions from 0 on, window rows from the ring and its own from the step.
OpCase attention_case(const Shape& s) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        const int entries = kBlocksEach * s.per_block;
        std::vector<TestSequence> seqs;
        HostTensor q(DType::kBF16, {rows, s.heads, s.dh}, s.pad), kv(DType::kBF16, {rows, s.dh}),
            out(DType::kBF16, {rows, s.heads, s.dh}, s.pad);
        HostTensor lists(DType::kI32, {rows, std::max(1, s.top_k)}),
            step(DType::kU8, {rows, window_row_bytes(s.dh)});
        for (int64_t r = 0; r < rows; ++r) {
            const int id = ids[static_cast<size_t>(r)], position = id * 23 % (entries + s.window);
            seqs.push_back({position, 1, id, id % 5 == 2 ? position / 2 : 0, blocks_of(id)});
            fill_list(lists, r, id, std::min(position + 1, entries));
        }
        TestBatch batch(seqs);
        bench.rows(q, ids, "attention q", 1.0);
        bench.rows(kv, ids, "attention kv", 1.0);
        HostTensor ring = random_rings(s), pool = random_entries(s), sink = sinks(s.heads);
        const Tensor st = bench.put(step);
        bench.ops().window_pack(bench.stream(), bench.put(kv), st);
        AttentionCache cache{
            st, bench.put(ring), s.top_k > 0 ? bench.put(pool) : Tensor(), s.per_block, s.window};
        bench.ops().sparse_attention(bench.stream(),
                                     bench.put(q),
                                     batch.put(bench),
                                     cache,
                                     s.top_k > 0 ? bench.put(lists) : Tensor(),
                                     bench.put(sink),
                                     1.0 / std::sqrt(static_cast<double>(s.dh)),
                                     bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {s.name(), {Tolerance::bf16_store()}, run};
}

DI_TWIN_LAWS(SparseAttention,
             attention_case({1, 32, 1, 4, 4, 0}),
             attention_case({4, 64, 16, 28, 8, 16, 8}),
             attention_case({8, 64, 16, 16, 8, 0}),
             attention_case({3, 96, 63, 70, 5, 2}),
             attention_case({4, 512, 64, 76, 30, 65}),
             attention_case({5, 64, 65, 65, 30, 128, 4}));

class SparseAttention : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         SparseAttention,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

/// A whole sequence in chunks, window rows stored to the ring after each: bits of all rows.
TEST_P(SparseAttention, ChunksDoNotMatter) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const Shape s{4, 64, 16, 28, 8, 12};
    constexpr int kTokens = 61;
    HostTensor pool = random_entries(s), sink = sinks(s.heads);
    for (int floor : {0, 20}) {
        const auto run = [&](int chunk) {
            HostTensor all(DType::kBF16, {kTokens, s.heads, s.dh}),
                ring(DType::kU8, {kSequences, s.ring, window_row_bytes(s.dh)});
            for (int64_t i = 0; i < ring.numel(); ++i)
                ring.set(i, 0x7F);  // NaN codes: a row read before it was written shows
            for (int start = 0; start < kTokens; start += chunk) {
                const int n = std::min(chunk, kTokens - start);
                std::vector<int> ids(static_cast<size_t>(n));
                std::iota(ids.begin(), ids.end(), start);
                HostTensor q(DType::kBF16, {n, s.heads, s.dh}), kv(DType::kBF16, {n, s.dh}),
                    out(DType::kBF16, {n, s.heads, s.dh});
                HostTensor lists(DType::kI32, {n, s.top_k}),
                    step(DType::kU8, {n, window_row_bytes(s.dh)});
                bench.rows(q, ids, "chunks q", 1.0);
                bench.rows(kv, ids, "chunks kv", 1.0);
                for (int i = 0; i < n; ++i)
                    fill_list(lists,
                              i,
                              start + i,
                              std::min((start + i + 1) / 2, kBlocksEach * s.per_block));
                TestBatch batch({{start, n, 5, floor, blocks_of(9)}});
                const BatchView view = batch.put(bench);
                const Tensor st = bench.put(step), rt = bench.put(ring);
                bench.ops().window_pack(bench.stream(), bench.put(kv), st);
                bench.ops().sparse_attention(bench.stream(),
                                             bench.put(q),
                                             view,
                                             {st, rt, bench.put(pool), s.per_block, s.window},
                                             bench.put(lists),
                                             bench.put(sink),
                                             0.125,
                                             bench.put(out));
                bench.ops().window_store(bench.stream(), st, view, rt);
                bench.finish();
                for (int64_t i = 0; i < out.numel(); ++i)
                    all.set(start * s.heads * s.dh + i, out.get(i));
            }
            return all;
        };
        const HostTensor whole = run(kTokens);
        for (int64_t i = floor * s.heads * s.dh; i < whole.numel(); ++i)
            ASSERT_FALSE(std::isnan(whole.get(i))) << whole.coordinates(i);
        for (int chunk : {1, 2, 5, 16, 17, 60})
            EXPECT_EQ(difference(run(chunk), whole, Tolerance::same_bits()), "")
                << "chunk " << chunk << " floor " << floor;
    }
}

// Rows of a part of the step (batch_rows) see the step's rows by their place in the whole step.
TEST_P(SparseAttention, PartOfAStepEqualsTheWhole) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const Shape s{2, 32, 8, 20, 4, 0};
    const std::vector<int> ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    HostTensor q(DType::kBF16, {11, s.heads, s.dh}), kv(DType::kBF16, {11, s.dh}),
        out(DType::kBF16, {11, s.heads, s.dh}), part(DType::kBF16, {11, s.heads, s.dh});
    HostTensor step(DType::kU8, {11, window_row_bytes(s.dh)}), ring = random_rings(s),
                                                               sink = sinks(s.heads);
    bench.rows(q, ids, "part q", 1.0);
    bench.rows(kv, ids, "part kv", 1.0);
    TestBatch batch({{3, 4, 1, 0, {}}, {0, 7, 2, 0, {}}});
    const BatchView view = batch.put(bench);
    const Tensor st = bench.put(step), qt = bench.put(q), pt = bench.put(part);
    bench.ops().window_pack(bench.stream(), bench.put(kv), st);
    const AttentionCache cache{st, bench.put(ring), Tensor(), 1, s.window};
    const Tensor sinkt = bench.put(sink);
    bench.ops().sparse_attention(
        bench.stream(), qt, view, cache, Tensor(), sinkt, 0.2, bench.put(out));
    for (const auto& [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 9}, {9, 11}}) {
        bench.ops().sparse_attention(bench.stream(),
                                     qt.rows(begin, end),
                                     batch_rows(view, begin, end),
                                     cache,
                                     Tensor(),
                                     sinkt,
                                     0.2,
                                     pt.rows(begin, end));
    }
    bench.finish();
    EXPECT_EQ(difference(part, out, Tolerance::same_bits()), "");
}

TEST_P(SparseAttention, SinkTakesItsShare) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    // One key, query zero: score 0. Sink 0 halves the value; a sink of 200 leaves nothing; −200
    // leaves all.
    HostTensor q(DType::kBF16, {1, 3, 32}), kv(DType::kBF16, {1, 32}),
        out(DType::kBF16, {1, 3, 32}), step(DType::kU8, {1, window_row_bytes(32)});
    HostTensor ring(DType::kU8, {1, 2, window_row_bytes(32)}),
        sink = HostTensor::from(DType::kF32, {3}, {0.0, 200.0, -200.0});
    for (int64_t i = 0; i < q.numel(); ++i) q.set(i, 0.0);
    for (int64_t i = 0; i < 32; ++i) kv.set(i, i % 2 == 0 ? 1.5 : -2.0);
    TestBatch batch({{0, 1, 0, 0, {}}});
    const Tensor st = bench.put(step);
    bench.ops().window_pack(bench.stream(), bench.put(kv), st);
    bench.ops().sparse_attention(bench.stream(),
                                 bench.put(q),
                                 batch.put(bench),
                                 {st, bench.put(ring), Tensor(), 1, 2},
                                 Tensor(),
                                 bench.put(sink),
                                 0.1,
                                 bench.put(out));
    bench.finish();
    for (int64_t i = 0; i < 32; ++i) {
        EXPECT_EQ(out.get(i), kv.get(i) / 2);
        EXPECT_NEAR(out.get(32 + i), 0.0, 1e-30);
        EXPECT_EQ(out.get(64 + i), kv.get(i));
    }
}

// Query zero and sink zero weigh n keys by 1 / (n + 1) each; every window position and every entry
// has a dimension of its own, so the output shows which keys were seen: by p, by the floor, from
// ring, step and list.
TEST_P(SparseAttention, UniformWeightsShowTheVisibleKeys) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    constexpr int kDim = 64, kWindow = 6, kRing = 9, kPerBlock = 4, kStart = 10, kRows = 5;
    for (int floor : {0, 8}) {
        HostTensor old(DType::kBF16, {kStart, kDim}), fresh(DType::kBF16, {kRows, kDim}),
            entries(DType::kBF16, {12, kDim});
        for (int64_t i = 0; i < old.numel(); ++i) old.set(i, i % kDim == i / kDim ? 1.0 : 0.0);
        for (int64_t i = 0; i < fresh.numel(); ++i)
            fresh.set(i, i % kDim == kStart + i / kDim ? 1.0 : 0.0);
        for (int64_t i = 0; i < entries.numel(); ++i)
            entries.set(i, i % kDim == 32 + i / kDim ? 6.0 : 0.0);
        HostTensor ring(DType::kU8, {2, kRing, window_row_bytes(kDim)}),
            pool(DType::kU8, {4 * kPerBlock, kv_entry_bytes(kDim)});
        HostTensor old_rows(DType::kU8, {kStart, window_row_bytes(kDim)}),
            step(DType::kU8, {kRows, window_row_bytes(kDim)});
        HostTensor slots(DType::kI64, {12}),
            lists = HostTensor::from(
                DType::kI32, {kRows, 3}, {0, 5, 11, 3, -1, -1, -1, -1, -1, 4, 7, -1, 0, 1, 2});
        const int order[] = {2, 0, 3};
        for (int64_t j = 0; j < 12; ++j)
            slots.set(j, static_cast<double>(order[j / kPerBlock] * kPerBlock + j % kPerBlock));
        HostTensor q(DType::kBF16, {kRows, 1, kDim}), out(DType::kBF16, {kRows, 1, kDim}),
            sink = HostTensor::from(DType::kF32, {1}, {0.0});
        for (int64_t i = 0; i < q.numel(); ++i) q.set(i, 0.0);
        TestBatch before({{0, kStart, 1, 0, {}}}), batch({{kStart, kRows, 1, floor, {2, 0, 3}}});
        const Tensor rt = bench.put(ring), pt = bench.put(pool), ot = bench.put(old_rows),
                     st = bench.put(step);
        bench.ops().window_pack(bench.stream(), bench.put(old), ot);
        bench.ops().window_store(bench.stream(), ot, before.put(bench), rt);
        bench.ops().window_pack(bench.stream(), bench.put(fresh), st);
        bench.ops().kv_entry_store(bench.stream(), bench.put(entries), bench.put(slots), pt);
        bench.ops().sparse_attention(bench.stream(),
                                     bench.put(q),
                                     batch.put(bench),
                                     {st, rt, pt, kPerBlock, kWindow},
                                     bench.put(lists),
                                     bench.put(sink),
                                     0.125,
                                     bench.put(out));
        bench.finish();
        for (int t = 0; t < kRows; ++t) {
            const int p = kStart + t, lowest = std::max(floor, p - kWindow + 1);
            std::vector<double> want(kDim, 0.0);
            for (int pos = lowest; pos <= p; ++pos) want[static_cast<size_t>(pos)] = 1.0;
            double seen = p - lowest + 1;
            for (int64_t i = 0; i < 3; ++i) {
                const int j = static_cast<int>(lists.get(t * 3 + i));
                if (j < 0) continue;
                want[static_cast<size_t>(32 + j)] = 6.0;
                seen += 1.0;
            }
            for (int d = 0; d < kDim; ++d) {
                EXPECT_EQ(out.get(t * kDim + d),
                          to_float(to_bf16(want[static_cast<size_t>(d)] / (seen + 1.0))))
                    << "row " << t << " dim " << d << " floor " << floor;
            }
        }
    }
}

TEST(AttentionRow, GoldenVectors) {
    auto g = read_golden(data_path("unit/attention.safetensors"));
    const HostTensor q = HostTensor::from(g["q"], DType::kBF16),
                     want = HostTensor::from(g["y_exact"], DType::kBF16);
    const std::vector<float> kv = g["kv"].floats(), sink = g["sink"].floats();
    const std::vector<int64_t> idx = g["idx"].ints();
    const int64_t rows = q.dim(0), heads = q.dim(1), dh = q.dim(2), slots = g["idx"].shape[1];
    HostTensor exact(DType::kBF16, q.dims()), fp32(DType::kBF16, q.dims());
    HostTensor queries = q;
    for (int64_t t = 0; t < rows; ++t) {
        std::vector<float> keys;
        for (int64_t i = 0; i < slots; ++i) {
            const int64_t j = idx[static_cast<size_t>(t * slots + i)];
            if (j >= 0) keys.insert(keys.end(), kv.begin() + j * dh, kv.begin() + (j + 1) * dh);
        }
        const int64_t n = static_cast<int64_t>(keys.size()) / dh;
        attention_row_ref<double>(queries.view().row<bf16>(t),
                                  heads,
                                  dh,
                                  keys.data(),
                                  n,
                                  sink.data(),
                                  g["scale"].doubles()[0],
                                  exact.view().row<bf16>(t));
        attention_row_ref<float>(queries.view().row<bf16>(t),
                                 heads,
                                 dh,
                                 keys.data(),
                                 n,
                                 sink.data(),
                                 g["scale"].doubles()[0],
                                 fp32.view().row<bf16>(t));
    }
    EXPECT_EQ(difference(exact, want, Tolerance::equal()), "");
    EXPECT_EQ(difference(fp32, want, Tolerance::bf16_store()), "");
}

}  // namespace
}  // namespace deepinfer::testing
