#include "model/block_pass.h"

#include <cmath>
#include <utility>

namespace deepinfer {

void BlockPass::embed(const WeightMatrix& table,
                      const Tensor& token_ids,
                      const Tensor& pre_onehot) {
    const int64_t rows = token_ids.dim(0);
    x = ws.x.rows(0, rows);
    x_next = ws.x_next.rows(0, rows);
    pre_in = pre_onehot.rows(0, rows);
    ops.embed_streams(stream, table, token_ids, x);
}

void BlockPass::begin_site(int l,
                           const char* site,
                           const HyperConnectionWeights& hc,
                           const Tensor& norm,
                           const Tensor& u) {
    mixes(l, site, hc);
    collapse(norm, u, site[0] == 'a' ? ws.uq.rows(0, x.dim(0)) : Tensor());
}

void BlockPass::mixes(int l, const char* site, const HyperConnectionWeights& hc) {
    const int64_t rows = x.dim(0);
    pre = (pre_in.data == ws.pre.data ? ws.pre_in : ws.pre).rows(0, rows);
    post = ws.post.rows(0, rows);
    comb = ws.comb.rows(0, rows);
    ops.mhc_mixes(beside(),
                  x,
                  hc.fn,
                  hc.base,
                  hc.scale,
                  static_cast<int>(config.hc_sinkhorn_iters),
                  static_cast<float>(config.hc_eps),
                  eps(),
                  pre,
                  post,
                  comb);
    const bool attn = site[0] == 'a';
    observe(attn ? "attn_pre" : "ffn_pre", l, pre);
    observe(attn ? "attn_post" : "ffn_post", l, post);
    observe(attn ? "attn_comb" : "ffn_comb", l, comb);
}

void BlockPass::collapse(const Tensor& norm, const Tensor& u, const Tensor& uq) {
    if (std::exchange(input_ready, false)) return;
    ops.mhc_collapse(stream, x, pre_in, u);
    if (uq) return norm_q8(u, norm, u, uq);
    ops.rms_norm(stream, u, norm, eps(), u);
}

void BlockPass::end_site(const Tensor& y, const Tensor* next_norm, bool next_attends) {
    const int64_t rows = x.dim(0);
    join();  // the mixes
    input_ready = next_norm != nullptr && ops.mhc_step != nullptr;
    if (input_ready) {
        ops.mhc_step(stream,
                     y,
                     x,
                     post,
                     comb,
                     pre,
                     *next_norm,
                     eps(),
                     x_next,
                     ws.u.rows(0, rows),
                     next_attends ? ws.uq.rows(0, rows) : Tensor());
    } else {
        ops.mhc_expand(stream, y, x, post, comb, x_next);
    }
    std::swap(x, x_next);
    pre_in = pre;
}

void BlockPass::norm_q8(const Tensor& in,
                        const Tensor& weight,
                        const Tensor& out,
                        const Tensor& outq) {
    if (ops.rms_norm_q8 != nullptr) return ops.rms_norm_q8(stream, in, weight, eps(), out, outq);
    const Tensor normed = out ? out : outq;
    ops.rms_norm(stream, in, weight, eps(), normed);
    ops.quant_q8(stream, normed, outq);
}

void BlockPass::project_attention(int l, const LayerWeights& w, const Tensor& cs) {
    const Tensor uq = ws.uq.rows(0, x.dim(0));
    // In cache format: the token itself sees the quantized value too.
    project_window_rows(beside(), w, uq, cs);
    project_queries(l, w, uq, cs);
}

void BlockPass::project_queries(int l, const LayerWeights& w, const Tensor& uq, const Tensor& cs) {
    const int64_t rows = x.dim(0), heads = config.num_attention_heads, dh = config.head_dim;
    const Tensor qr = ws.qr.rows(0, rows), qrq = ws.qrq.rows(0, rows),
                 q = ws.q.rows(0, rows);  // q [T, H, dh]
    ops.linear(stream, uq, w.wq_a, qr);
    norm_q8(qr, w.q_norm, Tensor(), qrq);
    ops.linear(stream, qrq, w.wq_b, q.reshaped({rows, heads * dh}));
    ops.rope(stream, q, cs, false);
    observe("q", l, q);
}

void BlockPass::project_window_rows(Stream& s,
                                    const LayerWeights& w,
                                    const Tensor& uq,
                                    const Tensor& cs) {
    const int64_t rows = uq.dim(0), dh = config.head_dim;
    const Tensor kv = ws.kv.rows(0, rows);
    ops.linear(s, uq, w.wkv, kv);
    ops.rms_norm(s, kv, w.kv_norm, eps(), kv);
    ops.rope(s, kv.reshaped({rows, 1, dh}), cs, false);
    ops.window_pack(s, kv, ws.window_rows.rows(0, rows));
}

void BlockPass::finish_attention(int l, const LayerWeights& w, const Tensor& cs) {
    const int64_t rows = x.dim(0), heads = config.num_attention_heads, dh = config.head_dim;
    const Tensor o = ws.o.rows(0, rows), og = ws.og.rows(0, rows), y = ws.y.rows(0, rows);
    ops.rope(stream, o, cs, true);
    observe("attn_o", l, o);
    ops.grouped_o_proj(
        stream, o.reshaped({rows, heads * dh}), w.wo_a, static_cast<int>(config.o_groups), og);
    ops.quant_q8(stream, og, og);
    ops.linear(stream, og, w.wo_b, y);
    observe("attn_out", l, y);
    end_site(y, &w.ffn_norm, false);
}

void BlockPass::ffn_site(int l,
                         const LayerWeights& w,
                         int64_t top_k,
                         const Tensor& image_rows,
                         const Tensor* next_norm) {
    const int64_t rows = x.dim(0), experts = w.gate.n;
    const Tensor u = ws.u.rows(0, rows), y = ws.y.rows(0, rows);
    begin_site(l, "ffn", w.hc_ffn, w.ffn_norm, u);

    // The backbone and the draft stages route over different numbers of experts.
    const Tensor scores(ws.router_scores.data, ws.router_scores.dtype, {rows, experts});
    const Tensor ids(ws.expert_ids.data, ws.expert_ids.dtype, {rows, top_k});
    const Tensor weights(ws.expert_weights.data, ws.expert_weights.dtype, {rows, top_k});
    ops.router_scores(
        stream, u, w.gate, static_cast<float>(config.gate_temp), scoring_func(), scores);
    ops.router_topk(stream, scores, w.gate_bias, w.gate_bias_vl, image_rows, ids);
    replace("expert_ids", l, 0, ids);
    ops.router_weights(stream,
                       scores,
                       ids,
                       config.norm_topk_prob,
                       static_cast<float>(config.routed_scaling_factor),
                       weights);
    observe("expert_ids", l, ids);
    observe("expert_weights", l, weights);
    ops.moe_ffn(
        stream, u, ids, weights, w.experts, w.shared, static_cast<float>(config.swiglu_limit), y);
    observe("moe_out", l, y);
    end_site(y, next_norm, true);
}

double BlockPass::attention_scale() const {
    return 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

ScoringFunc BlockPass::scoring_func() const {
    if (config.scoring_func == "sigmoid") return ScoringFunc::kSigmoid;
    if (config.scoring_func == "softmax") return ScoringFunc::kSoftmax;
    return ScoringFunc::kSqrtSoftplus;
}

}  // namespace deepinfer
