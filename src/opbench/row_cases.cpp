// bench ops: work on single rows. All of it is bound by memory, so its cost is bytes.
#include <algorithm>
#include <cmath>

#include "opbench/bench_context.h"

namespace deepinfer {
namespace {

/// A row op: `bytes_per_row` moved, `fixed` whatever the rows.
template <typename Run>
void row_op(BenchContext& c,
            const char* op,
            const std::string& shape,
            double bytes_per_row,
            double fixed,
            double flops_per_row,
            const Run& run) {
    for (const int64_t rows : c.some_rows()) {
        const double n = static_cast<double>(rows);
        c.measure({op, shape, "", rows, fixed + n * bytes_per_row, n * flops_per_row},
                  [&](int64_t) { run(rows); });
    }
    c.reset();
}

std::string times(int64_t a, int64_t b) {
    return std::to_string(a) + "x" + std::to_string(b);
}

void norms_and_quantizers(BenchContext& c) {
    const int64_t d = c.config().hidden_size, most = c.some_rows().back();
    const double row = 4.0 * static_cast<double>(d);
    const auto& ops = c.ops();
    if (c.wants("rms_norm")) {
        const Tensor x = c.tensor(DType::kBF16, {most, d}), w = c.tensor(DType::kF32, {d}),
                     out = c.tensor(DType::kBF16, {most, d}, 0);
        row_op(
            c, "rms_norm", std::to_string(d), row, 4.0 * static_cast<double>(d), 0, [&](int64_t n) {
                ops.rms_norm(c.stream(), x.rows(0, n), w, 1e-6f, out.rows(0, n));
            });
    }
    const auto cast = [&](const char* name, auto op) {
        if (!c.wants(name)) return;
        const Tensor x = c.tensor(DType::kBF16, {most, d}),
                     out = c.tensor(DType::kBF16, {most, d}, 0);
        row_op(c, name, std::to_string(d), row, 0, 0, [&](int64_t n) {
            op(c.stream(), x.rows(0, n), out.rows(0, n));
        });
    };
    cast("quant_q8", ops.quant_q8);
    cast("quant_q4m", ops.quant_q4m);
    if (c.wants("scale_bf16")) {
        const Tensor x = c.tensor(DType::kBF16, {most, d});
        row_op(c, "scale_bf16", std::to_string(d), row, 0, 0, [&](int64_t n) {
            ops.scale_bf16(c.stream(), x.rows(0, n), 0.5f, x.rows(0, n));
        });
    }
    if (c.wants("swiglu")) {
        const int64_t i = c.config().moe_intermediate_size;
        const Tensor gate = c.tensor(DType::kBF16, {most, i}),
                     up = c.tensor(DType::kBF16, {most, i}),
                     out = c.tensor(DType::kBF16, {most, i}, 0);
        row_op(c, "swiglu", std::to_string(i), 6.0 * static_cast<double>(i), 0, 0, [&](int64_t n) {
            ops.swiglu(c.stream(), gate.rows(0, n), up.rows(0, n), Tensor(), 10.0f, out.rows(0, n));
        });
    }
}

void rotations(BenchContext& c) {
    const ModelConfig& m = c.config();
    const int64_t heads = m.num_attention_heads, dh = m.head_dim, rd = m.qk_rope_head_dim,
                  most = c.some_rows().back();
    if (c.wants("rope_table")) {
        const Tensor positions = c.tensor(DType::kI32, {most}),
                     freqs = c.tensor(DType::kF32, {rd / 2}),
                     cs = c.tensor(c.ops().acc, {most, rd / 2, 2}, 0);
        for (int64_t t = 0; t < most; ++t)
            positions.ptr<int32_t>()[t] = static_cast<int32_t>(1000 + t);
        row_op(c,
               "rope_table",
               std::to_string(rd / 2),
               4.0 * static_cast<double>(rd),
               0,
               0,
               [&](int64_t n) {
                   c.ops().rope_table(c.stream(), positions.rows(0, n), freqs, cs.rows(0, n));
               });
    }
    if (c.wants("rope")) {
        const Tensor x = c.tensor(DType::kBF16, {most, heads, dh}),
                     cs = c.tensor(DType::kF32, {most, rd / 2, 2});
        row_op(c,
               "rope",
               times(heads, dh),
               static_cast<double>(heads * rd * 4 + rd * 4),
               0,
               0,
               [&](int64_t n) { c.ops().rope(c.stream(), x.rows(0, n), cs.rows(0, n), false); });
    }
}

void hyper_connections(BenchContext& c) {
    const ModelConfig& m = c.config();
    const int64_t hc = m.hc_mult, d = m.hidden_size, mix = (2 + hc) * hc,
                  most = c.some_rows().back();
    const double stream_bytes = 2.0 * static_cast<double>(hc * d),
                 row_bytes = 2.0 * static_cast<double>(d);
    const std::string shape = times(hc, d);
    const auto& ops = c.ops();
    if (c.wants("mhc_mixes")) {
        const Tensor x = c.tensor(DType::kBF16, {most, hc, d}),
                     fn = c.tensor(DType::kF32, {mix, hc * d}, 0.01),
                     base = c.tensor(DType::kF32, {mix}), scale = c.tensor(DType::kF32, {3}, 0.1),
                     pre = c.tensor(ops.acc, {most, hc}, 0),
                     post = c.tensor(ops.acc, {most, hc}, 0),
                     comb = c.tensor(ops.acc, {most, hc, hc}, 0);
        row_op(c,
               "mhc_mixes",
               shape,
               stream_bytes,
               4.0 * static_cast<double>(mix * hc * d),
               2.0 * static_cast<double>(mix * hc * d),
               [&](int64_t n) {
                   ops.mhc_mixes(c.stream(),
                                 x.rows(0, n),
                                 fn,
                                 base,
                                 scale,
                                 static_cast<int>(m.hc_sinkhorn_iters),
                                 static_cast<float>(m.hc_eps),
                                 1e-6f,
                                 pre.rows(0, n),
                                 post.rows(0, n),
                                 comb.rows(0, n));
               });
    }
    if (c.wants("mhc_collapse")) {
        const Tensor x = c.tensor(DType::kBF16, {most, hc, d}), pre = c.tensor(ops.acc, {most, hc}),
                     out = c.tensor(DType::kBF16, {most, d}, 0);
        row_op(c, "mhc_collapse", shape, stream_bytes + row_bytes, 0, 0, [&](int64_t n) {
            ops.mhc_collapse(c.stream(), x.rows(0, n), pre.rows(0, n), out.rows(0, n));
        });
    }
    if (c.wants("mhc_expand")) {
        const Tensor x = c.tensor(DType::kBF16, {most, hc, d}),
                     y = c.tensor(DType::kBF16, {most, d}), post = c.tensor(ops.acc, {most, hc}),
                     comb = c.tensor(ops.acc, {most, hc, hc}),
                     out = c.tensor(DType::kBF16, {most, hc, d}, 0);
        row_op(c, "mhc_expand", shape, 2 * stream_bytes + row_bytes, 0, 0, [&](int64_t n) {
            ops.mhc_expand(c.stream(),
                           y.rows(0, n),
                           x.rows(0, n),
                           post.rows(0, n),
                           comb.rows(0, n),
                           out.rows(0, n));
        });
    }
    if (c.wants("streams_mean")) {
        const Tensor x = c.tensor(DType::kBF16, {most, hc, d}),
                     out = c.tensor(DType::kBF16, {most, d}, 0);
        row_op(c, "streams_mean", shape, stream_bytes + row_bytes, 0, 0, [&](int64_t n) {
            ops.streams_mean(c.stream(), x.rows(0, n), out.rows(0, n));
        });
    }
}

void engram(BenchContext& c) {
    const ModelConfig& m = c.config();
    if (m.engram_layer_ids.empty()) return;
    const int64_t cols = m.engram_columns(), ed = m.engram_head_dim, hc = m.hc_mult,
                  d = m.hidden_size, grams = m.engram_max_ngram_size, most = c.some_rows().back();
    const auto& ops = c.ops();
    if (c.wants("engram_hash")) {
        const Tensor ngrams = c.tensor(DType::kI32, {most, grams}),
                     mult = c.tensor(DType::kI64, {grams}), primes = c.tensor(DType::kI64, {cols}),
                     offsets = c.tensor(DType::kI64, {cols}),
                     ids = c.tensor(DType::kI32, {most, cols});
        for (int64_t t = 0; t < most * grams; ++t)
            ngrams.ptr<int32_t>()[t] = static_cast<int32_t>(t % 6144);
        for (int64_t i = 0; i < grams; ++i) mult.ptr<int64_t>()[i] = 2654435761 + 2 * i;
        for (int64_t i = 0; i < cols; ++i) primes.ptr<int64_t>()[i] = 62501 + 2 * i;
        row_op(c,
               "engram_hash",
               times(grams, cols),
               4.0 * static_cast<double>(grams + cols),
               0,
               0,
               [&](int64_t n) {
                   ops.engram_hash(
                       c.stream(), ngrams.rows(0, n), mult, primes, offsets, ids.rows(0, n));
               });
    }
    if (c.wants("engram_lookup")) {
        const int64_t table_rows = 500'000;  // far beyond the caches: every lookup is a miss
        const Tensor codes = c.bytes(table_rows, ed), scales = c.bytes(table_rows, ed / 32),
                     ids = c.tensor(DType::kI32, {most, cols}),
                     out = c.tensor(DType::kBF16, {most, cols * ed}, 0);
        for (int64_t i = 0; i < table_rows * ed; ++i)
            codes.ptr<uint8_t>()[i] = static_cast<uint8_t>(i % 113);
        for (int64_t i = 0; i < table_rows * ed / 32; ++i) scales.ptr<uint8_t>()[i] = 120;
        WeightMatrix table;
        table.dtype = DType::kFP8E4M3;
        table.n = table_rows;
        table.k = ed;
        table.weight = codes.data;
        table.scale = scales.ptr<uint8_t>();
        uint64_t state = 1;
        row_op(c,
               "engram_lookup",
               std::to_string(cols) + " rows of " + std::to_string(ed),
               static_cast<double>(cols) * static_cast<double>(ed + ed / 32 + 2 * ed),
               0,
               0,
               [&](int64_t n) {
                   for (int64_t i = 0; i < n * cols; ++i) {
                       state = state * 6364136223846793005u + 1442695040888963407u;
                       ids.ptr<int32_t>()[i] = static_cast<int32_t>((state >> 33) % table_rows);
                   }
                   ops.engram_lookup(c.stream(), table, ids.rows(0, n), out.rows(0, n));
               });
    }
    if (c.wants("engram_gate")) {
        const Tensor x = c.tensor(DType::kBF16, {most, hc, d}),
                     kv = c.tensor(DType::kBF16, {most, (hc + 1) * d}),
                     q = c.tensor(DType::kF32, {hc, d}), k = c.tensor(DType::kF32, {hc, d});
        row_op(c,
               "engram_gate",
               times(hc, d),
               static_cast<double>(d) * static_cast<double>(4 * hc + 2 * (hc + 1)),
               8.0 * static_cast<double>(hc * d),
               0,
               [&](int64_t n) {
                   ops.engram_gate(c.stream(), x.rows(0, n), kv.rows(0, n), q, k, Tensor(), 1e-6f);
               });
    }
}

void routing(BenchContext& c) {
    const ModelConfig& m = c.config();
    const int64_t experts = m.n_routed_experts, top = m.num_experts_per_tok,
                  most = c.some_rows().back();
    const auto& ops = c.ops();
    const std::string shape = "top-" + std::to_string(top) + " of " + std::to_string(experts);
    if (c.wants("router_topk")) {
        const Tensor scores = c.tensor(ops.acc, {most, experts}),
                     bias = c.tensor(DType::kF32, {experts}, 0),
                     ids = c.tensor(DType::kI32, {most, top});
        row_op(c,
               "router_topk",
               shape,
               4.0 * static_cast<double>(experts + top),
               0,
               0,
               [&](int64_t n) {
                   ops.router_topk(
                       c.stream(), scores.rows(0, n), bias, bias, Tensor(), ids.rows(0, n));
               });
    }
    if (c.wants("router_weights")) {
        const Tensor scores = c.tensor(ops.acc, {most, experts}),
                     ids = c.tensor(DType::kI32, {most, top}),
                     weights = c.tensor(ops.acc, {most, top}, 0);
        for (int64_t i = 0; i < most * top; ++i)
            ids.ptr<int32_t>()[i] = static_cast<int32_t>(i % top);
        row_op(c, "router_weights", shape, 12.0 * static_cast<double>(top), 0, 0, [&](int64_t n) {
            ops.router_weights(
                c.stream(), scores.rows(0, n), ids.rows(0, n), true, 1.5f, weights.rows(0, n));
        });
    }
}

void gathers(BenchContext& c) {
    const ModelConfig& m = c.config();
    const int64_t hc = m.hc_mult, d = m.hidden_size, most = c.some_rows().back(),
                  vocab = std::min<int64_t>(m.vocab_size, 8192);
    const auto& ops = c.ops();
    const Tensor ids = c.tensor(DType::kI32, {most});
    for (int64_t t = 0; t < most; ++t) ids.ptr<int32_t>()[t] = static_cast<int32_t>(t * 37 % vocab);
    if (c.wants("embed_streams")) {
        const Tensor table = c.tensor(DType::kBF16, {vocab, d}),
                     out = c.tensor(DType::kBF16, {most, hc, d}, 0);
        WeightMatrix w;
        w.n = vocab;
        w.k = d;
        w.weight = table.data;
        for (const int64_t rows : c.some_rows()) {
            c.measure({"embed_streams",
                       times(hc, d),
                       "bf16",
                       rows,
                       2.0 * static_cast<double>(rows * d * (hc + 1)),
                       0},
                      [&](int64_t) {
                          ops.embed_streams(c.stream(), w, ids.rows(0, rows), out.rows(0, rows));
                      });
        }
    }
    if (c.wants("gather_rows")) {
        const Tensor src = c.tensor(DType::kBF16, {vocab, d}),
                     out = c.tensor(DType::kBF16, {most, d}, 0);
        for (const int64_t rows : c.some_rows()) {
            c.measure({"gather_rows",
                       std::to_string(d),
                       "",
                       rows,
                       4.0 * static_cast<double>(rows * d),
                       0},
                      [&](int64_t) {
                          ops.gather_rows(c.stream(), src, ids.rows(0, rows), out.rows(0, rows));
                      });
        }
    }
    c.reset();
}

void sampling(BenchContext& c) {
    const int64_t vocab = c.config().vocab_size;
    const auto& ops = c.ops();
    if (!ops.runs_drafts()) return;
    const int64_t most = std::min<int64_t>(c.some_rows().back(), 64);
    const auto at_most = [&](int64_t rows) { return std::min(rows, most); };
    if (c.wants("add_rows")) {
        const Tensor x = c.tensor(ops.acc, {most, vocab}), out = c.tensor(ops.acc, {most, vocab});
        for (const int64_t rows : c.some_rows()) {
            const int64_t n = at_most(rows);
            c.measure({"add_rows",
                       std::to_string(vocab),
                       "",
                       n,
                       12.0 * static_cast<double>(n * vocab),
                       0},
                      [&](int64_t) { ops.add_rows(c.stream(), x.rows(0, n), out.rows(0, n)); });
        }
    }
    if (c.wants("argmax_rows")) {
        const Tensor x = c.tensor(ops.acc, {most, vocab}), ids = c.tensor(DType::kI32, {most});
        for (const int64_t rows : c.some_rows()) {
            const int64_t n = at_most(rows);
            c.measure({"argmax_rows",
                       std::to_string(vocab),
                       "",
                       n,
                       4.0 * static_cast<double>(n * vocab),
                       0},
                      [&](int64_t) { ops.argmax_rows(c.stream(), x.rows(0, n), ids.rows(0, n)); });
        }
    }
    c.reset();
}

}  // namespace

void bench_row_ops(BenchContext& c) {
    norms_and_quantizers(c);
    rotations(c);
    hyper_connections(c);
    engram(c);
    routing(c);
    gathers(c);
    sampling(c);
}

std::vector<std::string> benched_ops() {
    return {"linear",          "grouped_o_proj",
            "router_scores",   "moe_ffn",
            "window_pack",     "window_store",
            "kv_entry_store",  "index_key_store",
            "compress_pool",   "compress_tail_store",
            "index_scores",    "candidate_blocks",
            "topk_select",     "sparse_attention",
            "draft_attention", "rms_norm",
            "quant_q8",        "quant_q4m",
            "scale_bf16",      "swiglu",
            "rope_table",      "rope",
            "mhc_mixes",       "mhc_collapse",
            "mhc_expand",      "streams_mean",
            "engram_hash",     "engram_lookup",
            "engram_gate",     "router_topk",
            "router_weights",  "embed_streams",
            "gather_rows",     "add_rows",
            "argmax_rows"};
}

}  // namespace deepinfer
