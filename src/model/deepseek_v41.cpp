// The forward pass of DeepSeek-V4.1: one routine for prefill, decode and verification.
//
// forward() below reads like the model: embed, then per layer Engram, attention site, FFN site, then the
// head. The two sites are attention.cpp and the ffn_site() here; how each op computes is behind the op table.
#include "model/deepseek_v41.h"

#include <utility>

#include "model/forward_pass.h"
#include "model/rope_frequencies.h"
#include "model/step_inputs.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

CacheGeometry make_geometry(const ModelConfig& c, const ModelLimits& limits, DType acc) {
    CacheGeometry g;
    g.block_tokens = limits.block_tokens;
    g.ring_len = static_cast<int>(c.sliding_window) + limits.ring_extra;
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        CacheGeometry::Layer layer;
        layer.ratio = static_cast<int>(c.ratio(l));
        layer.kv_source = c.is_kv_source(l);
        layer.window_row_bytes = window_row_bytes(c.head_dim);
        if (layer.kv_source) {
            layer.kv_entry_bytes = kv_entry_bytes(c.head_dim);
            layer.index_key_bytes = index_key_bytes(c.index_head_dim);
            if (layer.ratio > 1) layer.tail_row_bytes = 2 * c.head_dim * dtype_bits(acc) / 8;
            g.tail_len = std::max(g.tail_len, layer.ratio - 1 + limits.ring_extra);
        }
        g.layers.push_back(layer);
    }
    return g;
}

}  // namespace

struct DeepseekV41::Impl {
    Impl(const ModelConfig& c, Backend& b, std::vector<int32_t> token_map, const ModelLimits& l)
        : config(c), backend(b), limits(l), inputs(config, limits, std::move(token_map)) {}

    const ModelConfig config;
    Backend& backend;
    const ModelLimits limits;
    CacheGeometry geometry;
    ModelWeights weights;
    StepInputs inputs;
    Buffer input_memory, workspace_memory, constant_memory;
    Workspace workspace;
    Tensor freqs_window, freqs_global;  ///< f32 [rd/2]
    Tensor pre_onehot;                  ///< acc [max_rows, hc]: (1, 0, 0, 0), the first site's incoming pre
};

