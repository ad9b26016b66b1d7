// The forward pass of DeepSeek-V4.1: one routine for prefill, decode and verification.
//
// forward() below reads like the model: embed, then per layer Engram, attention site, FFN site,
// then the head. The two sites are attention.cpp and block_pass.cpp, drafts are draft_pass.cpp; how
// each op computes is behind the op table.
#include "model/deepseek_v41.h"

#include <algorithm>
#include <utility>

#include "model/draft_pass.h"
#include "model/forward_pass.h"
#include "model/rope_frequencies.h"
#include "model/step_graphs.h"
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
    for (int64_t m = 0; limits.max_draft_seqs > 0 && m < c.num_nextn_predict_layers; ++m) {
        CacheGeometry::Layer stage;  // a window of target-derived rows, nothing else
        stage.window_row_bytes = window_row_bytes(c.head_dim);
        g.layers.push_back(stage);
    }
    return g;
}

}  // namespace

struct DeepseekV41::Impl {
    Impl(const ModelConfig& c, Backend& b, std::vector<int32_t> token_map, const ModelLimits& l)
        : config(c),
          backend(b),
          limits(l),
          inputs(config, limits, std::move(token_map)),
          draft_inputs(config, limits) {}

    const ModelConfig config;
    Backend& backend;
    const ModelLimits limits;
    CacheGeometry geometry;
    ModelWeights weights;
    StepInputs inputs;
    DraftInputs draft_inputs;
    Buffer input_memory, draft_input_memory, workspace_memory, constant_memory;
    Workspace workspace;
    Tensor freqs_window, freqs_global;  ///< f32 [rd/2]
    Tensor pre_onehot;  ///< acc [max_rows, hc]: (1, 0, 0, 0), the first site's incoming pre
    StepGraphs graphs;
    bool records = true;
};

