// ModelConfig: config.json of a DeepSeek-V4.1 checkpoint, parsed and validated (fail closed).
//
// Accepts the Hugging Face layout (text_config, vision_config) and the flat keys of
// inference/config.json. Every field keeps the checkpoint's name. Unknown fields that would change
// the maths are refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct RopeScaling {
    bool yarn = false;
    double factor = 1;
    double beta_fast = 32;
    double beta_slow = 1;
    int64_t original_max_position_embeddings = 0;
};

struct VisionConfig {
    int64_t num_hidden_layers = 0, hidden_size = 0, num_attention_heads = 0, intermediate_size = 0;
    int64_t patch_size = 0, downsample_ratio = 0, max_image_tokens = 0, min_pixels = 0;
    double rope_theta = 10000;
    double max_wh_ratio = 0;  ///< 0 = none
};

struct ModelConfig {
    // Top level
    int64_t bos_token_id = 0, eos_token_id = 1, pad_token_id = 2, image_token_id = -1;
    // text_config
    int64_t vocab_size = 0, hidden_size = 0, num_hidden_layers = 0, num_attention_heads = 0,
            head_dim = 0, qk_rope_head_dim = 0;
    int64_t q_lora_rank = 0, o_groups = 0, o_lora_rank = 0, moe_intermediate_size = 0;
    int64_t n_routed_experts = 0, num_experts_per_tok = 0, n_shared_experts = 1;
    std::string scoring_func = "sqrtsoftplus";
    double gate_temp = 1.0;
    bool norm_topk_prob = true;
    double routed_scaling_factor = 1.0;
    double swiglu_limit = 0;  ///< 0 = off
    double rms_norm_eps = 1e-20;
    int64_t max_position_embeddings = 0;
    double rope_theta = 10000, compress_rope_theta = 160000;
    RopeScaling rope_scaling;
    int64_t sliding_window = 0;
    std::vector<int64_t> compress_ratios;  ///< length num_hidden_layers + num_nextn_predict_layers
    std::vector<int64_t> kv_source_layer_ids, index_source_layer_ids;
    int64_t candidate_source_layer_id = -1;  ///< -1 = no candidate level
    int64_t candidate_topk_blocks = 0, candidate_block_size = 0;
    int64_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;
    int64_t hc_mult = 0, hc_sinkhorn_iters = 0;
    double hc_eps = 1e-6;
    std::vector<int64_t> engram_layer_ids, engram_num_embeddings;
    int64_t engram_max_ngram_size = 0, engram_vocab_size = 0, engram_n_heads = 0,
            engram_head_dim = 0;
    int64_t engram_pad_token_id = 2, engram_compressed_vocab_size = 0;
    int64_t num_nextn_predict_layers = 0;  ///< DSpark stages
    int64_t dspark_block_size = 0, dspark_noise_token_id = -1, dspark_markov_rank = 0;
    std::vector<int64_t> dspark_target_layer_ids;
    int64_t dspark_n_routed_experts = 0,
            dspark_num_experts_per_tok = 0;  ///< resolved: never 0 when stages exist
    bool has_vision = false;
    VisionConfig vision;

    /// Nearest kv / index source at or before layer l, or -1 for ratio-0 layers.
    int64_t kv_source(int64_t l) const;
    int64_t index_source(int64_t l) const;
    bool is_kv_source(int64_t l) const;
    bool is_index_source(int64_t l) const;
    /// Index into engram_layer_ids, or -1.
    int64_t engram_table(int64_t l) const;
    int64_t ratio(int64_t l) const { return compress_ratios[static_cast<size_t>(l)]; }
    int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }

    /// The hash primes of Engram table t in (n, head) order (model spec 3.10); one shared "used"
    /// set, in layer order.
    std::vector<std::vector<int64_t>> engram_primes() const;
};

/// Parses the text of a config.json. `where` names the file in messages. kInvalidFile names the
/// field, what was found and what was expected.
Result<ModelConfig> parse_model_config(const std::string& json_text, const std::string& where);

/// The max_ngram odd multipliers of an Engram layer (numpy's default_rng reproduced; model
/// spec 3.10).
std::vector<int64_t> engram_multipliers(int64_t layer_id,
                                        int64_t max_ngram,
                                        int64_t compressed_vocab);

}  // namespace deepinfer
