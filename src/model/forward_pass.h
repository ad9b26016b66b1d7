// ForwardPass: one step in flight. Short-lived: made by DeepseekV41::forward, holds views only.
//
// Its methods are the parts of a layer (deepseek_v41.cpp: the pass, Engram, FFN site; attention.cpp: the
// attention site with compressor and indexer).
#pragma once

#include "model/deepseek_v41.h"
#include "model/step_inputs.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

struct ForwardPass {
    const ModelConfig& config;
    const OpTable& ops;
    Stream& stream;
    const StepInputs& in;
    Workspace& ws;
    const CacheView& cache;
    const CacheGeometry& geometry;
    const ForwardHooks* hooks;

    // Values that travel from site to site.
    Tensor x{}, x_next{};           ///< bf16 [T, hc, D] residual streams
    Tensor pre_in{};                ///< acc [T, hc] pre of the previous site
    Tensor pre{}, post{}, comb{};   ///< mixes of the current site
    Tensor freqs_global{};
    Tensor lists{};                 ///< i32 [T, K] selection of the latest index source
    Tensor candidates{};            ///< i32 [T, C] blocks kept by the candidate source; empty before it

    /// Returns logits acc [L, V].
    Tensor run(const ModelWeights& weights, const Tensor& freqs_window, const Tensor& freqs_compressed, const Tensor& pre_onehot);

    void engram(int l, const EngramWeights& w);
    void record_tap(int l);
    void attention_site(int l, const LayerWeights& w);
    void ffn_site(int l, const LayerWeights& w);

    /// Mixes of a site, and its normed input u from the collapsed streams.
    void begin_site(int l, const char* site, const HyperConnectionWeights& hc, const Tensor& norm, const Tensor& u);
    /// Adds the sublayer's output to the streams.
    void end_site(const Tensor& y);

    /// Compressor of a kv source: appends the entries and index keys of the groups this step completes.
    void compress(int l, const CompressorWeights& w, const Tensor& u);
    /// Indexer of an index source: fills `lists` (and `candidates` at the candidate source).
    void select(int l, const IndexerWeights& w, const Tensor& u, const Tensor& qrq);

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
