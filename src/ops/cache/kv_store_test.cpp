#include "ops/cache/kv_store.h"

#include "support/twin_test.h"
#include "tensor/quant_block.h"

namespace deepinfer::testing {
namespace {

OpCase window_pack_case(int64_t dh, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size());
        HostTensor kv(DType::kBF16, {rows, dh}, pad),
            packed(DType::kU8, {rows, window_row_bytes(dh)}, pad);
        bench.rows(kv, ids, "window_pack", 1.0);
        bench.ops().window_pack(bench.stream(), bench.put(kv), bench.put(packed));
        bench.finish();
        return outputs(std::move(packed));
    };
    return {"window_pack_dh" + std::to_string(dh), {Tolerance::equal()}, run};
}

/// Entries and keys go to permuted slots of a pool; the pool's rows are handed back in the order of
/// the inputs.
OpCase pool_case(bool keys, int64_t dim, int64_t pad) {
    const auto run = [=](OpBench& bench, const std::vector<int>& ids) {
        const int64_t rows = static_cast<int64_t>(ids.size()),
                      row_bytes = keys ? index_key_bytes(dim) : kv_entry_bytes(dim);
        HostTensor c(DType::kBF16, {rows, dim}), slots(DType::kI64, {rows}),
            pool(DType::kU8, {128, row_bytes}, pad);
        bench.rows(c, ids, "kv_store", 1.0);
        for (int64_t r = 0; r < rows; ++r)
            slots.set(r, static_cast<double>(ids[static_cast<size_t>(r)] * 77 % 128));
        const Tensor ct = bench.put(c), st = bench.put(slots), pt = bench.put(pool);
        if (keys)
            bench.ops().index_key_store(bench.stream(), ct, st, pt);
        else
            bench.ops().kv_entry_store(bench.stream(), ct, st, pt);
        bench.finish();
        HostTensor out(DType::kU8, {rows, row_bytes});
        std::vector<bool> used(128, false);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t slot = static_cast<int64_t>(slots.get(r));
            used[static_cast<size_t>(slot)] = true;
            for (int64_t i = 0; i < row_bytes; ++i)
                out.set(r * row_bytes + i, pool.get(slot * row_bytes + i));
        }
        for (int64_t i = 0; i < pool.numel(); ++i) {
            if (!used[static_cast<size_t>(i / row_bytes)] && pool.get(i) != 0x7B)
                ADD_FAILURE() << "wrote to an unused slot at " << pool.coordinates(i);
        }
        return outputs(std::move(out));
    };
    return {std::string(keys ? "index_key_d" : "kv_entry_d") + std::to_string(dim) + "_pad" +
                std::to_string(pad),
            {Tolerance::equal()},
            run};
}

DI_TWIN_LAWS(KvStore,
             window_pack_case(32, 0),
             window_pack_case(64, 3),
             window_pack_case(512, 0),
             pool_case(false, 16, 0),
             pool_case(false, 64, 20),
             pool_case(false, 512, 0),
             pool_case(true, 32, 0),
             pool_case(true, 128, 12));

class KvStore : public EveryImplementation {};
INSTANTIATE_TEST_SUITE_P(All,
                         KvStore,
                         ::testing::ValuesIn(implementations()),
                         implementation_test_name);

TEST_P(KvStore, MinusOneWritesNothing) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    HostTensor c(DType::kBF16, {3, 32}), slots = HostTensor::from(DType::kI64, {3}, {-1, 2, -1});
    HostTensor entries(DType::kU8, {4, kv_entry_bytes(32)}, 5),
        keys(DType::kU8, {4, index_key_bytes(32)}, 5);
    bench.rows(c, {0, 1, 2}, "KvStore.MinusOneWritesNothing", 1.0);
    const Tensor ct = bench.put(c), st = bench.put(slots);
    bench.ops().kv_entry_store(bench.stream(), ct, st, bench.put(entries));
    bench.ops().index_key_store(bench.stream(), ct, st, bench.put(keys));
    bench.finish();
    const HostTensor untouched_entries(DType::kU8, entries.dims()),
        untouched_keys(DType::kU8, keys.dims());
    for (int64_t row : {0, 1, 3}) {
        EXPECT_EQ(entries.row_bytes(row), untouched_entries.row_bytes(row)) << row;
        EXPECT_EQ(keys.row_bytes(row), untouched_keys.row_bytes(row)) << row;
    }
    EXPECT_NE(entries.row_bytes(2), untouched_entries.row_bytes(2));
    EXPECT_NE(keys.row_bytes(2), untouched_keys.row_bytes(2));
}

