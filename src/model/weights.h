// ModelWeights: the checkpoint's tensors bound to their roles and brought to a backend.
//
// Matrices stay in their stored format (ops/weight_matrix.h); small vectors become f32 (exact).
// Names of members are the checkpoint's names. Which layer has which part follows from its role
// (model spec 1.4).
#pragma once

#include <deque>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ops/backend.h"
#include "ops/weight_matrix.h"

namespace deepinfer {

struct HyperConnectionWeights {
    Tensor fn, base, scale;  ///< f32 [(2+hc)hc, hc·D], [(2+hc)hc], [3]
};

struct CompressorWeights {
    WeightMatrix wkv, wgate;  ///< [dh, D]; wgate only for ratio > 1
    Tensor norm;              ///< f32 [dh]
    WeightMatrix index_wk;    ///< attn.indexer.wk [di, dh]
    Tensor index_k_norm;      ///< f32 [di]
};

struct IndexerWeights {
    WeightMatrix wq_b;          ///< [Hi·di, ql] FP8
    WeightMatrix weights_proj;  ///< [Hi, D]
};

struct EngramWeights {
    WeightMatrix table;         ///< [rows, ed] FP8, one scale per row and 32 columns
    WeightMatrix wkv;           ///< [(hc+1)·D, cols·ed] FP8
    Tensor q_weight, k_weight;  ///< f32 [hc, D]
    Tensor multipliers;         ///< i64 [max_ngram]
    Tensor primes, offsets;     ///< i64 [cols]
};

struct LayerWeights {
    HyperConnectionWeights hc_attn, hc_ffn;
    Tensor attn_norm, ffn_norm, q_norm, kv_norm;  ///< f32
    WeightMatrix wq_a, wq_b, wkv, wo_a, wo_b;     ///< FP8
    Tensor attn_sink;                             ///< f32 [H]
    WeightMatrix gate;                            ///< [E, D]
    Tensor gate_bias, gate_bias_vl;               ///< f32 [E]
    std::vector<ExpertWeights> experts;
    ExpertWeights shared;
    CompressorWeights compressor;  ///< kv sources
    IndexerWeights indexer;        ///< index sources
    EngramWeights engram;          ///< Engram layers
};

/// mtp.*: the DSpark draft stages and their heads (model spec 5).
struct DsparkWeights {
    WeightMatrix main_proj;            ///< [D, taps·D] FP8
    Tensor main_norm, norm;            ///< f32 [D]
    std::vector<LayerWeights> stages;  ///< without compressor, indexer and Engram
    WeightMatrix markov_embed;         ///< [V, r]  gathered from
    WeightMatrix markov_head;          ///< [V, r]
    /// confidence_head.proj [1, D + r], cut where its two inputs meet: [1, D] and [1, r].
    WeightMatrix confidence_hidden, confidence_markov;
};

struct VisionBlockWeights {
    Tensor norm1, norm2;          ///< f32 [E]
    WeightMatrix wqkv, wo;        ///< [3E, E], [E, E]
    Tensor wqkv_bias, wo_bias;    ///< f32
    WeightMatrix mlp_w1, mlp_w2;  ///< [2I, E] gate then up, [E, I]
};

/// vision.* and aligner.* (vision spec 3), the only tensors that an encoder needs.
struct VisionWeights {
    WeightMatrix patch_embed;  ///< [E, patch_width]: zero columns behind 3 · patch_size²
    int64_t patch_width = 0;   ///< 3 · patch_size² rounded up to 32
    Tensor patch_embed_bias;   ///< f32 [E]
    std::vector<VisionBlockWeights> blocks;
    Tensor norm;                              ///< f32 [E]
    WeightMatrix aligner_w1, aligner_w2;      ///< [D, r²·E], [D, D]
    Tensor aligner_w1_bias, aligner_w2_bias;  ///< f32 [D]
    /// image_start, image_newline, image_end as bf16 [D], in host memory
    std::vector<bf16> image_start, image_newline, image_end;
    std::deque<std::vector<uint8_t>> host;  ///< as in ModelWeights
};

struct ModelWeights {
    std::vector<LayerWeights> layers;
    DsparkWeights dspark;                   ///< empty unless bind_dspark_weights was called
    WeightMatrix embed, head;               ///< [V, D]
    Tensor norm;                            ///< f32 [D]
    std::deque<std::vector<uint8_t>> host;  ///< converted small tensors of a host backend live here
};

/// Binds every backbone tensor of the (already validated) checkpoint and prepares it on the
/// backend.
Status bind_weights(const Checkpoint& checkpoint, Backend& backend, ModelWeights& out);
/// The same for mtp.*, which only a drafting model needs. The checkpoint has at least one stage.
Status bind_dspark_weights(const Checkpoint& checkpoint, Backend& backend, ModelWeights& out);
/// The same for the vision tower and the aligner. The checkpoint has_vision.
Status bind_vision_weights(const Checkpoint& checkpoint, Backend& backend, VisionWeights& out);

}  // namespace deepinfer
