// The attention site: projections, compressor, indexer, sparse attention, grouped output (model
// spec 3.5-3.8).
#include <algorithm>
#include <cmath>

#include "model/forward_pass.h"

namespace deepinfer {

void ForwardPass::attention_site(int l, const LayerWeights& w) {
    const int64_t rows = x.dim(0);
    const int next = truncation.level_into(l + 1);
    if (in.row_sets.size() > 1 && next > truncation.level_into(l)) {
        return narrowing_attention_site(l, w, in.row_sets[static_cast<size_t>(next)]);
    }
    const Tensor u = ws.u.rows(0, rows);
    begin_site(l, "attn", w.hc_attn, w.attn_norm, u);

    // Everything in a layer with ratio > 0 rotates with the compressed table.
    const Tensor cs = (config.ratio(l) > 0 ? ws.cs_global : ws.cs_window).rows(0, rows);
    project_attention(l, w, cs);
    if (config.is_kv_source(l)) compress(l, w.compressor, u);
    if (config.is_index_source(l)) select(l, w.indexer, now->view, u, ws.qrq.rows(0, rows));
    const Tensor window_rows = ws.window_rows.rows(0, rows);
    attend(l, w, now->view, window_rows);
    finish_attention(l, w, cs);
    ops.window_store(
        stream, window_rows, now->view, cache.layers[static_cast<size_t>(l)].window_ring);
}

void ForwardPass::narrowing_attention_site(int l, const LayerWeights& w, const RowSet& next) {
    const RowSet& keys = *now;
    const int64_t rows = x.dim(0), kept = next.view.num_rows();
    const Tensor &cs_all = config.ratio(l) > 0 ? ws.cs_global : ws.cs_window,
                 window_rows = ws.window_rows.rows(0, rows);
    const Tensor& ring = cache.layers[static_cast<size_t>(l)].window_ring;
    const Tensor u = ws.u.rows(0, rows), uq = ws.uq.rows(0, rows);
    collapse(w.attn_norm, u, uq);
    project_window_rows(stream, w, uq, cs_all.rows(0, rows));
    if (config.is_kv_source(l)) compress(l, w.compressor, u);

    const Tensor own_u = ws.y.rows(0, kept), own_uq = ws.uq.rows(0, kept),
                 cs = cs_all.rows(0, kept);
    narrow(l, next, u, own_u);
    if (kept > 0) {
        mixes(l, "attn", w.hc_attn);
        ops.quant_q8(stream, own_u, own_uq);
        project_queries(l, w, own_uq, cs);
        // Rows by the smaller set, keys of this step by the larger one.
        BatchView queries = keys.view;
        queries.positions = next.view.positions;
        queries.row_seq = next.view.row_seq;
        if (config.is_index_source(l)) {
            select(l, w.indexer, queries, own_u, ws.qrq.rows(0, kept));
        }
        attend(l, w, queries, window_rows);
        finish_attention(l, w, cs);
    }
    ops.window_store(stream, window_rows, keys.view, ring);
}

void ForwardPass::narrow(int l, const RowSet& next, const Tensor& u, const Tensor& narrow_u) {
    const int64_t kept = next.view.num_rows();
    now = &next;
    const auto move = [&](Tensor* t, const Tensor& one, const Tensor& other) {
        const Tensor to = (t->data == one.data ? other : one).rows(0, kept);
        ops.gather_rows(stream, *t, next.from, to);
        *t = to;
    };
    move(&x, ws.x, ws.x_next);
    x_next = (x.data == ws.x.data ? ws.x_next : ws.x).rows(0, kept);
    if (kept == 0) return;
    ops.gather_rows(stream, u, next.from, narrow_u);
    if (lists && !config.is_index_source(l)) move(&lists, ws.lists, ws.lists_next);
    if (candidates) move(&candidates, ws.candidates, ws.candidates_next);
    // Taps so far, unless the last one has been used (record_tap).
    const auto& tapped = config.dspark_target_layer_ids;
    if (drafting() && !tapped.empty() && *std::min_element(tapped.begin(), tapped.end()) <= l &&
        l < *std::max_element(tapped.begin(), tapped.end())) {
        const Tensor& to = taps.data == ws.taps.data ? ws.taps_next : ws.taps;
        ops.gather_rows(stream, taps.rows(0, u.dim(0)), next.from, to.rows(0, kept));
        taps = to;
    }
    rope_tables();
}

void ForwardPass::attend(int l,
                         const LayerWeights& w,
                         const BatchView& queries,
                         const Tensor& window_rows) {
    const int64_t rows = queries.num_rows();
    join();  // the window rows
    AttentionCache attention;
    attention.step_rows = window_rows;
    attention.window_ring = cache.layers[static_cast<size_t>(l)].window_ring;
    attention.window = static_cast<int>(config.sliding_window);
    if (config.ratio(l) > 0) {
        const CacheView::Layer& source = cache.layers[static_cast<size_t>(config.kv_source(l))];
        attention.kv_pool = source.kv_pool;
        attention.entries_per_block = source.entries_per_block;
    }
    ops.sparse_attention(stream,
                         ws.q.rows(0, rows),
                         queries,
                         attention,
                         config.ratio(l) > 0 ? lists : Tensor(),
                         w.attn_sink,
                         attention_scale(),
                         ws.o.rows(0, rows));
}

void ForwardPass::compress(int l, const CompressorWeights& w, const Tensor& u) {
    const int64_t rows = u.dim(0), ratio = config.ratio(l), dh = config.head_dim,
                  di = config.index_head_dim;
    const EntryInputs& entries = in.entries.at(ratio);
    const int64_t n = entries.rows.dim(0);
    const CacheView::Layer& own = cache.layers[static_cast<size_t>(l)];
    const Tensor c = ws.c.rows(0, n);  // [E, dh]
    if (ratio == 1) {
        ops.linear(stream, u, w.wkv, c);  // every row is an entry
    } else {
        const Tensor z = ws.z.rows(0, rows), g = ws.g.rows(0, rows);
        ops.linear(stream, u, w.wkv, z);
        ops.linear(stream, u, w.wgate, g);
        ops.compress_pool(
            stream, z, g, now->view, own.tail, static_cast<int>(ratio), entries.rows, c);
        ops.compress_tail_store(stream, z, g, now->view, own.tail);
    }
    ops.rms_norm(stream, c, w.norm, eps(), c);
    observe("latent", l, c);

    // The index key is taken before the latent rotates.
    const Tensor cs = ws.cs_entry.rows(0, n), key = ws.index_key.rows(0, n);
    ops.rope_table(stream, entries.positions, freqs_global, cs);
    ops.linear(stream, c, w.index_wk, key);
    ops.rms_norm(stream, key, w.index_k_norm, eps(), key);
    ops.rope(stream, key.reshaped({n, 1, di}), cs, false);
    ops.index_key_store(stream, key, entries.slots, own.key_pool);
    ops.rope(stream, c.reshaped({n, 1, dh}), cs, false);
    ops.kv_entry_store(stream, c, entries.slots, own.kv_pool);
}

void ForwardPass::select(
    int l, const IndexerWeights& w, const BatchView& queries, const Tensor& u, const Tensor& qrq) {
    const int64_t rows = u.dim(0), heads = config.index_n_heads, di = config.index_head_dim,
                  ratio = config.ratio(l);
    const Tensor cs = ws.cs_global.rows(0, rows);
    const Tensor q = ws.index_q.rows(0, rows), hw = ws.head_weights.rows(0, rows);  // q [T, Hi, di]
    const Tensor q2 = q.reshaped({rows, heads * di});
    ops.linear(stream, qrq, w.wq_b, q2);
    ops.rope(stream, q, cs, false);
    ops.quant_q4m(stream, q2, q2);
    ops.linear(stream, u, w.weights_proj, hw);
    ops.scale_bf16(
        stream, hw, static_cast<float>(std::pow(static_cast<double>(di * heads), -0.5)), hw);

    const CacheView::Layer& source = cache.layers[static_cast<size_t>(config.kv_source(l))];
    const IndexCache keys{source.key_pool, source.entries_per_block, static_cast<int>(ratio)};
    const bool is_candidate_source = l == config.candidate_source_layer_id;
    const Tensor filter = is_candidate_source ? Tensor() : candidates;
    const int block_size = static_cast<int>(std::max<int64_t>(1, config.candidate_block_size));
    lists = ws.lists.rows(0, rows);
    if (is_candidate_source) candidates = ws.candidates.rows(0, rows);

    // Row tiles keep the score matrix small; a row's result does not depend on its tile.
    const int64_t n = std::max<int64_t>(1, in.max_end / ratio), tile = ws.score_tile_rows(n);
    for (int64_t begin = 0; begin < rows; begin += tile) {
        const int64_t end = std::min(rows, begin + tile);
        const BatchView view = batch_rows(queries, begin, end);
        const Tensor scores(ws.scores.data, ws.scores.dtype, {end - begin, n});
        ops.index_scores(stream,
                         q.rows(begin, end),
                         hw.rows(begin, end),
                         view,
                         keys,
                         filter ? filter.rows(begin, end) : Tensor(),
                         block_size,
                         scores);
        observe("index_score", l, begin, scores);
        if (is_candidate_source) {
            const Tensor blocks = candidates.rows(begin, end);
            ops.candidate_blocks(
                stream, scores, view.positions, static_cast<int>(ratio), block_size, blocks);
            replace("candidate_blocks", l, begin, blocks);
            observe("candidate_blocks", l, begin, blocks);
        }
        ops.topk_select(stream, scores, lists.rows(begin, end));
        replace("topk", l, begin, lists.rows(begin, end));
        observe("topk", l, begin, lists.rows(begin, end));
    }
}

}  // namespace deepinfer
