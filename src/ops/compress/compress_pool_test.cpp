#include "ops/compress/compress_pool.h"

#include "ops/linear/linear.h"
#include "support/twin_test.h"

namespace deepinfer::testing {
namespace {

/// Every row is a sequence of its own whose group began before this step (row ids spread the split
/// point).
OpCase pool_case(int ratio, int64_t dh) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        constexpr int kTail = 6;
        const int rows = static_cast<int>(ids.size());
        std::vector<TestSequence> seqs;
        std::vector<int> row_keys, tail_keys;
        HostTensor entry_rows(DType::kI32, {rows});
        for (int b = 0; b < rows; ++b) {
            const int id = ids[static_cast<size_t>(b)], in_step = 1 + id % ratio,
                      last = ratio * (1 + id % 5) - 1;
            seqs.push_back({last - in_step + 1, in_step, b, 0, {}});
            for (int i = 0; i < in_step; ++i) row_keys.push_back(id * 16 + i);
            tail_keys.push_back(id);
            entry_rows.set(b, static_cast<double>(row_keys.size()) - 1);
        }
        TestBatch batch(seqs);
        const int64_t total = static_cast<int64_t>(row_keys.size());
        HostTensor z(bench.acc(), {total, dh}), g(bench.acc(), {total, dh}, 3),
            tail(bench.acc(), {rows, kTail, 2, dh}), out(DType::kBF16, {rows, dh});
        bench.rows(z, row_keys, "compress z", 1.0);
        bench.rows(g, row_keys, "compress g", 2.0);
        bench.rows(tail, tail_keys, "compress tail", 1.5);
        bench.ops().compress_pool(bench.stream(),
                                  bench.put(z),
                                  bench.put(g),
                                  batch.put(bench),
                                  bench.put(tail),
                                  ratio,
                                  bench.put(entry_rows),
                                  bench.put(out));
        bench.finish();
        return outputs(std::move(out));
    };
    return {"ratio" + std::to_string(ratio) + "_dh" + std::to_string(dh),
            {Tolerance::bf16_store()},
            run};
}

DI_TWIN_LAWS(CompressPool, pool_case(2, 64), pool_case(2, 512), pool_case(4, 33), pool_case(2, 1));

class CompressPool : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         CompressPool,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

/// Runs one sequence through pool and tail store in chunks; returns the latents of all groups.
HostTensor pool_in_chunks(OpBench& bench,
                          const HostTensor& z,
                          const HostTensor& g,
                          int ratio,
                          int chunk,
                          HostTensor& tail) {
    const int tokens = static_cast<int>(z.dim(0));
    const int64_t dh = z.dim(1);
    HostTensor all(DType::kBF16, {tokens / ratio, dh});
    for (int start = 0, entry = 0; start < tokens; start += chunk) {
        const int n = std::min(chunk, tokens - start);
        HostTensor zc(bench.acc(), {n, dh}), gc(bench.acc(), {n, dh});
        for (int64_t i = 0; i < zc.numel(); ++i) {
            zc.set(i, z.get(start * dh + i));
            gc.set(i, g.get(start * dh + i));
        }
        std::vector<double> ends;
        for (int i = 0; i < n; ++i) {
            if ((start + i + 1) % ratio == 0) ends.push_back(i);
        }
        HostTensor entry_rows =
                       HostTensor::from(DType::kI32, {static_cast<int64_t>(ends.size())}, ends),
                   out(DType::kBF16, {entry_rows.dim(0), dh});
        TestBatch batch({{start, n, 1, 0, {}}});
        const BatchView view = batch.put(bench);
        const Tensor zt = bench.put(zc), gt = bench.put(gc), tt = bench.put(tail);
        bench.ops().compress_pool(
            bench.stream(), zt, gt, view, tt, ratio, bench.put(entry_rows), bench.put(out));
        bench.ops().compress_tail_store(bench.stream(), zt, gt, view, tt);
        bench.finish();
        for (int64_t i = 0; i < out.numel(); ++i) all.set(entry * dh + i, out.get(i));
        entry += static_cast<int>(ends.size());
    }
    return all;
}

