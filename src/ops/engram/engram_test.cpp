#include "ops/engram/engram.h"

#include "support/case_file.h"
#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

constexpr int kDead = -1;

/// The n-gram rows that the model hands to engram_hash: look-back ends at the start and at a dead
/// token.
HostTensor ngrams(const std::vector<int64_t>& compressed, int pad, int64_t max_ngram) {
    HostTensor t(DType::kI32, {static_cast<int64_t>(compressed.size()), max_ngram});
    for (int64_t p = 0; p < t.dim(0); ++p) {
        bool blocked = false;
        for (int64_t s = 0; s < max_ngram; ++s) {
            blocked = blocked || p - s < 0 || compressed[static_cast<size_t>(p - s)] == kDead;
            t.set(p * max_ngram + s,
                  blocked ? pad : static_cast<double>(compressed[static_cast<size_t>(p - s)]));
        }
    }
    return t;
}

/// One layer's row of a [2, n] golden tensor.
HostTensor layer_row(const GoldenTensor& g, int64_t layer, DType dtype) {
    const int64_t n = g.shape[1];
    GoldenTensor row = g;
    row.shape = {n};
    const size_t bytes = g.bytes.size() / static_cast<size_t>(g.shape[0]);
    row.bytes.assign(g.bytes.begin() + layer * static_cast<int64_t>(bytes),
                     g.bytes.begin() + (layer + 1) * static_cast<int64_t>(bytes));
    return HostTensor::from(row, dtype);
}

OpCase hash_case(const std::string& layout, int64_t layer, DType offset_type) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        auto g = read_golden(data_path("unit/engram_hash.safetensors"));
        HostTensor mult = layer_row(g[layout + ".multipliers"], layer, DType::kI64),
                   primes = layer_row(g[layout + ".primes"], layer, DType::kI32);
        HostTensor offsets = layer_row(g[layout + ".offsets"], layer, offset_type);
        HostTensor grams(DType::kI32, {static_cast<int64_t>(ids.size()), 4}),
            out(DType::kI32, {grams.dim(0), primes.dim(0)});
        for (size_t r = 0; r < ids.size(); ++r) {
            SeededRandom random("engram_hash/" + std::to_string(ids[r]));
            for (int64_t s = 0; s < 4; ++s)
                grams.set(static_cast<int64_t>(r) * 4 + s,
                          static_cast<double>(random.below(layout == "release" ? 99092 : 1591)));
        }
        bench.ops().engram_hash(bench.stream(),
                                bench.put(grams),
                                bench.put(mult),
                                bench.put(primes),
                                bench.put(offsets),
                                bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"hash_" + layout + std::to_string(layer), {Tolerance::equal()}, run, false};
}

OpCase lookup_case(int64_t ed, int64_t cols, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        constexpr int64_t kTableRows = 97;
        SeededRandom random("engram table");
        HostWeight table;
        table.dtype = DType::kFP8E4M3;
        table.n = kTableRows;
        table.k = ed;
        for (int64_t i = 0; i < kTableRows * ed; ++i)
            table.weight.push_back(float_to_e4m3(static_cast<float>(random.normal() * 64.0)));
        for (int64_t i = 0; i < kTableRows * (ed / 32); ++i)
            table.scale.push_back(static_cast<uint8_t>(115 + random.below(20)));
        // Not through put(HostWeight): prepare() would take the scales for 32×32 tiles.
        HostTensor codes(DType::kU8, {kTableRows, ed}), scales(DType::kU8, {kTableRows, ed / 32});
        for (int64_t i = 0; i < codes.numel(); ++i)
            codes.set(i, table.weight[static_cast<size_t>(i)]);
        for (int64_t i = 0; i < scales.numel(); ++i)
            scales.set(i, table.scale[static_cast<size_t>(i)]);
        WeightMatrix w = table.view();
        w.weight = bench.put(codes).data;
        w.scale = bench.put(scales).ptr<uint8_t>();
        HostTensor picks(DType::kI32, {static_cast<int64_t>(ids.size()), cols}),
            out(DType::kBF16, {picks.dim(0), cols * ed}, pad);
        for (size_t r = 0; r < ids.size(); ++r) {
            SeededRandom row("engram_lookup/" + std::to_string(ids[r]));
            for (int64_t c = 0; c < cols; ++c)
                picks.set(static_cast<int64_t>(r) * cols + c,
                          static_cast<double>(row.below(kTableRows)));
        }
        bench.ops().engram_lookup(bench.stream(), w, bench.put(picks), bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"lookup_ed" + std::to_string(ed) + "_cols" + std::to_string(cols),
            {Tolerance::equal()},
            run,
            false};
}

OpCase gate_case(int64_t hc, int64_t d, bool with_dead) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        SeededRandom random("engram_gate weights");
        HostTensor x(DType::kBF16, {rows, hc, d}), kv(DType::kBF16, {rows, (hc + 1) * d}, 5),
            q(DType::kF32, {hc, d}), k(DType::kF32, {hc, d}), dead(DType::kU8, {rows});
        bench.rows(x, ids, "engram_gate x", 1.0);
        bench.rows(kv, ids, "engram_gate kv", 1.0);
        q.fill_normal(random, 1.0);
        k.fill_normal(random, 1.0);
        for (size_t r = 0; r < ids.size(); ++r)
            dead.set(static_cast<int64_t>(r), ids[r] % 5 == 1 ? 1 : 0);
        bench.ops().engram_gate(bench.stream(),
                                bench.put(x),
                                bench.put(kv),
                                bench.put(q),
                                bench.put(k),
                                with_dead ? bench.put(dead) : Tensor(),
                                1e-20f);
        bench.finish();
        return outputs(std::move(x));
    };
    return {"gate_hc" + std::to_string(hc) + "_d" + std::to_string(d) + (with_dead ? "_dead" : ""),
            {Tolerance::bf16_store()},
            run};
}

