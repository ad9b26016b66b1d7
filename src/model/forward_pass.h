// ForwardPass: one step in flight. Short-lived: made by DeepseekV41::forward, holds views only.
//
// Its methods are the parts of a backbone layer that a draft stage does not have (deepseek_v41.cpp:
// the pass, Engram, taps; attention.cpp: the attention site with compressor and indexer). The rest
// is BlockPass.
#pragma once

#include "model/block_pass.h"
#include "model/step_inputs.h"

namespace deepinfer {

struct ForwardPass : BlockPass {
    const StepInputs& in;
    const CacheGeometry& geometry;
    const PrefillTruncation& truncation;

    Tensor freqs_window{}, freqs_global{};
    Tensor lists{};       ///< i32 [T, K] selection of the latest index source
    Tensor candidates{};  ///< i32 [T, C] blocks kept by the candidate source; empty before it
    Tensor taps{};        ///< bf16 [T, taps·D]
    const RowSet* now = nullptr;  ///< the rows that x holds

    /// Leaves the logits in ws.logits.
    void run(const ModelWeights& weights, const Tensor& pre_onehot);
    /// True if layer l's attention finds its input where layer l - 1's end left it: nothing touches
    /// the streams (Engram) or ws.u (the drafts' windows) between the two.
    bool follows(int l) const;

    void engram(int l, const EngramWeights& w);
    /// Keeps the layer's input if it is a tap; after the last one the drafts' rings are written.
    void record_tap(int l, const DsparkWeights& w);
    void attention_site(int l, const LayerWeights& w);
    /// The same where fewer rows go on: all rows leave window rows (and entries), then x and what
    /// belongs to it shrink to `next`, which alone attends.
    void narrowing_attention_site(int l, const LayerWeights& w, const RowSet& next);
    void attend(int l, const LayerWeights& w, const BatchView& queries, const Tensor& window_rows);
    void narrow(int l, const RowSet& next, const Tensor& u, const Tensor& narrow_u);
    void rope_tables();

    /// Compressor of a kv source: appends the entries and index keys of the groups this step
    /// completes.
    void compress(int l, const CompressorWeights& w, const Tensor& u);
    /// Indexer of an index source: fills `lists` (and `candidates` at the candidate source).
    void select(int l,
                const IndexerWeights& w,
                const BatchView& queries,
                const Tensor& u,
                const Tensor& qrq);

    /// True if the step's taps feed the draft stages' window rings.
    bool drafting() const {
        return in.draft_windows &&
               static_cast<int64_t>(geometry.layers.size()) > config.num_hidden_layers;
    }
    /// Appends the window rows of every stage, from the taps of this step's rows.
    void store_draft_windows(const DsparkWeights& w);
};

}  // namespace deepinfer