TEST_P(CompressPool, ChunksDoNotMatter) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    for (int ratio : {2, 4}) {
        HostTensor z(bench.acc(), {41, 32}), g(bench.acc(), {41, 32});
        SeededRandom random("CompressPool.ChunksDoNotMatter");
        z.fill_normal(random, 1.0);
        g.fill_normal(random, 2.0);
        HostTensor tail(bench.acc(), {2, 9, 2, 32});
        const HostTensor whole = pool_in_chunks(bench, z, g, ratio, 41, tail);
        for (int chunk : {1, 2, 3, 5, 8, 40}) {
            HostTensor chunk_tail(bench.acc(), {2, 9, 2, 32});
            EXPECT_EQ(difference(pool_in_chunks(bench, z, g, ratio, chunk, chunk_tail),
                                 whole,
                                 Tolerance::same_bits()),
                      "")
                << chunk;
            EXPECT_EQ(chunk_tail.memory(), tail.memory()) << "tails differ, chunk " << chunk;
        }
    }
}

// Goldens: linf (wkv, wgate), pool, norm; the tail holds the open group.
TEST_P(CompressPool, GoldenVectors) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto file = read_golden(data_path("unit/compressor.safetensors"));
    for (int ratio : {2, 4}) {
        const std::string r = "r" + std::to_string(ratio) + ".";
        HostTensor x = HostTensor::from(file[r + "x"], DType::kBF16),
                   norm = HostTensor::from(file[r + "norm"], DType::kF32);
        const int64_t tokens = x.dim(0), dh = norm.dim(0);
        HostWeight wkv, wgate;
        wkv.n = wgate.n = dh;
        wkv.k = wgate.k = x.dim(1);
        wkv.weight = file[r + "wkv"].bytes;
        wgate.weight = file[r + "wgate"].bytes;
        HostTensor z(bench.acc(), {tokens, dh}), g(bench.acc(), {tokens, dh}),
            tail(bench.acc(), {2, 9, 2, dh});
        const Tensor xt = bench.put(x);
        bench.ops().linear(bench.stream(), xt, bench.put(wkv), bench.put(z));
        bench.ops().linear(bench.stream(), xt, bench.put(wgate), bench.put(g));
        bench.finish();
        HostTensor latent = pool_in_chunks(bench, z, g, ratio, 3, tail);
        const Tensor lt = bench.put(latent);
        bench.ops().rms_norm(bench.stream(), lt, bench.put(norm), 1e-20f, lt);
        bench.finish();
        EXPECT_EQ(difference(latent,
                             HostTensor::from(file[r + "latent"], DType::kBF16),
                             bench.exact() ? Tolerance::equal() : Tolerance::bf16_store()),
                  "")
            << ratio;
        const HostTensor want_z = HostTensor::from(file[r + "tail_z"], DType::kF32),
                         want_g = HostTensor::from(file[r + "tail_g"], DType::kF32);
        HostTensor got_z(bench.acc(), want_z.dims()), got_g(bench.acc(), want_g.dims());
        for (int64_t i = 0; i < want_z.dim(0); ++i) {
            const int64_t position = tokens / ratio * ratio + i;
            for (int64_t c = 0; c < dh; ++c) {
                const int64_t at = ((9 + position % 9) * 2) * dh + c;  // slot 1
                got_z.set(i * dh + c, tail.get(at));
                got_g.set(i * dh + c, tail.get(at + dh));
            }
        }
        EXPECT_EQ(difference(got_z, want_z, Tolerance::f32()), "") << ratio;
        EXPECT_EQ(difference(got_g, want_g, Tolerance::f32()), "") << ratio;
    }
}

}  // namespace
}  // namespace deepinfer::testing
