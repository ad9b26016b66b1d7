// bench ops: caches, compressor, indexer, attention. Sequences stand at a context where every list
// is full: the whole window and index_topk entries.
#include <algorithm>
#include <cmath>

#include "opbench/bench_context.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

constexpr int64_t kContext = 8192;  // keys that the first row of a step sees, its own included
constexpr int kBlockTokens = 128;

/// `rows` single-row sequences (a decode step), or one sequence of `rows` rows (a prompt chunk).
struct Step {
    BatchView view;

    static Step decode(BenchContext& c, int64_t rows) { return make(c, rows, 1); }
    static Step chunk(BenchContext& c, int64_t rows) { return make(c, 1, rows); }

  private:
    static Step make(BenchContext& c, int64_t seqs, int64_t rows_each) {
        const int64_t rows = seqs * rows_each;
        Step s;
        const auto field = [&](int64_t n) { return c.tensor(DType::kI32, {n}); };
        s.view.positions = field(rows);
        s.view.row_seq = field(rows);
        s.view.seq_rows = field(seqs + 1);
        s.view.seq_start = field(seqs);
        s.view.seq_slot = field(seqs);
        s.view.window_floor = field(seqs);
        const int64_t blocks = (kContext + rows_each + kBlockTokens - 1) / kBlockTokens;
        s.view.block_table = c.tensor(DType::kI32, {seqs, blocks});
        for (int64_t b = 0; b < seqs; ++b) {
            s.view.seq_start.ptr<int32_t>()[b] = kContext - 1;
            s.view.seq_slot.ptr<int32_t>()[b] = static_cast<int32_t>(b);
            s.view.seq_rows.ptr<int32_t>()[b + 1] = static_cast<int32_t>((b + 1) * rows_each);
            for (int64_t i = 0; i < blocks; ++i)
                s.view.block_table.row<int32_t>(b)[i] = static_cast<int32_t>(i);
            for (int64_t i = 0; i < rows_each; ++i) {
                s.view.positions.ptr<int32_t>()[b * rows_each + i] =
                    static_cast<int32_t>(kContext - 1 + i);
                s.view.row_seq.ptr<int32_t>()[b * rows_each + i] = static_cast<int32_t>(b);
            }
        }
        return s;
    }
};

/// Packed rows of random values, made by the op that writes them.
Tensor packed_windows(BenchContext& c, int64_t rows, int64_t dh) {
    const Tensor kv = c.tensor(DType::kBF16, {rows, dh});
    const Tensor out = c.bytes(rows, window_row_bytes(dh));
    c.ops().window_pack(c.stream(), kv, out);
    return out;
}

Tensor slots(BenchContext& c, int64_t n) {
    const Tensor t = c.tensor(DType::kI64, {n});
    for (int64_t i = 0; i < n; ++i) t.ptr<int64_t>()[i] = i;
    return t;
}

Tensor packed_entries(BenchContext& c, int64_t rows, int64_t dh) {
    const Tensor kv = c.tensor(DType::kBF16, {rows, dh});
    const Tensor out = c.bytes(rows, kv_entry_bytes(dh));
    c.ops().kv_entry_store(c.stream(), kv, slots(c, rows), out);
    return out;
}

Tensor packed_keys(BenchContext& c, int64_t rows, int64_t di) {
    const Tensor kv = c.tensor(DType::kBF16, {rows, di});
    const Tensor out = c.bytes(rows, index_key_bytes(di));
    c.ops().index_key_store(c.stream(), kv, slots(c, rows), out);
    return out;
}

