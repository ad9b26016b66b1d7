#include "ops/compress/indexer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/case_file.h"
#include "support/twin_test.h"
#include "tensor/quant_block.h"

namespace deepinfer::testing {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();
constexpr int kPoolBlocks = 64 * 6;  // six blocks for each of 64 sequences

/// Random index keys: any nibbles, scales around 1/2.
HostTensor random_key_pool(int entries_per_block, int64_t di, int64_t pad) {
    HostTensor pool(DType::kU8, {kPoolBlocks * entries_per_block, index_key_bytes(di)}, pad);
    SeededRandom random("index key pool");
    for (int64_t i = 0; i < pool.numel(); ++i) {
        pool.set(i,
                 static_cast<double>(i % pool.dim(1) < di / 2 ? random.below(256)
                                                              : 124 + random.below(4)));
    }
    return pool;
}

std::vector<int> blocks_of(int id) {
    std::vector<int> blocks;
    for (int i = 0; i < 6; ++i)
        blocks.push_back((id * 6 + i) * 5 % kPoolBlocks);  // 5 and 384 share no factor
    return blocks;
}

/// One row a sequence; row 0 sits at position 0.
OpCase scores_case(int64_t heads,
                   int64_t di,
                   int ratio,
                   int entries_per_block,
                   bool with_candidates,
                   int64_t pad = 0) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        const int n = 6 * entries_per_block, block_size = 4, kept = 3;
        std::vector<TestSequence> seqs;
        HostTensor candidates(DType::kI32, {rows, kept});
        for (int64_t r = 0; r < rows; ++r) {
            const int id = ids[static_cast<size_t>(r)], position = id * 29 % (n * ratio);
            seqs.push_back({position, 1, id, 0, blocks_of(id)});
            SeededRandom random("candidates/" + std::to_string(id));
            std::vector<int> blocks;
            for (int b = 0; b * block_size * ratio <= position; ++b) {
                if (random.below(2) == 0 && static_cast<int>(blocks.size()) < kept)
                    blocks.push_back(b);
            }
            for (int c = 0; c < kept; ++c)
                candidates.set(
                    r * kept + c,
                    c < static_cast<int>(blocks.size()) ? blocks[static_cast<size_t>(c)] : -1);
        }
        TestBatch batch(seqs);
        HostTensor q(DType::kBF16, {rows, heads, di}), hw(DType::kBF16, {rows, heads}),
            scores(bench.acc(), {rows, n}, pad);
        HostTensor pool = random_key_pool(entries_per_block, di, pad);
        bench.rows(q, ids, "indexer q", 1.0);
        bench.rows(hw, ids, "indexer hw", 0.1);
        const Tensor qt = bench.put(q), flat = qt.reshaped({rows, heads * di});
        bench.ops().quant_q4m(bench.stream(), flat, flat);
        const IndexCache cache{bench.put(pool), entries_per_block, ratio};
        bench.ops().index_scores(bench.stream(),
                                 qt,
                                 bench.put(hw),
                                 batch.put(bench),
                                 cache,
                                 with_candidates ? bench.put(candidates) : Tensor(),
                                 block_size,
                                 bench.put(scores));
        bench.finish();
        return outputs(std::move(scores));
    };
    return {"scores_h" + std::to_string(heads) + "_d" + std::to_string(di) + "_r" +
                std::to_string(ratio) + (with_candidates ? "_candidates" : ""),
            {Tolerance::f32()},
            run};
}

/// Scores on a coarse grid (ties everywhere), some −inf.
void grid_scores(HostTensor& scores, const std::vector<int>& ids, int poisoned) {
    const int64_t n = scores.dim(1);
    for (size_t r = 0; r < ids.size(); ++r) {
        SeededRandom random("grid scores/" + std::to_string(ids[r]));
        for (int64_t j = 0; j < n; ++j) {
            const bool gone = random.below(4) == 0;
            scores.set(static_cast<int64_t>(r) * n + j,
                       gone ? kMinusInf : static_cast<double>(random.below(40) - 20) / 8.0);
        }
        if (ids[r] == poisoned && n > 0)
            scores.set(static_cast<int64_t>(r) * n, std::numeric_limits<double>::quiet_NaN());
    }
}

