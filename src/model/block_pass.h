// BlockPass: what the backbone's layers and the DSpark stages have in common.
//
// The two sites of a block around whatever attends: mixes, collapse, projections, grouped output,
// MoE, expand (model spec 3.4, 3.5, 3.8, 3.9). ForwardPass (forward_pass.h) and DraftPass
// (draft_pass.h) add their attention and their heads.
#pragma once

#include "model/deepseek_v41.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

struct BlockPass {
    const ModelConfig& config;
    const OpTable& ops;
    Stream& stream;
    Workspace& ws;
    const CacheView& cache;
    const ForwardHooks* hooks;

    // Values that travel from site to site.
    Tensor x{}, x_next{};          ///< bf16 [T, hc, D] residual streams
    Tensor pre_in{};               ///< acc [T, hc] pre of the previous site
    Tensor pre{}, post{}, comb{};  ///< mixes of the current site
    bool input_ready = false;      ///< end_site has prepared the next site's ws.u and ws.uq

    /// Streams of the given tokens, and the one-hot pre of the first site.
    void embed(const WeightMatrix& table, const Tensor& token_ids, const Tensor& pre_onehot);

    /// Mixes of a site, from the un-collapsed streams; beside what follows, until join().
    void mixes(int l, const char* site, const HyperConnectionWeights& hc);
    /// Normed input u of a site from the streams, collapsed with the PREVIOUS site's pre, and its
    /// q8 form uq unless empty.
    void collapse(const Tensor& norm, const Tensor& u, const Tensor& uq);
    /// Both.
    void begin_site(int l,
                    const char* site,
                    const HyperConnectionWeights& hc,
                    const Tensor& norm,
                    const Tensor& u);
    /// Adds the sublayer's output to the streams; with the next site's norm weight also prepares
    /// its normed input (ws.u, and ws.uq if it attends), which begin_site then finds.
    void end_site(const Tensor& y, const Tensor* next_norm, bool next_attends);
    /// out = rms_norm(in) unless empty, outq = its q8 form.
    void norm_q8(const Tensor& in, const Tensor& weight, const Tensor& out, const Tensor& outq);

    /// From u = ws.u: queries in ws.q, their low-rank form in ws.qrq, packed window rows in
    /// ws.window_rows.
    void project_attention(int l, const LayerWeights& w, const Tensor& cs);
    /// Its first part: ws.q and ws.qrq from the quantized input.
    void project_queries(int l, const LayerWeights& w, const Tensor& uq, const Tensor& cs);
    /// kv = rms(lin8(uq)) rotated and packed: the window rows of a block, or those of its context.
    void project_window_rows(Stream& s, const LayerWeights& w, const Tensor& uq, const Tensor& cs);
    /// From the attended ws.o: inverse rotation, wo_a, wo_b, and the end of the site.
    void finish_attention(int l, const LayerWeights& w, const Tensor& cs);
    /// The whole FFN site. `image_rows` may be empty, `next_norm` null (end_site).
    void ffn_site(int l,
                  const LayerWeights& w,
                  int64_t top_k,
                  const Tensor& image_rows,
                  const Tensor* next_norm);

    /// Where work goes that nothing needs before join(): a second queue, unless somebody watches.
    Stream& beside() const { return hooks == nullptr ? stream.fork() : stream; }
    void join() const { stream.join(); }
    double attention_scale() const;
    ScoringFunc scoring_func() const;
    float eps() const { return static_cast<float>(config.rms_norm_eps); }
    bool wants(const char*) const { return hooks != nullptr && hooks->observe; }
    void observe(const char* name, int l, const Tensor& value) const { observe(name, l, 0, value); }
    void observe(const char* name, int l, int64_t first_row, const Tensor& value) const {
        if (hooks != nullptr && hooks->observe) hooks->observe(name, l, first_row, value);
    }
    void replace(const char* name, int l, int64_t first_row, const Tensor& choice) const {
        if (hooks != nullptr && hooks->replace) hooks->replace(name, l, first_row, choice);
    }
};

}  // namespace deepinfer