void stores(BenchContext& c) {
    const ModelConfig& m = c.config();
    const int64_t dh = m.head_dim, di = m.index_head_dim;
    const auto& ops = c.ops();
    for (const int64_t rows : c.some_rows()) {
        const double n = static_cast<double>(rows);
        const double row_bytes = static_cast<double>(window_row_bytes(dh));
        const Tensor kv = c.tensor(DType::kBF16, {rows, dh}),
                     packed = c.bytes(rows, window_row_bytes(dh));
        if (c.wants("window_pack")) {
            c.measure({"window_pack",
                       std::to_string(dh),
                       "",
                       rows,
                       n * (2.0 * static_cast<double>(dh) + row_bytes),
                       0},
                      [&](int64_t) { ops.window_pack(c.stream(), kv, packed); });
        }
        if (c.wants("window_store")) {
            const Step step = Step::decode(c, rows);
            Tensor ring = c.bytes(rows * (m.sliding_window + 1), window_row_bytes(dh));
            ring = ring.reshaped({rows, m.sliding_window + 1, window_row_bytes(dh)});
            c.measure({"window_store", std::to_string(dh), "", rows, 2 * n * row_bytes, 0},
                      [&](int64_t) { ops.window_store(c.stream(), packed, step.view, ring); });
        }
        if (!m.kv_source_layer_ids.empty()) {
            const Tensor at = slots(c, rows);
            if (c.wants("kv_entry_store")) {
                const Tensor pool = c.bytes(rows, kv_entry_bytes(dh));
                c.measure({"kv_entry_store",
                           std::to_string(dh),
                           "",
                           rows,
                           n * static_cast<double>(2 * dh + kv_entry_bytes(dh)),
                           0},
                          [&](int64_t) { ops.kv_entry_store(c.stream(), kv, at, pool); });
            }
            if (c.wants("index_key_store")) {
                const Tensor key = c.tensor(DType::kBF16, {rows, di}),
                             pool = c.bytes(rows, index_key_bytes(di));
                c.measure({"index_key_store",
                           std::to_string(di),
                           "",
                           rows,
                           n * static_cast<double>(2 * di + index_key_bytes(di)),
                           0},
                          [&](int64_t) { ops.index_key_store(c.stream(), key, at, pool); });
            }
        }
        c.reset();
    }
}

void compressor(BenchContext& c) {
    const ModelConfig& m = c.config();
    if (std::count(m.compress_ratios.begin(), m.compress_ratios.end(), 2) == 0) return;
    const int64_t dh = m.head_dim;
    constexpr int64_t kTail = 3;
    const DType acc = c.ops().acc;
    for (const int64_t rows : c.some_rows()) {
        const Step step = Step::chunk(c, rows);
        const Tensor z = c.tensor(acc, {rows, dh}), g = c.tensor(acc, {rows, dh});
        const Tensor tail = c.tensor(acc, {1, kTail, 2, dh});
        const int64_t entries = (rows + 1) / 2;
        const Tensor entry_rows = c.tensor(DType::kI32, {entries}),
                     out = c.tensor(DType::kBF16, {entries, dh}, 0);
        for (int64_t e = 0; e < entries; ++e)
            entry_rows.ptr<int32_t>()[e] = static_cast<int32_t>(std::min(rows - 1, 2 * e + 1));
        if (c.wants("compress_pool")) {
            c.measure({"compress_pool",
                       "ratio 2, " + std::to_string(dh),
                       "",
                       rows,
                       static_cast<double>(entries * dh * (4 * 4 + 2)),
                       0},
                      [&](int64_t) {
                          c.ops().compress_pool(
                              c.stream(), z, g, step.view, tail, 2, entry_rows, out);
                      });
        }
        if (c.wants("compress_tail_store")) {
            c.measure(
                {"compress_tail_store",
                 std::to_string(dh),
                 "",
                 rows,
                 static_cast<double>(std::min(rows, kTail) * dh * 16),
                 0},
                [&](int64_t) { c.ops().compress_tail_store(c.stream(), z, g, step.view, tail); });
        }
        c.reset();
    }
}

