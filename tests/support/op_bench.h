// OpBench: runs ops of one implementation on test data, whatever device it lives on.
//
//   OpBench bench({"cpu", "avx2"}, 2);
//   HostTensor x(DType::kBF16, {3, 64}), y(DType::kBF16, {3, 64});
//   bench.rows(x, {0, 1, 2}, "x", 1.0);                       // row data depends on the row id
//   alone bench.ops().rms_norm(bench.stream(), bench.put(x), …, bench.put(y)); bench.finish(); //
//   downloads; fails the test if a guard byte moved
//
// Only test programs that link the backends include this file.
#pragma once

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "ops/backend.h"
#include "ops/batch_view.h"
#include "support/host_tensor.h"

namespace deepinfer::testing {

struct Implementation {
    std::string backend;
    std::string isa;  ///< forced instruction set, empty: the backend's own choice
    std::string name() const { return isa.empty() ? backend : backend + "_" + isa; }
};
inline std::ostream& operator<<(std::ostream& s, const Implementation& i) {
    return s << i.name();
}

/// Every implementation that is compiled in. One that this machine cannot run is skipped when it is
/// created.
inline std::vector<Implementation> implementations() {
    return {{"ref", ""},
            {"exact", ""},
            {"cpu", "baseline"},
            {"cpu", "avx2"},
            {"cpu", "avx512"},
            {"cpu", "avx512bf16"},
            {"cpu", "amx"}};
}
/// Whose results an implementation is held against.
inline Implementation judge_of(const Implementation& i) {
    return {i.backend == "ref" ? "exact" : "ref", ""};
}

class OpBench {
  public:
    /// Check ok() before use.
    explicit OpBench(const Implementation& implementation, int num_threads = 2)
        : implementation_(implementation) {
        static const bool registered = [] {
            register_ref_backends();
            register_cpu_backend();
            return true;
        }();
        (void)registered;
        BackendOptions options;
        options.num_threads = num_threads;
        options.isa = implementation.isa;
        Result<std::unique_ptr<Backend>> backend = create_backend(implementation.backend, options);
        if (backend.ok())
            backend_ = std::move(backend).value();
        else
            status_ = backend.status();
    }

    bool ok() const { return backend_ != nullptr; }
    const Status& status() const { return status_; }
    const Implementation& implementation() const { return implementation_; }
    bool exact() const { return implementation_.backend == "exact"; }
    const OpTable& ops() const { return backend_->ops(); }
    Stream& stream() { return backend_->device().stream(); }
    DType acc() const { return ops().acc; }

    /// Copies `t` (guards and all) to the device. The view is valid until the next finish(); `t`
    /// must stay.
    Tensor put(HostTensor& t) {
        Result<Buffer> buffer = backend_->device().allocate(t.memory().size());
        DI_CHECK(buffer.ok());
        backend_->device().copy_to_device(
            stream(), buffer.value().data(), t.memory().data(), t.memory().size());
        const Tensor view = t.view_at(static_cast<uint8_t*>(buffer.value().data()));
        items_.push_back({&t, std::move(buffer).value()});
        return view;
    }
    /// A weight, prepared by the backend. `w` must outlive the bench.
    WeightMatrix put(const HostWeight& w) {
        WeightMatrix m = w.view();
        const Status s = backend_->prepare(m);
        DI_CHECK_MSG(s.ok(), s.message());
        return m;
    }
    /// Waits, copies every put() tensor back and checks all guards.
    void finish() {
        for (Item& i : items_) {
            backend_->device().copy_to_host(
                stream(), i.host->memory().data(), i.buffer.data(), i.host->memory().size());
        }
        stream().synchronize();
        for (Item& i : items_) {
            EXPECT_TRUE(i.host->guards_intact())
                << implementation_.name() << " wrote beside a tensor";
        }
        items_.clear();
    }

    /// Normal random rows; row i depends on (tag, row_ids[i]) alone. The poisoned row begins with a
    /// NaN.
    void rows(HostTensor& t,
              const std::vector<int>& row_ids,
              const std::string& tag,
              double scale) const {
        for (size_t r = 0; r < row_ids.size(); ++r) {
            SeededRandom random(tag + "/" + std::to_string(row_ids[r]));
            const int64_t n = t.row_numel(), first = static_cast<int64_t>(r) * n;
            for (int64_t i = 0; i < n; ++i) t.set(first + i, random.normal() * scale);
            if (row_ids[r] == poisoned_row && n > 0)
                t.set(first, std::numeric_limits<double>::quiet_NaN());
        }
    }

    int poisoned_row = -1;

  private:
    struct Item {
        HostTensor* host;
        Buffer buffer;
    };
    Implementation implementation_;
    Status status_;
    std::unique_ptr<Backend> backend_;
    std::list<Item> items_;
};

/// Skips the test, with the reason, if the implementation does not run here.
#define DI_SKIP_UNLESS_AVAILABLE(bench)                                \
    do {                                                               \
        if (!(bench).ok()) GTEST_SKIP() << (bench).status().message(); \
    } while (false)

/// A step's rows in host memory.
struct TestSequence {
    int start = 0;  ///< position of the first row
    int rows = 1;
    int slot = 0;
    int window_floor = 0;
    std::vector<int> blocks;
};
class TestBatch {
  public:
    explicit TestBatch(const std::vector<TestSequence>& seqs) {
        std::vector<double> position, row_seq, seq_rows{0}, start, slot, floor, table;
        size_t max_blocks = 1;
        for (const TestSequence& s : seqs) max_blocks = std::max(max_blocks, s.blocks.size());
        for (size_t b = 0; b < seqs.size(); ++b) {
            const TestSequence& s = seqs[b];
            for (int i = 0; i < s.rows; ++i) {
                position.push_back(s.start + i);
                row_seq.push_back(static_cast<double>(b));
            }
            seq_rows.push_back(static_cast<double>(position.size()));
            start.push_back(s.start);
            slot.push_back(s.slot);
            floor.push_back(s.window_floor);
            for (size_t i = 0; i < max_blocks; ++i)
                table.push_back(i < s.blocks.size() ? s.blocks[i] : -1);
        }
        const int64_t t = static_cast<int64_t>(position.size()),
                      n = static_cast<int64_t>(seqs.size());
        positions_ = HostTensor::from(DType::kI32, {t}, position);
        row_seq_ = HostTensor::from(DType::kI32, {t}, row_seq);
        seq_rows_ = HostTensor::from(DType::kI32, {n + 1}, seq_rows);
        seq_start_ = HostTensor::from(DType::kI32, {n}, start);
        seq_slot_ = HostTensor::from(DType::kI32, {n}, slot);
        window_floor_ = HostTensor::from(DType::kI32, {n}, floor);
        block_table_ = HostTensor::from(DType::kI32, {n, static_cast<int64_t>(max_blocks)}, table);
    }
    BatchView put(OpBench& bench) {
        BatchView v;
        v.positions = bench.put(positions_);
        v.row_seq = bench.put(row_seq_);
        v.seq_rows = bench.put(seq_rows_);
        v.seq_start = bench.put(seq_start_);
        v.seq_slot = bench.put(seq_slot_);
        v.window_floor = bench.put(window_floor_);
        v.block_table = bench.put(block_table_);
        return v;
    }

  private:
    HostTensor positions_, row_seq_, seq_rows_, seq_start_, seq_slot_, window_floor_, block_table_;
};

}  // namespace deepinfer::testing
