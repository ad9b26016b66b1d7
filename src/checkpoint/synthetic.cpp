// Named geometries and what --synthetic may say.
#include "checkpoint/synthetic.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxConfigBytes = 16u << 20;

/// The released text model (model spec 1.2). Geometries are this with a few fields changed.
constexpr const char* kReleased = R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
    "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups": 8, "o_lora_rank": 1024,
    "moe_intermediate_size": 2304, "n_routed_experts": 384, "num_experts_per_tok": 6,
    "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hidden_act": "silu", "rms_norm_eps": 1e-20, "attention_bias": false,
    "max_position_embeddings": 1048576, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
      "original_max_position_embeddings": 65536},
    "sliding_window": 128,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
    "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
    "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3
  }
})";

/// The released vision tower (vision spec 2), which the named text geometries leave out.
constexpr const char* kReleasedVision = R"({
  "model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024,
  "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14, "rope_theta": 10000,
  "downsample_ratio": 3, "max_image_tokens": 1024, "min_pixels": 295936, "max_wh_ratio": null})";

struct Geometry {
    const char* name;
    const char* changes;  ///< of text_config, a JSON merge patch
    const char* vision;   ///< of the released vision_config; nullptr: no tower
};

constexpr Geometry kGeometries[] = {
    // Released layer dimensions in 3.8 GB without drafts: six layers with every role (window,
    // Engram, full, reuse, candidate source, reindex), 24 experts, a small vocabulary.
    {"cpu-slice",
     R"({
      "vocab_size": 8192, "num_hidden_layers": 6, "n_routed_experts": 24,
      "compress_ratios": [0, 0, 2, 2, 1, 1, 0, 0, 0],
      "kv_source_layer_ids": [2, 4], "index_source_layer_ids": [2, 4, 5],
      "candidate_source_layer_id": 4,
      "engram_layer_ids": [1], "engram_num_embeddings": [1503174], "engram_vocab_size": 62500,
      "engram_compressed_vocab_size": 6144,
      "dspark_noise_token_id": 8191, "dspark_target_layer_ids": [3, 4, 5],
      "dspark_n_routed_experts": 16})",
     nullptr},
    // What one rank of an 8-GPU expert-parallel deployment holds: 48 of 384 experts, all layers.
    {"slice-e48",
     R"({
      "n_routed_experts": 48, "dspark_n_routed_experts": 16,
      "engram_num_embeddings": [1503174, 1509980], "engram_vocab_size": 62500})",
     nullptr},
    // The released tower, 4 of its 32 equal blocks, for `bench ve`, which loads nothing else.
    {"ve-slice", R"({"num_hidden_layers": 40})", R"({"num_hidden_layers": 4})"},
};

/// Splits "NAME:SEED". False if there is something after the last colon that is no number.
bool split_seed(const std::string& text, std::string* name, uint64_t* seed) {
    *name = text;
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos) return true;
    const std::string digits = text.substr(colon + 1);
    if (digits.empty() || digits.size() > 19 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
        return false;
    *name = text.substr(0, colon);
    *seed = std::stoull(digits);
    return true;
}

std::string known_names() {
    std::string list;
    for (const std::string& n : synthetic_geometries()) list += (list.empty() ? "" : ", ") + n;
    return list;
}

Status check_supported(const ModelConfig& c, const std::string& where) {
    constexpr int64_t kRows = 32;
    if (c.o_lora_rank % kRows != 0) {
        return {StatusCode::kInvalidFile,
                where + ": o_lora_rank is " + std::to_string(c.o_lora_rank) +
                    ", a generated model needs a multiple of " + std::to_string(kRows)};
    }
    const int64_t count = count_expected_tensors(c);
    if (count > kMaxExpectedTensors) {
        return {StatusCode::kInvalidFile,
                where + ": the config implies " + std::to_string(count) + " tensors, at most " +
                    std::to_string(kMaxExpectedTensors) + " are supported"};
    }
    return {};
}

}  // namespace

std::vector<std::string> synthetic_geometries() {
    std::vector<std::string> names;
    for (const Geometry& g : kGeometries) names.emplace_back(g.name);
    std::sort(names.begin(), names.end());
    return names;
}

std::string synthetic_config_json(const std::string& name) {
    for (const Geometry& g : kGeometries) {
        if (name != g.name) continue;
        nlohmann::json config = nlohmann::json::parse(kReleased);
        config["text_config"].merge_patch(nlohmann::json::parse(g.changes));
        if (g.vision != nullptr) {
            config["image_token_id"] = 129264;
            config["vision_config"] = nlohmann::json::parse(kReleasedVision);
            config["vision_config"].merge_patch(nlohmann::json::parse(g.vision));
        }
        return config.dump();
    }
    return {};
}

Result<SyntheticModel> parse_synthetic(const std::string& text) {
    SyntheticModel m;
    if (!split_seed(text, &m.name, &m.seed)) {
        return Status(StatusCode::kInvalidArgument,
                      "synthetic model " + in_quotes(text) +
                          ": expected NAME or NAME:SEED with a number up to 19 digits as seed");
    }
    std::string json = synthetic_config_json(m.name);
    std::string where = "geometry " + m.name;
    if (json.empty()) {
        std::error_code error;
        if (!std::filesystem::is_regular_file(m.name, error)) {
            return Status(StatusCode::kInvalidArgument,
                          "synthetic model " + in_quotes(m.name) +
                              " is neither a geometry (there are " + known_names() +
                              ") nor a config.json");
        }
        Result<std::string> read = read_file(m.name, kMaxConfigBytes);
        if (!read.ok()) return read.status();
        json = std::move(read).value();
        where = m.name;
    }
    Result<ModelConfig> config = parse_model_config(json, where);
    if (!config.ok()) return config.status();
    m.config = std::move(config).value();
    DI_RETURN_IF_ERROR(check_supported(m.config, where));
    return m;
}

}  // namespace deepinfer