OpCase topk_case(int64_t n, int64_t k, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor scores(bench.acc(), {rows, n}, pad), lists(DType::kI32, {rows, k}, pad);
        grid_scores(scores, ids, bench.poisoned_row);
        bench.ops().topk_select(bench.stream(), bench.put(scores), bench.put(lists));
        bench.finish();
        return outputs(std::move(lists));
    };
    return {"topk_n" + std::to_string(n) + "_k" + std::to_string(k), {Tolerance::equal()}, run};
}

OpCase blocks_case(int64_t n, int block_size, int64_t kept, int ratio) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor scores(bench.acc(), {rows, n}), positions(DType::kI32, {rows}),
            blocks(DType::kI32, {rows, kept}, 2);
        grid_scores(scores, ids, bench.poisoned_row);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t position = ids[static_cast<size_t>(r)] * 31 % (n * ratio);
            positions.set(r, static_cast<double>(position));
            for (int64_t j = (position + 1) / ratio; j < n; ++j) scores.set(r * n + j, kMinusInf);
        }
        bench.ops().candidate_blocks(bench.stream(),
                                     bench.put(scores),
                                     bench.put(positions),
                                     ratio,
                                     block_size,
                                     bench.put(blocks));
        bench.finish();
        return outputs(std::move(blocks));
    };
    return {"blocks_n" + std::to_string(n) + "_b" + std::to_string(block_size) + "_c" +
                std::to_string(kept) + "_r" + std::to_string(ratio),
            {Tolerance::equal()},
            run};
}

DI_TWIN_LAWS(Indexer,
             scores_case(4, 32, 1, 8, false),
             scores_case(4, 32, 2, 8, true, 3),
             scores_case(1, 64, 4, 3, false, 1),
             scores_case(8, 128, 1, 11, true),
             scores_case(32, 128, 2, 7, false),
             topk_case(1, 1, 0),
             topk_case(0, 4, 0),
             topk_case(17, 16, 3),
             topk_case(300, 16, 0),
             topk_case(5, 8, 0),
             topk_case(1025, 512, 1),
             blocks_case(40, 4, 3, 1),
             blocks_case(41, 8, 2, 2),
             blocks_case(300, 4, 8, 1),
             blocks_case(9, 4, 16, 1));

class Indexer : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Indexer,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

/// Positions of one row's list without the padding; fails unless the padding is at the end.
std::vector<int> list_of(const HostTensor& lists, int64_t row) {
    std::vector<int> out;
    bool ended = false;
    for (int64_t i = 0; i < lists.dim(1); ++i) {
        const int v = static_cast<int>(lists.get(row * lists.dim(1) + i));
        if (v < 0)
            ended = true;
        else {
            EXPECT_FALSE(ended) << "an entry after the padding";
            EXPECT_TRUE(out.empty() || out.back() < v) << "not ascending";
            out.push_back(v);
        }
    }
    return out;
}

std::vector<int> mask_of(const GoldenTensor& g, int64_t row) {
    std::vector<int> out;
    for (int64_t j = 0; j < g.shape[1]; ++j) {
        if (g.bytes[static_cast<size_t>(row * g.shape[1] + j)] != 0)
            out.push_back(static_cast<int>(j));
    }
    return out;
}