/// Scores over kContext entries, candidate blocks and top-k lists of them.
void indexer(BenchContext& c) {
    const ModelConfig& m = c.config();
    if (m.index_source_layer_ids.empty()) return;
    if (!c.wants("index_scores") && !c.wants("candidate_blocks") && !c.wants("topk_select")) return;
    const int64_t heads = m.index_n_heads, di = m.index_head_dim, n = kContext;
    const auto& ops = c.ops();
    const int64_t most = std::min<int64_t>(c.some_rows().back(), 64);  // the engine's row tiles
    std::vector<int64_t> some;
    for (const int64_t rows : c.some_rows()) {
        if (some.empty() || std::min(rows, most) > some.back())
            some.push_back(std::min(rows, most));
    }
    IndexCache cache;
    cache.key_pool = packed_keys(c, kContext + 2 * kBlockTokens, di);
    cache.entries_per_block = kBlockTokens;
    const Tensor q = c.tensor(DType::kBF16, {most, heads, di}),
                 hw = c.tensor(DType::kBF16, {most, heads});
    const Tensor q2(q.data, DType::kBF16, {most, heads * di});
    ops.quant_q4m(c.stream(), q2, q2);
    const Tensor scores = c.tensor(ops.acc, {most, n});
    for (const int64_t rows : some) {
        const double r = static_cast<double>(rows), width = static_cast<double>(n);
        const Step step = Step::decode(c, rows);
        if (c.wants("index_scores")) {
            c.measure({"index_scores",
                       std::to_string(heads) + " heads x " + std::to_string(di) + ", " +
                           std::to_string(n) + " keys",
                       "",
                       rows,
                       r * width * static_cast<double>(index_key_bytes(di) + 4),
                       r * width * 2.0 * static_cast<double>(heads * di)},
                      [&](int64_t) {
                          ops.index_scores(c.stream(),
                                           q.rows(0, rows),
                                           hw.rows(0, rows),
                                           step.view,
                                           cache,
                                           Tensor(),
                                           8,
                                           scores.rows(0, rows));
                      });
        }
        if (c.wants("candidate_blocks") && m.candidate_topk_blocks > 0) {
            const Tensor blocks = c.tensor(DType::kI32, {rows, m.candidate_topk_blocks});
            c.measure({"candidate_blocks",
                       std::to_string(m.candidate_topk_blocks) + " of " +
                           std::to_string(n / m.candidate_block_size),
                       "",
                       rows,
                       r * 4 * width,
                       0},
                      [&](int64_t) {
                          ops.candidate_blocks(c.stream(),
                                               scores.rows(0, rows),
                                               step.view.positions,
                                               1,
                                               static_cast<int>(m.candidate_block_size),
                                               blocks);
                      });
        }
        if (c.wants("topk_select")) {
            const Tensor lists = c.tensor(DType::kI32, {rows, m.index_topk});
            c.measure({"topk_select",
                       std::to_string(m.index_topk) + " of " + std::to_string(n),
                       "",
                       rows,
                       r * 4 * width,
                       0},
                      [&](int64_t) { ops.topk_select(c.stream(), scores.rows(0, rows), lists); });
        }
    }
    c.reset();
}