DeepseekV41::DeepseekV41(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeepseekV41::~DeepseekV41() = default;
const ModelConfig& DeepseekV41::config() const {
    return impl_->config;
}
const ModelLimits& DeepseekV41::limits() const {
    return impl_->limits;
}
const CacheGeometry& DeepseekV41::cache_geometry() const {
    return impl_->geometry;
}
Backend& DeepseekV41::backend() {
    return impl_->backend;
}
void DeepseekV41::use_graphs(bool on) {
    impl_->records = on;
}

Result<std::unique_ptr<DeepseekV41>> DeepseekV41::load(const Checkpoint& checkpoint,
                                                       Backend& backend,
                                                       std::vector<int32_t> token_map,
                                                       const ModelLimits& requested) {
    const ModelConfig& c = checkpoint.config();
    ModelLimits limits = requested;
    if (limits.max_positions <= 0 || limits.max_positions > c.max_position_embeddings)
        limits.max_positions = c.max_position_embeddings;
    for (int64_t l : c.kv_source_layer_ids) DI_CHECK_EQ(limits.block_tokens % c.ratio(l), 0);
    limits.truncation = truncation_of(c, limits.truncation.mode, limits.truncation.keep);
    if (limits.truncation.mode == TruncationMode::kCompact)
        DI_CHECK_GE(limits.truncation.keep, c.sliding_window);
    if (!c.engram_layer_ids.empty() && static_cast<int64_t>(token_map.size()) < c.vocab_size) {
        return Status(StatusCode::kInvalidFile,
                      "the Engram token map has " + std::to_string(token_map.size()) +
                          " entries, expected vocab_size " + std::to_string(c.vocab_size));
    }
    if (limits.max_draft_seqs > 0) {
        if (c.num_nextn_predict_layers == 0) {
            return Status(StatusCode::kInvalidArgument,
                          "drafts are asked of a checkpoint without draft stages "
                          "(num_nextn_predict_layers is 0)");
        }
        if (!backend.ops().runs_drafts()) {
            return Status(
                StatusCode::kUnimplemented,
                "the backend " + backend.name() +
                    " has no draft_attention, add_rows and argmax_rows: it runs no drafts");
        }
    }
    auto impl = std::make_unique<Impl>(c, backend, std::move(token_map), limits);
    const DType acc = backend.ops().acc;
    impl->geometry = make_geometry(c, limits, acc);
    DI_RETURN_IF_ERROR(bind_weights(checkpoint, backend, impl->weights));
    if (limits.max_draft_seqs > 0)
        DI_RETURN_IF_ERROR(bind_dspark_weights(checkpoint, backend, impl->weights));

    Device& device = backend.device();
    Result<Buffer> inputs = device.allocate(impl->inputs.device_bytes());
    if (!inputs.ok()) return inputs.status();
    impl->input_memory = std::move(inputs).value();
    Result<HostBuffer> staging = device.allocate_host(impl->inputs.device_bytes());
    if (!staging.ok()) return staging.status();
    impl->inputs.bind(impl->input_memory.data(), std::move(staging).value());
    if (limits.max_draft_seqs > 0) {
        Result<Buffer> drafts = device.allocate(impl->draft_inputs.device_bytes());
        if (!drafts.ok()) return drafts.status();
        impl->draft_input_memory = std::move(drafts).value();
        impl->draft_inputs.bind(impl->draft_input_memory.data());
    }

    Result<Buffer> work = device.allocate(Workspace::carve(c, limits, acc, nullptr, nullptr));
    if (!work.ok()) return work.status();
    impl->workspace_memory = std::move(work).value();
    Workspace::carve(c, limits, acc, impl->workspace_memory.data(), &impl->workspace);

    // Constants: RoPE frequencies and the one-hot pre of the first site.
    const std::vector<float> window = layer_rope_frequencies(c, false),
                             global = layer_rope_frequencies(c, true);
    const size_t freq_bytes = window.size() * sizeof(float),
                 acc_bytes = static_cast<size_t>(dtype_bits(acc)) / 8;
    const int64_t onehot_rows = impl->workspace.pre.dim(0);
    std::vector<uint8_t> host(2 * freq_bytes +
                              static_cast<size_t>(onehot_rows * c.hc_mult) * acc_bytes);
    std::copy_n(reinterpret_cast<const uint8_t*>(window.data()), freq_bytes, host.data());
    std::copy_n(
        reinterpret_cast<const uint8_t*>(global.data()), freq_bytes, host.data() + freq_bytes);
    dispatch_acc(acc, [&](auto one) {
        one = 1;
        for (int64_t t = 0; t < onehot_rows; ++t) {
            std::copy_n(
                reinterpret_cast<const uint8_t*>(&one),
                sizeof one,
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
    impl->pre_onehot = Tensor(base + 2 * freq_bytes, acc, {onehot_rows, c.hc_mult});
    return std::unique_ptr<DeepseekV41>(new DeepseekV41(std::move(impl)));
}

PrefillTruncation DeepseekV41::truncation_of(const ModelConfig& c,
                                             TruncationMode mode,
                                             int64_t keep) {
    PrefillTruncation t;
    t.mode = mode;
    t.keep = keep;
    t.window = static_cast<int>(c.sliding_window);
    t.num_layers = static_cast<int>(c.num_hidden_layers);
    t.mid = c.kv_source_layer_ids.empty() ? 0 : static_cast<int>(c.kv_source_layer_ids.back());
    return t;
}

Tensor DeepseekV41::forward(const Batch& batch, const CacheView& cache, const ForwardHooks* hooks) {
    Impl& m = *impl_;
    Device& device = m.backend.device();
    const bool recorded = hooks == nullptr && m.records && device.records_graphs() &&
                          batch.num_rows() <= m.limits.max_graph_rows;
    m.inputs.build(batch, m.geometry, device, recorded);
    DI_CHECK_EQ(cache.layers.size(), m.geometry.layers.size());
    const auto step = [&] {
        ForwardPass pass{{m.config, m.backend.ops(), device.stream(), m.workspace, cache, hooks},
                         m.inputs,
                         m.geometry,
                         m.limits.truncation};
        pass.freqs_window = m.freqs_window;
        pass.freqs_global = m.freqs_global;
        pass.run(m.weights, m.pre_onehot);
    };
    if (recorded) {
        std::vector<int64_t> key = m.inputs.shapes();
        for (const CacheView::Layer& l : cache.layers) {
            for (const Tensor* t : {&l.window_ring, &l.kv_pool, &l.key_pool, &l.tail})
                key.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(t->data)));
        }
        m.graphs.run(device, key, step);
    } else {
        step();
    }
    return m.workspace.logits.rows(0, m.inputs.logit_rows.dim(0));
}

DraftResult DeepseekV41::draft(const DraftBatch& batch,
                               const CacheView& cache,
                               const DraftChooser& choose) {
    Impl& m = *impl_;
    DI_CHECK_MSG(m.limits.max_draft_seqs > 0, "draft() of a model loaded without drafting");
    DI_CHECK_EQ(cache.layers.size(), m.geometry.layers.size());
    m.draft_inputs.build(batch, m.backend.device());
    DraftPass pass{
        {m.config, m.backend.ops(), m.backend.device().stream(), m.workspace, cache, nullptr},
        m.draft_inputs};
    return pass.run(m.weights, m.freqs_window, m.pre_onehot, choose);
}

// ---- the pass
// ----------------------------------------------------------------------------------------

void ForwardPass::run(const ModelWeights& weights, const Tensor& pre_onehot) {
    now = &in.row_sets[0];
    taps = ws.taps;
    embed(weights.embed, in.token_ids, pre_onehot);
    if (in.image_embeds.dim(0) > 0) ops.place_rows(stream, in.image_embeds, in.image_row_ids, x);
    rope_tables();

    for (int l = 0; l < static_cast<int>(config.num_hidden_layers); ++l) {
        const LayerWeights& w = weights.layers[static_cast<size_t>(l)];
        if (config.engram_table(l) >= 0) engram(l, w.engram);
        record_tap(l, weights.dspark);
        attention_site(l, w);
        if (now->view.num_rows() == 0) break;  // prompt rows that the layers above do not need
        ffn_site(l,
                 w,
                 config.num_experts_per_tok,
                 now->image_rows,
                 follows(l + 1) ? &weights.layers[static_cast<size_t>(l) + 1].attn_norm : nullptr);
        observe("x", l, x);
    }

    const int64_t num_logits = in.logit_rows.dim(0);
    const Tensor h = ws.h.rows(0, num_logits), logits = ws.logits.rows(0, num_logits);
    if (num_logits == 0) return;
    const Tensor h_all = ws.h_all.rows(0, x.dim(0));  // [T, D]
    ops.mhc_collapse(stream, x, pre_in, h_all);
    ops.gather_rows(stream, h_all, in.logit_rows, h);
    ops.rms_norm(stream, h, weights.norm, eps(), h);
    ops.linear(stream, h, weights.head, logits);
}

bool ForwardPass::follows(int l) const {
    const auto& tapped = config.dspark_target_layer_ids;
    const bool stores_windows =
        drafting() && !tapped.empty() && *std::max_element(tapped.begin(), tapped.end()) == l;
    return l < static_cast<int>(config.num_hidden_layers) && config.engram_table(l) < 0 &&
           !stores_windows;
}

void ForwardPass::rope_tables() {
    const Tensor& positions = now->view.positions;
    const int64_t rows = positions.dim(0);
    ops.rope_table(stream, positions, freqs_window, ws.cs_window.rows(0, rows));
    ops.rope_table(stream, positions, freqs_global, ws.cs_global.rows(0, rows));
}

void ForwardPass::engram(int l, const EngramWeights& w) {
    const int64_t rows = x.dim(0);
    const Tensor ids = ws.engram_ids.rows(0, rows), e = ws.engram_e.rows(0, rows),
                 kv = ws.engram_kv.rows(0, rows);
    ops.engram_hash(stream, now->ngrams, w.multipliers, w.primes, w.offsets, ids);
    observe("engram_hash", l, ids);
    ops.engram_lookup(stream, w.table, ids, e);
    ops.quant_q8(stream, e, e);
    ops.linear(stream, e, w.wkv, kv);
    ops.engram_gate(stream, x, kv, w.q_weight, w.k_weight, now->image_rows, eps());
    observe("engram_out", l, x);
}

void ForwardPass::record_tap(int l, const DsparkWeights& w) {
    const auto& layers = config.dspark_target_layer_ids;
    if (layers.empty() || (!drafting() && !wants("main_hidden"))) return;
    for (size_t i = 0; i < layers.size(); ++i) {
        if (layers[i] != l) continue;
        const int64_t d = config.hidden_size, at = static_cast<int64_t>(i) * d;
        ops.streams_mean(stream, x, taps.rows(0, x.dim(0)).cols(at, at + d));
    }
    // At once: later layers may take fewer rows, the drafts' windows need all of these.
    if (l != *std::max_element(layers.begin(), layers.end())) return;
    if (wants("main_hidden")) observe("main_hidden", -1, taps.rows(0, x.dim(0)));
    if (drafting()) store_draft_windows(w);
}

void ForwardPass::store_draft_windows(const DsparkWeights& w) {
    const int64_t rows = x.dim(0);
    const Tensor tapped = taps.rows(0, rows), main_x = ws.u.rows(0, rows),
                 main_xq = ws.uq.rows(0, rows);
    ops.quant_q8(stream, tapped, tapped);
    ops.linear(stream, tapped, w.main_proj, main_x);
    ops.rms_norm(stream, main_x, w.main_norm, eps(), main_x);
    ops.quant_q8(stream, main_x, main_xq);  // one input for all stages, without their attn_norm
    for (size_t m = 0; m < w.stages.size(); ++m) {
        const size_t layer = static_cast<size_t>(config.num_hidden_layers) + m;
        project_window_rows(stream, w.stages[m], main_xq, ws.cs_window.rows(0, rows));
        ops.window_store(
            stream, ws.window_rows.rows(0, rows), now->view, cache.layers[layer].window_ring);
    }
}

}  // namespace deepinfer