TEST_P(Indexer, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/indexer.safetensors"));
    const std::vector<double> golden_score = g["score"].doubles();
    for (int ratio : {1, 2}) {
        const std::string r = "r" + std::to_string(ratio) + ".";
        HostTensor q = HostTensor::from(g["q"], DType::kBF16),
                   hw = HostTensor::from(g["head_weight"], DType::kBF16),
                   k = HostTensor::from(g["k"], DType::kBF16);
        const int64_t rows = q.dim(0), di = q.dim(2), n = rows / ratio;
        constexpr int kBlockSize = 4, kKept = 3, kTop = 8, kPerBlock = 7;
        TestBatch batch({{0, static_cast<int>(rows), 0, 0, {3, 0, 5, 1, 4, 2}}});
        HostTensor slots(DType::kI64, {rows}),
            pool(DType::kU8, {6 * kPerBlock, index_key_bytes(di)});
        const int order[] = {3, 0, 5, 1, 4, 2};
        for (int64_t j = 0; j < rows; ++j)
            slots.set(j, static_cast<double>(order[j / kPerBlock] * kPerBlock + j % kPerBlock));
        HostTensor scores(bench.acc(), {rows, n}), filtered(bench.acc(), {rows, n}),
            blocks(DType::kI32, {rows, kKept}), top(DType::kI32, {rows, kTop}),
            top_filtered(DType::kI32, {rows, kTop});
        const BatchView view = batch.put(bench);
        const Tensor pt = bench.put(pool), qt = bench.put(q), ht = bench.put(hw),
                     st = bench.put(scores), bt = bench.put(blocks), ft = bench.put(filtered);
        bench.ops().index_key_store(bench.stream(), bench.put(k), bench.put(slots), pt);
        const IndexCache cache{pt, kPerBlock, ratio};
        bench.ops().index_scores(bench.stream(), qt, ht, view, cache, Tensor(), kBlockSize, st);
        bench.ops().candidate_blocks(bench.stream(), st, view.positions, ratio, kBlockSize, bt);
        bench.ops().topk_select(bench.stream(), st, bench.put(top));
        bench.ops().index_scores(bench.stream(), qt, ht, view, cache, bt, kBlockSize, ft);
        bench.ops().topk_select(bench.stream(), ft, bench.put(top_filtered));
        bench.finish();
        HostTensor want(DType::kF64, {rows, n});
        for (int64_t t = 0; t < rows; ++t) {
            for (int64_t j = 0; j < n; ++j)
                want.set(t * n + j,
                         j < (t + 1) / ratio ? golden_score[static_cast<size_t>(t * rows + j)]
                                             : kMinusInf);
            std::vector<int> candidates;
            for (int b : list_of(blocks, t)) {
                for (int i = 0; i < kBlockSize; ++i) candidates.push_back(b * kBlockSize + i);
            }
            EXPECT_EQ(candidates, mask_of(g[r + "candidates"], t)) << r << t;
            EXPECT_EQ(list_of(top, t), mask_of(g[r + "topk8"], t)) << r << t;
            EXPECT_EQ(list_of(top_filtered, t), mask_of(g[r + "topk8_in_candidates"], t)) << r << t;
        }
        EXPECT_EQ(difference(scores, want, Tolerance::f32(bench.exact() ? 1e-7 : 1e-6)), "");
    }
}

TEST_P(Indexer, FieldCaseC102) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const auto c = load_case("op_numerics.json", "C-102");
    const auto& setup = c["setup"];
    const int block_size = setup["block_size"];
    const std::vector<double> source = setup["source_scores"], consumer = setup["consumer_scores"];
    const int64_t n = static_cast<int64_t>(source.size());
    for (const auto& row : c["rows"]) {
        const int visible = row["in"]["visible"];
        const auto score = [&](const std::vector<double>& s, int64_t j) {
            if (j >= visible) return kMinusInf;
            return row["in"].contains("all_scores") ? row["in"]["all_scores"].get<double>()
                                                    : s[static_cast<size_t>(j)];
        };
        HostTensor scores(bench.acc(), {1, n}), filtered(bench.acc(), {1, n}),
            position = HostTensor::from(DType::kI32, {1}, {visible - 1.0});
        HostTensor blocks(DType::kI32, {1, setup["blocks_kept"]}),
            top(DType::kI32, {1, setup["top_k"]}), top_filtered(DType::kI32, {1, setup["top_k"]});
        for (int64_t j = 0; j < n; ++j) scores.set(j, score(source, j));
        const Tensor st = bench.put(scores);
        bench.ops().candidate_blocks(
            bench.stream(), st, bench.put(position), 1, block_size, bench.put(blocks));
        bench.ops().topk_select(bench.stream(), st, bench.put(top));
        bench.finish();
        for (int64_t j = 0; j < n; ++j) filtered.set(j, kMinusInf);
        for (int b : list_of(blocks, 0)) {
            for (int64_t j = b * block_size; j < std::min<int64_t>(n, (b + 1) * block_size); ++j)
                filtered.set(j, score(consumer, j));
        }
        bench.ops().topk_select(bench.stream(), bench.put(filtered), bench.put(top_filtered));
        bench.finish();
        EXPECT_EQ(list_of(blocks, 0), row["want"]["blocks"].get<std::vector<int>>()) << row;
        EXPECT_EQ(list_of(top, 0), row["want"]["source_top4"].get<std::vector<int>>()) << row;
        EXPECT_EQ(list_of(top_filtered, 0), row["want"]["consumer_top4"].get<std::vector<int>>())
            << row;
    }
}

