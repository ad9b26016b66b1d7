// bench ops: everything that multiplies with stored weights.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "opbench/bench_context.h"

namespace deepinfer {
namespace {

/// The largest vocabulary whose head is measured: more rows show nothing new and take long to make.
constexpr int64_t kMostHeadRows = 16384;

struct Matrix {
    const char* name;
    DType dtype;
    int64_t n, k;
};

std::vector<Matrix> matrices(const ModelConfig& c) {
    const int64_t d = c.hidden_size, ql = c.q_lora_rank, dh = c.head_dim;
    std::vector<Matrix> m = {
        {"wq_a", DType::kFP8E4M3, ql, d},
        {"wq_b", DType::kFP8E4M3, c.num_attention_heads * dh, ql},
        {"wkv", DType::kFP8E4M3, dh, d},
        {"wo_b", DType::kFP8E4M3, d, c.o_groups * c.o_lora_rank},
        {"expert w1", DType::kFP4, c.moe_intermediate_size, d},
        {"expert w2", DType::kFP4, d, c.moe_intermediate_size},
        {"head", DType::kBF16, std::min(c.vocab_size, kMostHeadRows), d},
    };
    if (!c.kv_source_layer_ids.empty()) {
        m.push_back({"compressor wkv", DType::kBF16, dh, d});
        m.push_back({"indexer wq_b", DType::kFP8E4M3, c.index_n_heads * c.index_head_dim, ql});
        m.push_back({"indexer weights_proj", DType::kBF16, c.index_n_heads, d});
    }
    if (!c.engram_layer_ids.empty()) {
        m.push_back({"engram wkv",
                     DType::kFP8E4M3,
                     (c.hc_mult + 1) * d,
                     c.engram_columns() * c.engram_head_dim});
    }
    return m;
}

std::string shape_of(int64_t n, int64_t k, const std::string& name) {
    return std::to_string(n) + "x" + std::to_string(k) + " " + name;
}

double matrix_bytes(const WeightMatrix& w, int64_t rows, int64_t width) {
    return static_cast<double>(w.bytes() + rows * 2 * (width + w.n));
}

void linear(BenchContext& c) {
    if (!c.wants("linear")) return;
    for (const Matrix& m : matrices(c.config())) {
        const std::vector<WeightMatrix> w = c.weights(m.dtype, m.n, m.k);
        if (c.stopped()) return;
        const Tensor x = c.tensor(DType::kBF16, {c.most_rows(), m.k}),
                     out = c.tensor(DType::kBF16, {c.most_rows(), m.n}, 0);
        c.ops().quant_q8(c.stream(), x, x);
        for (const int64_t rows : c.rows()) {
            c.measure({"linear",
                       shape_of(m.n, m.k, m.name),
                       weight_name(m.dtype),
                       rows,
                       matrix_bytes(w[0], rows, m.k),
                       2.0 * static_cast<double>(rows * m.n * m.k)},
                      [&](int64_t i) {
                          c.ops().linear(c.stream(),
                                         x.rows(0, rows),
                                         w[static_cast<size_t>(i) % w.size()],
                                         out.rows(0, rows));
                      });
        }
        c.reset();
    }
}

void grouped_o_proj(BenchContext& c) {
    if (!c.wants("grouped_o_proj")) return;
    const ModelConfig& m = c.config();
    const int64_t width = m.num_attention_heads * m.head_dim, n = m.o_groups * m.o_lora_rank,
                  k = width / m.o_groups;
    const std::vector<WeightMatrix> w = c.weights(DType::kFP8E4M3, n, k);
    if (c.stopped()) return;
    const Tensor x = c.tensor(DType::kBF16, {c.most_rows(), width}),
                 out = c.tensor(DType::kBF16, {c.most_rows(), n}, 0);
    for (const int64_t rows : c.rows()) {
        c.measure({"grouped_o_proj",
                   std::to_string(m.o_groups) + "x(" + shape_of(m.o_lora_rank, k, "wo_a)"),
                   "fp8",
                   rows,
                   matrix_bytes(w[0], rows, width),
                   2.0 * static_cast<double>(rows * n * k)},
                  [&](int64_t i) {
                      c.ops().grouped_o_proj(c.stream(),
                                             x.rows(0, rows),
                                             w[static_cast<size_t>(i) % w.size()],
                                             static_cast<int>(m.o_groups),
                                             out.rows(0, rows));
                  });
    }
    c.reset();
}

void router_scores(BenchContext& c) {
    if (!c.wants("router_scores")) return;
    const ModelConfig& m = c.config();
    const std::vector<WeightMatrix> w = c.weights(DType::kBF16, m.n_routed_experts, m.hidden_size);
    if (c.stopped()) return;
    const Tensor x = c.tensor(DType::kBF16, {c.most_rows(), m.hidden_size}),
                 out = c.tensor(c.ops().acc, {c.most_rows(), m.n_routed_experts}, 0);
    for (const int64_t rows : c.rows()) {
        c.measure({"router_scores",
                   shape_of(m.n_routed_experts, m.hidden_size, "gate"),
                   "bf16",
                   rows,
                   matrix_bytes(w[0], rows, m.hidden_size),
                   2.0 * static_cast<double>(rows * m.n_routed_experts * m.hidden_size)},
                  [&](int64_t i) {
                      c.ops().router_scores(c.stream(),
                                            x.rows(0, rows),
                                            w[static_cast<size_t>(i) % w.size()],
                                            1.0f,
                                            ScoringFunc::kSqrtSoftplus,
                                            out.rows(0, rows));
                  });
    }
    c.reset();
}

/// Experts as a uniform router picks them, the rows of every call another draw.
void moe_ffn(BenchContext& c) {
    if (!c.wants("moe_ffn")) return;
    const ModelConfig& m = c.config();
    const int64_t d = m.hidden_size, inter = m.moe_intermediate_size, top = m.num_experts_per_tok,
                  experts = m.n_routed_experts;
    constexpr int64_t kDraws = 8;
    const auto expert = [&](DType t) {
        return ExpertWeights{c.weight(t, inter, d), c.weight(t, inter, d), c.weight(t, d, inter)};
    };
    std::vector<ExpertWeights> routed;
    for (int64_t e = 0; e < experts && !c.stopped(); ++e) routed.push_back(expert(DType::kFP4));
    if (c.stopped()) return;
    const ExpertWeights shared = expert(DType::kFP8E4M3);
    const int64_t most = c.most_rows();
    const Tensor u = c.tensor(DType::kBF16, {most, d}), out = c.tensor(DType::kBF16, {most, d}, 0),
                 ids = c.tensor(DType::kI32, {kDraws * most, top}),
                 weights = c.tensor(c.ops().acc, {most, top}, 0);
    uint64_t state = 1;
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t t = 0; t < kDraws * most; ++t) {
        for (int64_t i = 0; i < top; ++i) {  // a partial shuffle: top distinct experts
            state = state * 6364136223846793005u + 1442695040888963407u;
            const size_t at = static_cast<size_t>(i),
                         other = at + (state >> 33) % (order.size() - at);
            std::swap(order[at], order[other]);
        }
        std::copy_n(order.begin(), top, ids.row<int32_t>(t));
        std::sort(ids.row<int32_t>(t), ids.row<int32_t>(t) + top);
    }
    for (const int64_t rows : c.rows()) {
        // Bytes: the experts that one draw of these rows uses, averaged over the draws.
        double used = 0;
        for (int64_t draw = 0; draw < kDraws; ++draw) {
            std::vector<bool> seen(static_cast<size_t>(experts));
            for (int64_t t = 0; t < rows; ++t) {
                for (int64_t i = 0; i < top; ++i)
                    seen[static_cast<size_t>(ids.row<int32_t>(draw * most + t)[i])] = true;
            }
            used += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kDraws;
        }
        const auto bytes_of = [](const ExpertWeights& e) {
            return static_cast<double>(e.w1.bytes() + e.w2.bytes() + e.w3.bytes());
        };
        c.measure(
            {"moe_ffn",
             std::to_string(experts) + " experts top-" + std::to_string(top) + ", " +
                 shape_of(inter, d, "and shared"),
             "fp4",
             rows,
             used * bytes_of(routed[0]) + bytes_of(shared) + static_cast<double>(rows * 4 * d),
             6.0 * static_cast<double>(rows * d * inter * (top + 1))},
            [&](int64_t i) {
                const int64_t first = i % kDraws * most;
                c.ops().moe_ffn(c.stream(),
                                u.rows(0, rows),
                                ids.rows(first, first + rows),
                                weights.rows(0, rows),
                                routed,
                                shared,
                                static_cast<float>(m.swiglu_limit),
                                out.rows(0, rows));
            });
    }
    c.reset();
}

}  // namespace

void bench_matrix_ops(BenchContext& c) {
    linear(c);
    grouped_o_proj(c);
    router_scores(c);
    moe_ffn(c);
}

}  // namespace deepinfer