TEST_P(KvStore, GoldenPackedRows) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    auto g8 = read_golden(data_path("unit/q8.safetensors")),
         g4m = read_golden(data_path("unit/q4m.safetensors")),
         g4n = read_golden(data_path("unit/q4n.safetensors"));
    HostTensor x8 = HostTensor::from(g8["x"], DType::kBF16),
               x4m = HostTensor::from(g4m["x"], DType::kBF16),
               x4n = HostTensor::from(g4n["x"], DType::kBF16);
    const int64_t rows = x8.dim(0), d = x8.dim(1);
    HostTensor slots(DType::kI64, {rows});
    for (int64_t i = 0; i < rows; ++i) slots.set(i, static_cast<double>(rows - 1 - i));
    HostTensor windows(DType::kU8, {rows, window_row_bytes(d)}),
        keys(DType::kU8, {rows, index_key_bytes(d)}),
        entries(DType::kU8, {rows, kv_entry_bytes(d)});
    const Tensor st = bench.put(slots);
    bench.ops().window_pack(bench.stream(), bench.put(x8), bench.put(windows));
    bench.ops().index_key_store(bench.stream(), bench.put(x4m), st, bench.put(keys));
    bench.ops().kv_entry_store(bench.stream(), bench.put(x4n), st, bench.put(entries));
    bench.finish();
    const auto expect_row = [](const HostTensor& pool,
                               int64_t row,
                               const GoldenTensor& codes,
                               const GoldenTensor& scales,
                               int64_t i) {
        std::vector<uint8_t> want(codes.bytes.begin() + i * codes.shape[1],
                                  codes.bytes.begin() + (i + 1) * codes.shape[1]);
        want.insert(want.end(),
                    scales.bytes.begin() + i * scales.shape[1],
                    scales.bytes.begin() + (i + 1) * scales.shape[1]);
        ASSERT_EQ(pool.row_bytes(row), want) << i;
    };
    for (int64_t i = 0; i < rows; ++i) {
        expect_row(windows, i, g8["codes"], g8["scales"], i);
        expect_row(keys, rows - 1 - i, g4m["packed"], g4m["scales"], i);
        expect_row(entries, rows - 1 - i, g4n["packed"], g4n["scales"], i);
    }
}

// A ring after storing position by position equals one after storing the prompt at once, in any
// cut.
TEST_P(KvStore, RingHoldsTheNewestRowsWhateverTheChunks) {
    OpBench bench(GetParam());
    DI_SKIP_UNLESS_AVAILABLE(bench);
    constexpr int kRing = 10, kRowBytes = 33, kTokens = 37;
    for (int chunk : {1, 3, 9, 10, 11, 37}) {
        HostTensor ring(DType::kU8, {3, kRing, kRowBytes});
        for (int start = 0; start < kTokens; start += chunk) {
            const int n = std::min(chunk, kTokens - start);
            HostTensor rows(
                DType::kU8, {n + 1, kRowBytes}, 7);  // the second sequence brings one row
            for (int64_t i = 0; i < rows.numel(); ++i)
                rows.set(i, static_cast<double>((start + i / kRowBytes) % 100 + 1));
            TestBatch batch({{start, n, 2, 0, {}}, {5, 1, 0, 0, {}}});
            bench.ops().window_store(
                bench.stream(), bench.put(rows), batch.put(bench), bench.put(ring));
            bench.finish();
        }
        for (int p = kTokens - kRing; p < kTokens; ++p) {
            const int64_t at = (2 * kRing + p % kRing) * kRowBytes;
            EXPECT_EQ(ring.get(at + kRowBytes - 1), p % 100 + 1)
                << "chunk " << chunk << " position " << p;
        }
        for (int64_t i = kRing * kRowBytes; i < 2 * kRing * kRowBytes; ++i)
            ASSERT_EQ(ring.get(i), 0x7B) << "slot 1 belongs to nobody";
        for (int64_t i = 0; i < kRing * kRowBytes; ++i)
            ASSERT_EQ(ring.get(i) != 0x7B, i / kRowBytes == 5) << "slot 0 got one row";
    }
}

}  // namespace
}  // namespace deepinfer::testing
