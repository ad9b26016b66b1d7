#include "model/draft_pass.h"

#include <algorithm>

namespace deepinfer {

// ---- inputs
// ------------------------------------------------------------------------------------------

DraftInputs::DraftInputs(const ModelConfig& config, const ModelLimits& limits)
    : config_(config), max_seqs_(limits.max_draft_seqs) {
    const int64_t rows = max_seqs_ * config.dspark_block_size;
    // By row: positions, row_seq, token_ids. By sequence: start, slot, floor, anchor, first row (+
    // 1).
    if (max_seqs_ > 0) staging_.resize(static_cast<size_t>(3 * rows + 5 * max_seqs_ + 1));
}

void DraftInputs::build(const DraftBatch& batch, Device& dev) {
    const int64_t seqs = static_cast<int64_t>(batch.seqs.size());
    block = batch.block_size == 0 ? config_.dspark_block_size : batch.block_size;
    DI_CHECK_GE(block, 1);
    DI_CHECK_LE(block, config_.dspark_block_size);
    DI_CHECK_LE(seqs, max_seqs_);
    const int64_t rows = seqs * block;
    int64_t used = 0;
    const auto take = [&](Tensor* t, int64_t n) {
        int32_t* host = staging_.data() + used;
        *t = Tensor(device_ + used, DType::kI32, {n});
        used += n;
        return host;
    };
    int32_t* positions = take(&view.positions, rows);
    int32_t* row_seq = take(&view.row_seq, rows);
    int32_t* tokens = take(&token_ids, rows);
    int32_t* seq_rows = take(&view.seq_rows, seqs + 1);
    int32_t* start = take(&view.seq_start, seqs);
    int32_t* slot = take(&view.seq_slot, seqs);
    int32_t* floor = take(&view.window_floor, seqs);
    int32_t* anchor = take(&anchors, seqs);
    for (int64_t r = 0; r < seqs; ++r) {
        const DraftSequence& s = batch.seqs[static_cast<size_t>(r)];
        DI_CHECK(s.position >= 0 && s.anchor >= 0 && s.anchor < config_.vocab_size);
        seq_rows[r] = static_cast<int32_t>(r * block);
        start[r] = s.position;
        slot[r] = s.slot;
        floor[r] = s.window_floor;
        anchor[r] = s.anchor;
        for (int64_t i = 0; i < block; ++i) {
            const int64_t t = r * block + i;
            positions[t] = s.position + static_cast<int32_t>(i);
            row_seq[t] = static_cast<int32_t>(r);
            tokens[t] = i == 0 ? s.anchor : static_cast<int32_t>(config_.dspark_noise_token_id);
        }
    }
    seq_rows[seqs] = static_cast<int32_t>(rows);
    dev.copy_to_device(
        dev.stream(), device_, staging_.data(), static_cast<size_t>(used) * sizeof(int32_t));
}

// ---- the pass
// ----------------------------------------------------------------------------------------

DraftResult DraftPass::run(const ModelWeights& weights,
                           const Tensor& freqs_window,
                           const Tensor& pre_onehot,
                           const DraftChooser& choose) {
    embed(weights.embed, in.token_ids, pre_onehot);
    const Tensor cs = ws.cs_window.rows(0, x.dim(0));  // stages rotate like window-only layers
    ops.rope_table(stream, in.view.positions, freqs_window, cs);
    for (size_t m = 0; m < weights.dspark.stages.size(); ++m) {
        const bool last = m + 1 == weights.dspark.stages.size();
        stage(static_cast<int>(m),
              weights.dspark.stages[m],
              cs,
              last ? nullptr : &weights.dspark.stages[m + 1].attn_norm);
    }
    return heads(weights, choose);
}

void DraftPass::stage(int m, const LayerWeights& w, const Tensor& cs, const Tensor* next_norm) {
    const int64_t rows = x.dim(0);
    const int l = static_cast<int>(config.num_hidden_layers) + m;
    begin_site(l, "attn", w.hc_attn, w.attn_norm, ws.u.rows(0, rows));
    project_attention(l, w, cs);
    join();  // the window rows
    AttentionCache attention;
    attention.step_rows = ws.window_rows.rows(0, rows);
    attention.window_ring = cache.layers[static_cast<size_t>(l)].window_ring;
    attention.window = static_cast<int>(config.sliding_window);
    ops.draft_attention(stream,
                        ws.q.rows(0, rows),
                        in.view,
                        attention,
                        w.attn_sink,
                        attention_scale(),
                        ws.o.rows(0, rows));
    finish_attention(l, w, cs);
    ffn_site(l,
             w,
             config.dspark_num_experts_per_tok,
             Tensor(),
             next_norm);  // drafts are text: never bias_vl
}

DraftResult DraftPass::heads(const ModelWeights& weights, const DraftChooser& choose) {
    const DsparkWeights& d = weights.dspark;
    const int64_t rows = x.dim(0), block = in.block, seqs = rows / block, vocab = config.vocab_size;
    const DType acc = ops.acc;
    const Tensor hidden = ws.h_all.rows(0, rows), normed = ws.u.rows(0, rows);
    ops.mhc_collapse(stream, x, pre_in, hidden);
    ops.rms_norm(stream, hidden, d.norm, eps(), normed);
    ops.linear(stream, normed, weights.head, ws.draft_base.rows(0, rows));
    // The confidence reads the collapsed state before its norm; linear, so its two inputs go in one
    // by one.
    ops.linear(stream, hidden, d.confidence_hidden, ws.confidence_hidden.rows(0, rows));

    DraftResult out;
    out.tokens = Tensor(ws.draft_tokens.data, DType::kI32, {block, seqs});
    out.confidence = Tensor(ws.draft_confidence.data, acc, {block, seqs});
    const Tensor e = ws.markov_e.rows(0, seqs), logits = ws.draft_logits.rows(0, seqs);
    const Tensor e2 = e.reshaped({seqs, config.dspark_markov_rank});
    for (int64_t k = 0; k < block; ++k) {
        // Position k of every block: rows k, k + block, …
        Tensor base = ws.draft_base.rows(k, k + seqs),
               hidden_part = ws.confidence_hidden.rows(k, k + seqs);
        base.stride[0] = block * vocab;
        hidden_part.stride[0] = block;
        const Tensor before = k == 0 ? in.anchors : out.tokens.rows(k - 1, k).reshaped({seqs});
        const Tensor tokens = out.tokens.rows(k, k + 1).reshaped({seqs});
        const Tensor confidence = out.confidence.rows(k, k + 1).reshaped({seqs, 1});
        ops.embed_streams(stream, d.markov_embed, before, e);
        ops.linear(stream, e2, d.markov_head, logits);
        ops.add_rows(stream, base, logits);
        ops.linear(stream, e2, d.confidence_markov, confidence);
        ops.add_rows(stream, hidden_part, confidence);
        if (choose) {
            choose(static_cast<int>(k), logits, tokens);
        } else {
            ops.argmax_rows(stream, logits, tokens);
        }
    }
    return out;
}

}  // namespace deepinfer