/// A full sort, the definition.
std::vector<int> brute_force(const std::vector<double>& scores, int64_t k) {
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    while (!order.empty() && scores[static_cast<size_t>(order.back())] == kMinusInf)
        order.pop_back();
    if (static_cast<int64_t>(order.size()) > k) order.resize(static_cast<size_t>(k));
    std::sort(order.begin(), order.end());
    return order;
}

TEST_P(Indexer, FieldCaseC104) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    for (const auto& row : case_rows("op_numerics.json", "C-104")) {
        const auto& in = row["in"];
        const int64_t n = in["entries"], k = in.value("k", 512);
        std::vector<std::vector<double>> orders;
        SeededRandom random("C-104/" + std::to_string(n));
        std::vector<double> s(static_cast<size_t>(n), 0.25);
        if (in.contains("all")) {
            orders.push_back(s);
        } else if (in.contains("contains")) {
            std::fill(s.begin(), s.end(), kMinusInf);
            for (int i = 0; i < 100; ++i) s[static_cast<size_t>(i * 397 + 11)] = -1.0 - i;
            orders.push_back(s);
        } else {
            // The last k are best and the smallest of them ties with everything in front; then
            // other orders.
            for (int64_t j = std::max<int64_t>(0, n - k); j < n; ++j)
                s[static_cast<size_t>(j)] = j % 3 == 0 ? 0.25 : 1.0 + static_cast<double>(j % 7);
            orders.push_back(s);
            if (n <= 40000) {
                for (int64_t j = 0; j < n; ++j) s[static_cast<size_t>(j)] = static_cast<double>(j);
                orders.push_back(s);  // ascending
                std::reverse(s.begin(), s.end());
                orders.push_back(s);  // descending
                for (int64_t j = 0; j < n; ++j)
                    s[static_cast<size_t>(j)] = static_cast<double>(std::min(j, n - 1 - j));
                orders.push_back(s);  // organ pipe: every score twice
                for (double& v : s) v = static_cast<double>(random.below(64)) - 32.0;
                orders.push_back(s);  // random with many ties
            }
        }
        for (size_t o = 0; o < orders.size(); ++o) {
            HostTensor scores = HostTensor::from(bench.acc(), {1, n}, orders[o]),
                       lists(DType::kI32, {1, k});
            bench.ops().topk_select(bench.stream(), bench.put(scores), bench.put(lists));
            bench.finish();
            EXPECT_EQ(list_of(lists, 0), brute_force(orders[o], k)) << in << " order " << o;
        }
    }
}