DeepseekV41::DeepseekV41(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeepseekV41::~DeepseekV41() = default;
const ModelConfig& DeepseekV41::config() const { return impl_->config; }
const ModelLimits& DeepseekV41::limits() const { return impl_->limits; }
const CacheGeometry& DeepseekV41::cache_geometry() const { return impl_->geometry; }
Backend& DeepseekV41::backend() { return impl_->backend; }

Result<std::unique_ptr<DeepseekV41>> DeepseekV41::load(const Checkpoint& checkpoint, Backend& backend,
                                                       std::vector<int32_t> token_map, const ModelLimits& requested) {
    const ModelConfig& c = checkpoint.config();
    ModelLimits limits = requested;
    if (limits.max_positions <= 0 || limits.max_positions > c.max_position_embeddings) limits.max_positions = c.max_position_embeddings;
    for (int64_t l : c.kv_source_layer_ids) DI_CHECK_EQ(limits.block_tokens % c.ratio(l), 0);
    if (!c.engram_layer_ids.empty() && static_cast<int64_t>(token_map.size()) < c.vocab_size) {
        return Status(StatusCode::kInvalidFile, "the Engram token map has " + std::to_string(token_map.size()) +
                                                    " entries, expected vocab_size " + std::to_string(c.vocab_size));
    }
    auto impl = std::make_unique<Impl>(c, backend, std::move(token_map), limits);
    const DType acc = backend.ops().acc;
    impl->geometry = make_geometry(c, limits, acc);
    DI_RETURN_IF_ERROR(bind_weights(checkpoint, backend, impl->weights));

    Device& device = backend.device();
    Result<Buffer> inputs = device.allocate(impl->inputs.device_bytes());
    if (!inputs.ok()) return inputs.status();
    impl->input_memory = std::move(inputs).value();
    impl->inputs.bind(impl->input_memory.data());

    Result<Buffer> work = device.allocate(Workspace::carve(c, limits, acc, nullptr, nullptr));
    if (!work.ok()) return work.status();
    impl->workspace_memory = std::move(work).value();
    Workspace::carve(c, limits, acc, impl->workspace_memory.data(), &impl->workspace);

    // Constants: RoPE frequencies and the one-hot pre of the first site.
    const std::vector<float> window = layer_rope_frequencies(c, false), global = layer_rope_frequencies(c, true);
    const size_t freq_bytes = window.size() * sizeof(float), acc_bytes = static_cast<size_t>(dtype_bits(acc)) / 8;
    std::vector<uint8_t> host(2 * freq_bytes + static_cast<size_t>(limits.max_rows * c.hc_mult) * acc_bytes);
    std::copy_n(reinterpret_cast<const uint8_t*>(window.data()), freq_bytes, host.data());
    std::copy_n(reinterpret_cast<const uint8_t*>(global.data()), freq_bytes, host.data() + freq_bytes);
    dispatch_acc(acc, [&](auto one) {
        one = 1;
        for (int64_t t = 0; t < limits.max_rows; ++t) {
            std::copy_n(reinterpret_cast<const uint8_t*>(&one), sizeof one,
                        host.data() + 2 * freq_bytes + static_cast<size_t>(t * c.hc_mult) * sizeof one);
        }
    });
    Result<Buffer> constants = device.allocate(host.size());
    if (!constants.ok()) return constants.status();
    impl->constant_memory = std::move(constants).value();
    auto* base = static_cast<uint8_t*>(impl->constant_memory.data());
    device.copy_to_device(device.stream(), base, host.data(), host.size());
    device.stream().synchronize();
    const auto half = static_cast<int64_t>(window.size());
    impl->freqs_window = Tensor(base, DType::kF32, {half});
    impl->freqs_global = Tensor(base + freq_bytes, DType::kF32, {half});
    impl->pre_onehot = Tensor(base + 2 * freq_bytes, acc, {limits.max_rows, c.hc_mult});
    return std::unique_ptr<DeepseekV41>(new DeepseekV41(std::move(impl)));
}

Tensor DeepseekV41::forward(const Batch& batch, const CacheView& cache, const ForwardHooks* hooks) {
    Impl& m = *impl_;
    m.inputs.build(batch, m.geometry, m.backend.device());
    ForwardPass pass{m.config, m.backend.ops(), m.backend.device().stream(), m.inputs, m.workspace, cache, m.geometry, hooks};
    return pass.run(m.weights, m.freqs_window, m.freqs_global, m.pre_onehot);
}

// ---- the pass ----------------------------------------------------------------------------------------

Tensor ForwardPass::run(const ModelWeights& weights, const Tensor& freqs_window, const Tensor& freqs_compressed, const Tensor& pre_onehot) {
    const int64_t rows = in.view.num_rows();
    x = ws.x.rows(0, rows);
    x_next = ws.x_next.rows(0, rows);
    pre_in = pre_onehot.rows(0, rows);
    ops.embed_streams(stream, weights.embed, in.token_ids, x);
    ops.rope_table(stream, in.view.positions, freqs_window, ws.cs_window.rows(0, rows));
    ops.rope_table(stream, in.view.positions, freqs_compressed, ws.cs_global.rows(0, rows));
    freqs_global = freqs_compressed;

    for (int l = 0; l < static_cast<int>(config.num_hidden_layers); ++l) {
        const LayerWeights& w = weights.layers[static_cast<size_t>(l)];
        if (config.engram_table(l) >= 0) engram(l, w.engram);
        record_tap(l);
        attention_site(l, w);
        ffn_site(l, w);
        observe("x", l, x);
    }

    if (wants("main_hidden")) observe("main_hidden", -1, ws.taps.rows(0, rows));
    const Tensor h_all = ws.h_all.rows(0, rows);  // [T, D]
    ops.mhc_collapse(stream, x, pre_in, h_all);
    const int64_t num_logits = in.logit_rows.dim(0);
    const Tensor h = ws.h.rows(0, num_logits), logits = ws.logits.rows(0, num_logits);
    ops.gather_rows(stream, h_all, in.logit_rows, h);
    ops.rms_norm(stream, h, weights.norm, eps(), h);
    ops.linear(stream, h, weights.head, logits);
    return logits;
}

void ForwardPass::engram(int l, const EngramWeights& w) {
    const int64_t rows = x.dim(0);
    const Tensor ids = ws.engram_ids.rows(0, rows), e = ws.engram_e.rows(0, rows), kv = ws.engram_kv.rows(0, rows);
    ops.engram_hash(stream, in.ngrams, w.multipliers, w.primes, w.offsets, ids);
    observe("engram_hash", l, ids);
    ops.engram_lookup(stream, w.table, ids, e);
    ops.quant_q8(stream, e, e);
    ops.linear(stream, e, w.wkv, kv);
    ops.engram_gate(stream, x, kv, w.q_weight, w.k_weight, in.image_rows, eps());
    observe("engram_out", l, x);
}

void ForwardPass::record_tap(int l) {
    const auto& taps = config.dspark_target_layer_ids;
    if (!wants("main_hidden")) return;
    for (size_t i = 0; i < taps.size(); ++i) {
        if (taps[i] != l) continue;
        const int64_t d = config.hidden_size, at = static_cast<int64_t>(i) * d;
        ops.streams_mean(stream, x, ws.taps.rows(0, x.dim(0)).cols(at, at + d));
    }
}

void ForwardPass::ffn_site(int l, const LayerWeights& w) {
    const int64_t rows = x.dim(0);
    const Tensor u = ws.u.rows(0, rows), y = ws.y.rows(0, rows);
    begin_site(l, "ffn", w.hc_ffn, w.ffn_norm, u);

    const Tensor scores = ws.router_scores.rows(0, rows), ids = ws.expert_ids.rows(0, rows), weights = ws.expert_weights.rows(0, rows);
    ops.router_scores(stream, u, w.gate, static_cast<float>(config.gate_temp), scoring_func(), scores);
    ops.router_topk(stream, scores, w.gate_bias, w.gate_bias_vl, in.image_rows, ids);
    replace("expert_ids", l, 0, ids);
    ops.router_weights(stream, scores, ids, config.norm_topk_prob, static_cast<float>(config.routed_scaling_factor), weights);
    observe("expert_ids", l, ids);
    observe("expert_weights", l, weights);
    ops.moe_ffn(stream, u, ids, weights, w.experts, w.shared, static_cast<float>(config.swiglu_limit), y);
    observe("moe_out", l, y);
    end_site(y);
}

void ForwardPass::begin_site(int l, const char* site, const HyperConnectionWeights& hc, const Tensor& norm, const Tensor& u) {
    const int64_t rows = x.dim(0);
    // The mixes of this site come from the un-collapsed streams; the collapse uses the PREVIOUS site's pre.
    pre = (pre_in.data == ws.pre.data ? ws.pre_in : ws.pre).rows(0, rows);
    post = ws.post.rows(0, rows);
    comb = ws.comb.rows(0, rows);
    ops.mhc_mixes(stream, x, hc.fn, hc.base, hc.scale, static_cast<int>(config.hc_sinkhorn_iters),
                  static_cast<float>(config.hc_eps), eps(), pre, post, comb);
    const bool attn = site[0] == 'a';
    observe(attn ? "attn_pre" : "ffn_pre", l, pre);
    observe(attn ? "attn_post" : "ffn_post", l, post);
    observe(attn ? "attn_comb" : "ffn_comb", l, comb);
    ops.mhc_collapse(stream, x, pre_in, u);
    ops.rms_norm(stream, u, norm, eps(), u);
}

void ForwardPass::end_site(const Tensor& y) {
    ops.mhc_expand(stream, y, x, post, comb, x_next);
    std::swap(x, x_next);
    pre_in = pre;
}

ScoringFunc ForwardPass::scoring_func() const {
    if (config.scoring_func == "sigmoid") return ScoringFunc::kSigmoid;
    if (config.scoring_func == "softmax") return ScoringFunc::kSoftmax;
    return ScoringFunc::kSqrtSoftplus;
}

}  // namespace deepinfer