DI_TWIN_LAWS(Engram,
             hash_case("release", 0, DType::kI32),
             hash_case("release", 1, DType::kI64),
             hash_case("small", 0, DType::kI32),
             lookup_case(32, 6, 3),
             lookup_case(256, 24, 0),
             lookup_case(64, 1, 0),
             gate_case(4, 32, false),
             gate_case(4, 256, true),
             gate_case(2, 17, true));

class Engram : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         Engram,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(Engram, GoldenHashes) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/engram_hash.safetensors"));
    for (const std::string layout : {"release", "small"}) {
        const std::vector<int64_t> raw = g[layout + ".compressed_ids"].ints(),
                                   alive = g[layout + ".alive"].ints();
        std::vector<int64_t> compressed = raw;
        for (size_t i = 0; i < raw.size(); ++i) {
            if (alive[i] == 0) compressed[i] = kDead;
        }
        const std::vector<int64_t> want = g[layout + ".hash"].ints();
        for (int64_t layer = 0; layer < 2; ++layer) {
            HostTensor grams = ngrams(compressed, 2, 4),
                       mult = layer_row(g[layout + ".multipliers"], layer, DType::kI64);
            HostTensor primes = layer_row(g[layout + ".primes"], layer, DType::kI32),
                       offsets = layer_row(g[layout + ".offsets"], layer, DType::kI64);
            const int64_t cols = primes.dim(0);
            HostTensor out(DType::kI32, {grams.dim(0), cols});
            bench.ops().engram_hash(bench.stream(),
                                    bench.put(grams),
                                    bench.put(mult),
                                    bench.put(primes),
                                    bench.put(offsets),
                                    bench.put(out));
            bench.finish();
            for (int64_t p = 0; p < grams.dim(0); ++p) {
                for (int64_t c = 0; c < cols; ++c) {
                    ASSERT_EQ(static_cast<int64_t>(out.get(p * cols + c)),
                              want[static_cast<size_t>((p * 2 + layer) * cols + c)])
                        << layout << " position " << p << " layer " << layer << " column " << c;
                }
            }
        }
    }
}

TEST_P(Engram, FieldCaseC101) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/engram_hash.safetensors"));
    for (const auto& row : case_rows("op_numerics.json", "C-101")) {
        std::vector<int64_t> compressed;
        for (const auto& id : row["in"]["compressed_ids"])
            compressed.push_back(id.is_string() ? kDead : id.get<int64_t>());
        HostTensor grams = ngrams(compressed, row["in"]["pad"], 4),
                   mult = layer_row(g["release.multipliers"], 0, DType::kI64);
        HostTensor primes = layer_row(g["release.primes"], 0, DType::kI32),
                   offsets = layer_row(g["release.offsets"], 0, DType::kI32);
        HostTensor out(DType::kI32, {grams.dim(0), 24});
        bench.ops().engram_hash(bench.stream(),
                                bench.put(grams),
                                bench.put(mult),
                                bench.put(primes),
                                bench.put(offsets),
                                bench.put(out));
        bench.finish();
        const int64_t p = row["in"]["position"];
        std::vector<int64_t> got;
        for (int64_t c : {0, 7, 8, 16, 23})
            got.push_back(static_cast<int64_t>(out.get(p * 24 + c)));
        EXPECT_EQ(got, row["want"]["columns 0,7,8,16,23"].get<std::vector<int64_t>>());
    }
}

TEST_P(Engram, GoldenGate) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g = read_golden(data_path("unit/engram_gate.safetensors"));
    HostTensor x = HostTensor::from(g["x"], DType::kBF16),
               kv = HostTensor::from(g["kv"], DType::kBF16),
               q = HostTensor::from(g["q_weight"], DType::kF32);
    HostTensor k = HostTensor::from(g["k_weight"], DType::kF32),
               dead = HostTensor::from(g["alive"], DType::kU8);
    for (int64_t i = 0; i < dead.numel(); ++i) dead.set(i, 1 - dead.get(i));
    bench.ops().engram_gate(bench.stream(),
                            bench.put(x),
                            bench.put(kv),
                            bench.put(q),
                            bench.put(k),
                            bench.put(dead),
                            1e-20f);
    bench.finish();
    const Tolerance tolerance = bench.exact() ? Tolerance::equal() : Tolerance::bf16_store();
    EXPECT_EQ(difference(x, HostTensor::from(g["y"], DType::kBF16), tolerance), "");
}

TEST_P(Engram, DeadRowsKeepTheirBits) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor x(DType::kBF16, {2, 2, 8}), kv(DType::kBF16, {2, 24}),
        w = HostTensor::from(DType::kF32, {2, 8}, std::vector<double>(16, 1.0));
    HostTensor dead = HostTensor::from(DType::kU8, {2}, {0, 1});
    bench.rows(x, {0, 1}, "Engram.DeadRowsKeepTheirBits", 1.0);
    bench.rows(kv, {0, 1}, "Engram.DeadRowsKeepTheirBits", 1.0);
    const HostTensor before = x;
    bench.ops().engram_gate(bench.stream(),
                            bench.put(x),
                            bench.put(kv),
                            bench.put(w),
                            bench.put(w),
                            bench.put(dead),
                            1e-20f);
    bench.finish();
    EXPECT_NE(x.row_bytes(0), before.row_bytes(0));
    EXPECT_EQ(x.row_bytes(1), before.row_bytes(1));
}

}  // namespace
}  // namespace deepinfer::testing