TEST_P(Indexer, FieldCaseC109) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    const auto c = load_case("op_numerics.json", "C-109");
    const auto& first = c["rows"][0]["in"];
    for (const auto& row : c["rows"]) {
        const std::vector<double> weights = row["in"]["head_weights"];
        // The vectors of four stand at the front of 32 dims; all of them are exact in q4m.
        HostTensor q(DType::kBF16, {1, 2, 32}), k(DType::kBF16, {6, 32}),
            hw = HostTensor::from(DType::kBF16, {1, 2}, weights);
        for (int64_t i = 0; i < q.numel(); ++i)
            q.set(i,
                  i % 32 < 4 ? first["queries_2_heads"][static_cast<size_t>(i / 32)]
                                    [static_cast<size_t>(i % 32)]
                                        .get<double>()
                             : 0.0);
        for (int64_t i = 0; i < k.numel(); ++i)
            k.set(i,
                  i % 32 < 4
                      ? first["keys"][static_cast<size_t>(i / 32)][static_cast<size_t>(i % 32)]
                            .get<double>()
                      : 0.0);
        HostTensor slots = HostTensor::from(DType::kI64, {6}, {0, 1, 2, 3, 4, 5}),
                   pool(DType::kU8, {6, index_key_bytes(32)});
        HostTensor scores(bench.acc(), {1, 6}), lists(DType::kI32, {1, 3});
        TestBatch batch({{5, 1, 0, 0, {0}}});
        const Tensor pt = bench.put(pool), st = bench.put(scores);
        bench.ops().index_key_store(bench.stream(), bench.put(k), bench.put(slots), pt);
        bench.ops().index_scores(bench.stream(),
                                 bench.put(q),
                                 bench.put(hw),
                                 batch.put(bench),
                                 {pt, 6, 1},
                                 Tensor(),
                                 4,
                                 st);
        bench.ops().topk_select(bench.stream(), st, bench.put(lists));
        bench.finish();
        for (size_t j = 0; j < 6; ++j)
            EXPECT_EQ(scores.get(static_cast<int64_t>(j)), row["want"]["scores"][j].get<double>())
                << j;
        if (!row["want"].contains("selected")) continue;
        const std::vector<int> got = list_of(lists, 0);
        for (const auto& [mistake, list] : row["wrong_if"].items())
            EXPECT_NE(got, list.get<std::vector<int>>()) << "the mistake is: " << mistake;
        EXPECT_EQ(got, row["want"]["selected"].get<std::vector<int>>());
    }
}

TEST_P(Indexer, ChunksDoNotMatter) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    constexpr int kTokens = 48, kPerBlock = 8;
    constexpr int64_t kHeads = 4, kDim = 32;
    HostTensor pool = random_key_pool(kPerBlock, kDim, 0);
    const auto run = [&](int chunk) {
        HostTensor all(bench.acc(), {kTokens, kTokens});
        for (int start = 0; start < kTokens; start += chunk) {
            const int n = std::min(chunk, kTokens - start);
            std::vector<int> ids(static_cast<size_t>(n));
            std::iota(ids.begin(), ids.end(), start);
            HostTensor q(DType::kBF16, {n, kHeads, kDim}), hw(DType::kBF16, {n, kHeads}),
                scores(bench.acc(), {n, kTokens});
            bench.rows(q, ids, "Indexer.ChunksDoNotMatter q", 1.0);
            bench.rows(hw, ids, "Indexer.ChunksDoNotMatter hw", 0.2);
            TestBatch batch({{start, n, 0, 0, blocks_of(3)}});
            const Tensor qt = bench.put(q), flat = qt.reshaped({n, kHeads * kDim});
            bench.ops().quant_q4m(bench.stream(), flat, flat);
            bench.ops().index_scores(bench.stream(),
                                     qt,
                                     bench.put(hw),
                                     batch.put(bench),
                                     {bench.put(pool), kPerBlock, 1},
                                     Tensor(),
                                     4,
                                     bench.put(scores));
            bench.finish();
            for (int64_t i = 0; i < scores.numel(); ++i)
                all.set(start * kTokens + i, scores.get(i));
        }
        return all;
    };
    const HostTensor whole = run(kTokens);
    for (int chunk : {1, 7, 16, 47})
        EXPECT_EQ(difference(run(chunk), whole, Tolerance::same_bits()), "") << chunk;
}

}  // namespace
}  // namespace deepinfer::testing