/// Decode: every row its own sequence with its own list. Prefill: one sequence, lists that differ.
void attention(BenchContext& c) {
    const ModelConfig& m = c.config();
    if (!c.wants("sparse_attention")) return;
    const int64_t heads = m.num_attention_heads, dh = m.head_dim, w = m.sliding_window,
                  top = m.index_source_layer_ids.empty() ? 0 : m.index_topk;
    const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
    const Tensor entries = packed_entries(c, kContext + 8 * kBlockTokens, dh),
                 sink = c.tensor(DType::kF32, {heads});
    const int64_t most = c.most_rows();
    const Tensor q = c.tensor(DType::kBF16, {most, heads, dh}),
                 out = c.tensor(DType::kBF16, {most, heads, dh}, 0);
    const Tensor step_rows = packed_windows(c, most, dh);
    const int64_t ring_slots = std::min<int64_t>(most, 64);
    Tensor ring = packed_windows(c, ring_slots * (w + 1), dh);
    ring = ring.reshaped({ring_slots, w + 1, window_row_bytes(dh)});
    const Tensor lists = top > 0 ? c.tensor(DType::kI32, {most, top}) : Tensor();
    uint64_t state = 1;
    for (int64_t t = 0; t < most && top > 0; ++t) {
        // A random entry of every stretch: ascending, spread over the whole context.
        for (int64_t i = 0; i < top; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const int64_t stretch = kContext / top;
            lists.row<int32_t>(t)[i] = static_cast<int32_t>(
                i * stretch + static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(stretch)));
        }
    }
    for (const int64_t rows : c.rows()) {
        const bool prompt = rows > ring_slots;
        const Step step = prompt ? Step::chunk(c, rows) : Step::decode(c, rows);
        AttentionCache cache;
        cache.step_rows = step_rows.rows(0, rows);
        cache.window_ring = ring;
        cache.kv_pool = entries;
        cache.entries_per_block = kBlockTokens;
        cache.window = static_cast<int>(w);
        const double r = static_cast<double>(rows), keys = static_cast<double>(w + top);
        c.measure({"sparse_attention",
                   std::to_string(heads) + " heads x " + std::to_string(dh) + ", " +
                       std::to_string(w + top) + " keys" + (prompt ? ", one prompt" : ""),
                   "",
                   rows,
                   r * (static_cast<double>(w * window_row_bytes(dh) + top * kv_entry_bytes(dh)) +
                        4.0 * static_cast<double>(heads * dh)),
                   r * 4.0 * keys * static_cast<double>(heads * dh)},
                  [&](int64_t) {
                      c.ops().sparse_attention(c.stream(),
                                               q.rows(0, rows),
                                               step.view,
                                               cache,
                                               top > 0 ? lists.rows(0, rows) : Tensor(),
                                               sink,
                                               scale,
                                               out.rows(0, rows));
                  });
    }
    c.reset();
}

void draft_attention(BenchContext& c) {
    const ModelConfig& m = c.config();
    if (!c.wants("draft_attention") || !c.ops().runs_drafts() || m.num_nextn_predict_layers == 0)
        return;
    const int64_t heads = m.num_attention_heads, dh = m.head_dim, w = m.sliding_window,
                  block = m.dspark_block_size;
    const Tensor sink = c.tensor(DType::kF32, {heads});
    Tensor ring = packed_windows(c, w + 8, dh);
    ring = ring.reshaped({1, w + 8, window_row_bytes(dh)});
    const Tensor q = c.tensor(DType::kBF16, {block, heads, dh}),
                 out = c.tensor(DType::kBF16, {block, heads, dh}, 0);
    const Step step = Step::chunk(c, block);
    AttentionCache cache;
    cache.step_rows = packed_windows(c, block, dh);
    cache.window_ring = ring;
    cache.window = static_cast<int>(w);
    const double keys = static_cast<double>(w + block), r = static_cast<double>(block);
    c.measure({"draft_attention",
               std::to_string(heads) + " heads x " + std::to_string(dh) + ", " +
                   std::to_string(w + block) + " keys",
               "",
               block,
               keys * static_cast<double>(window_row_bytes(dh)) +
                   r * 4.0 * static_cast<double>(heads * dh),
               r * 4.0 * keys * static_cast<double>(heads * dh)},
              [&](int64_t) {
                  c.ops().draft_attention(c.stream(),
                                          q,
                                          step.view,
                                          cache,
                                          sink,
                                          1.0 / std::sqrt(static_cast<double>(dh)),
                                          out);
              });
    c.reset();
}

}  // namespace

void bench_attention_ops(BenchContext& c) {
    stores(c);
    compressor(c);
    indexer(c);
    attention(c);
    draft_attention(c);
}

}  // namespace deepinfer
