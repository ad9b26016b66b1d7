// BenchContext: memory, weights and timing for the cases of bench ops.
//
// A case function makes its data for the largest number of rows, then calls measure() for each.
// Weights are generated in as many copies as it takes to leave the last-level cache, and iterations
// go round them, so that a GEMV reads memory as it does in a model.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "deepinfer/op_bench.h"
#include "ops/backend.h"

namespace deepinfer {

/// What a case costs, and the words for it.
struct OpCost {
    std::string op, shape, dtype;
    int64_t rows = 0;
    double bytes = 0, flops = 0;
};

class BenchContext {
  public:
    BenchContext(Backend& backend,
                 const ModelConfig& config,
                 const OpBenchOptions& options,
                 std::function<bool(const OpMeasurement&)> on_result);

    const ModelConfig& config() const { return config_; }
    const OpTable& ops() const { return backend_.ops(); }
    Stream& stream() { return backend_.device().stream(); }
    bool stopped() const { return stopped_; }
    const Status& status() const { return status_; }

    /// Whether an op was asked for.
    bool wants(const char* op) const;
    /// Row counts of matrix ops; the others take fewer of them.
    const std::vector<int64_t>& rows() const { return rows_; }
    std::vector<int64_t> some_rows() const;
    int64_t most_rows() const { return rows_.back(); }

    /// Dense tensor, alive until the next reset(): bf16 and f32 hold N(0, sigma²), i32 and i64
    /// zero.
    Tensor tensor(DType dtype, const std::vector<int64_t>& dims, double sigma = 1.0);
    /// Packed cache rows: `pack` is called with bf16 rows of width `width`.
    Tensor bytes(int64_t rows, int64_t row_bytes);
    /// Copies of one weight, prepared by the backend, at least 128 MiB of them (at most 8).
    std::vector<WeightMatrix> weights(DType dtype, int64_t n, int64_t k);
    /// One copy.
    WeightMatrix weight(DType dtype, int64_t n, int64_t k);
    /// Frees tensors and weights.
    void reset();

    /// Times run(i), i = 0, 1, …; does nothing once stopped.
    void measure(const OpCost& cost, const std::function<void(int64_t)>& run);

  private:
    Backend& backend_;
    ModelConfig config_;
    OpBenchOptions options_;
    std::function<bool(const OpMeasurement&)> on_result_;
    std::vector<int64_t> rows_;
    std::deque<std::vector<uint8_t>> memory_;
    int64_t next_weight_ = 0;
    bool stopped_ = false;
    Status status_;
};

/// "fp8", as measurement records spell weights.
const char* weight_name(DType dtype);

// The cases, by kind. Each resets the context when done.
void bench_matrix_ops(BenchContext& c);     ///< linear, grouped_o_proj, router_scores, moe_ffn
void bench_row_ops(BenchContext& c);        ///< norms, quantizers, rope, mHC, Engram, sampling
void bench_attention_ops(BenchContext& c);  ///< caches, indexer, attention, compressor

/// Every op name that the cases cover, in their order.
std::vector<std::string> benched_ops();

}  // namespace deepinfer
