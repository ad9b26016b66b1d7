#include "checkpoint/hf_config.h"

#include <algorithm>

#include "checkpoint/config_fields.h"
#include "checkpoint/config_rules.h"
#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

using nlohmann::json;

// Bounds of single fields. Every product of sizes that a shape needs stays far below 2^63, and the
// number of tensors a config may ask for stays small enough to list (weight_names.h).
constexpr int64_t kMaxDim = 1 << 16;
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxContext = int64_t{1} << 31;
constexpr int64_t kMaxRatio = 1024;
constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;  // row ids of Engram tables are 32-bit
constexpr double kMaxTheta = 1e12;

// Fields that do not reach the forward pass of an inference engine.
const std::vector<const char*> kHarmless = {"_name_or_path",
                                            "transformers_version",
                                            "initializer_range",
                                            "use_cache",
                                            "attention_dropout",
                                            "output_router_logits",
                                            "router_aux_loss_coef",
                                            "aux_loss_alpha",
                                            "seq_aux",
                                            "max_batch_size",
                                            "max_seq_len"};

void read_quantization(FieldReader& root, std::vector<std::string>* problems, bool flat) {
    if (flat) {
        root.must_be({"dtype"}, "fp8", true);
        root.must_be({"expert_dtype"}, "fp4", true);
        root.must_be({"scale_fmt"}, "ue8m0", false);
        root.must_be({"weight_block_size"}, json::array({32, 32}), false);
        return;
    }
    root.must_be({"dtype"}, "bfloat16", false);
    root.must_be({"torch_dtype"}, "bfloat16", false);
    const json* object = root.object({"quantization_config"}, true);
    if (object == nullptr) return;
    FieldReader q(*object, "quantization_config.", problems);
    q.must_be({"quant_method"}, "fp8", true);
    q.must_be({"activation_scheme"}, "dynamic", true);
    q.must_be({"weight_block_size"}, json::array({32, 32}), true);
    q.must_be({"scale_fmt"}, "ue8m0", true);
    q.must_be({"expert_dtype"}, "fp4", true);
    q.must_be({"fmt"}, "e4m3", false);
    q.refuse_unknown();
}

void read_rope(FieldReader& text, std::vector<std::string>* problems, bool flat, ModelConfig& c) {
    c.rope_theta = text.number({"rope_theta"}, 1.0001, kMaxTheta);
    c.compress_rope_theta = text.number({"compress_rope_theta"}, 1.0001, kMaxTheta);
    const auto read_yarn = [&c](FieldReader& r, const char* factor, const char* original) {
        c.rope_scaling.yarn = true;
        c.rope_scaling.factor = r.number({factor}, 1, 1e6);
        c.rope_scaling.beta_fast = r.number({"beta_fast"}, 1e-6, 1e6);
        c.rope_scaling.beta_slow = r.number({"beta_slow"}, 1e-6, 1e6);
        c.rope_scaling.original_max_position_embeddings = r.integer({original}, 1, kMaxContext);
    };
    if (flat && !text.has({"rope_scaling"})) {
        text.ignore({"rope_scaling"});
        // All four or none: a part of YaRN cannot be guessed.
        if (text.has({"rope_factor"}) || text.has({"original_seq_len"}) ||
            text.has({"beta_fast"}) || text.has({"beta_slow"})) {
            read_yarn(text, "rope_factor", "original_seq_len");
        }
        return;
    }
    // null says "no YaRN"; a config that lost the field is not taken for one that says so.
    if (!flat && !text.present("rope_scaling")) {
        text.complain(text.path({"rope_scaling"}) + " is missing, expected an object or null");
        return;
    }
    const json* object = text.object({"rope_scaling"}, false);
    if (object == nullptr) return;
    FieldReader r(*object, text.path({"rope_scaling"}) + ".", problems);
    r.must_be({"rope_type", "type"}, "yarn", true);
    read_yarn(r, "factor", "original_max_position_embeddings");
    r.refuse_unknown();
}

void read_attention(FieldReader& t, ModelConfig& c) {
    c.num_attention_heads = t.integer({"num_attention_heads", "n_heads"}, 1, kMaxHeads);
    t.must_be({"num_key_value_heads"}, 1, false);
    c.head_dim = t.integer({"head_dim"}, 1, kMaxDim);
    c.qk_rope_head_dim = t.integer({"qk_rope_head_dim", "rope_head_dim"}, 2, kMaxDim);
    c.q_lora_rank = t.integer({"q_lora_rank"}, 1, kMaxDim);
    c.o_groups = t.integer({"o_groups"}, 1, kMaxHeads);
    c.o_lora_rank = t.integer({"o_lora_rank"}, 1, kMaxDim);
    c.rms_norm_eps = t.number({"rms_norm_eps", "norm_eps"}, 0, 1);
    t.must_be({"attention_bias"}, false, false);
    c.sliding_window = t.integer({"sliding_window", "window_size"}, 1, 1 << 20);

    const int64_t stages = c.num_nextn_predict_layers;
    const size_t all = static_cast<size_t>(c.num_hidden_layers + stages);
    c.compress_ratios = t.integers({"compress_ratios"}, all, 0, kMaxRatio);
    if (c.compress_ratios.size() == static_cast<size_t>(c.num_hidden_layers)) {
        c.compress_ratios.resize(all, 0);
    }
    if (c.compress_ratios.size() != all) {
        t.complain(t.path({"compress_ratios"}) + " has " +
                   std::to_string(c.compress_ratios.size()) + " entries, expected " +
                   std::to_string(all) + " (num_hidden_layers + num_nextn_predict_layers) or " +
                   std::to_string(c.num_hidden_layers));
        c.compress_ratios.assign(all, 0);
    }
    c.kv_source_layer_ids =
        t.integers({"kv_source_layer_ids", "kv_source_layers"}, kMaxLayers, 0, kMaxLayers - 1);
    c.index_source_layer_ids = t.integers(
        {"index_source_layer_ids", "index_source_layers"}, kMaxLayers, 0, kMaxLayers - 1);
    const bool indexer = !c.index_source_layer_ids.empty();
    const auto index_size = [&](const char* name, int64_t high) {
        return t.integer({name}, 1, high, indexer ? std::nullopt : std::optional<int64_t>(1));
    };
    c.index_n_heads = index_size("index_n_heads", kMaxHeads);
    c.index_head_dim = index_size("index_head_dim", kMaxDim);
    c.index_topk = index_size("index_topk", 1 << 20);
    c.candidate_source_layer_id =
        std::max<int64_t>(-1,
                          t.integer({"candidate_source_layer_id", "candidate_source_layer"},
                                    std::numeric_limits<int64_t>::min(),
                                    kMaxLayers - 1,
                                    -1));
    const std::optional<int64_t> none =
        c.candidate_source_layer_id < 0 ? std::optional<int64_t>(0) : std::nullopt;
    c.candidate_topk_blocks = t.integer({"candidate_topk_blocks"}, none ? 0 : 1, 1 << 20, none);
    c.candidate_block_size = t.integer({"candidate_block_size"}, none ? 0 : 1, 1 << 16, none);
}

void read_moe(FieldReader& t, ModelConfig& c) {
    c.moe_intermediate_size = t.integer({"moe_intermediate_size", "moe_inter_dim"}, 1, kMaxDim);
    c.n_routed_experts = t.integer({"n_routed_experts"}, 1, kMaxExperts);
    c.num_experts_per_tok =
        t.integer({"num_experts_per_tok", "n_activated_experts"}, 1, kMaxExperts);
    t.must_be({"n_shared_experts"}, 1, true);
    c.scoring_func =
        t.choice({"scoring_func", "score_func"}, {"sqrtsoftplus", "softmax", "sigmoid"});
    c.gate_temp = t.number({"gate_temp"}, 1e-6, 1e6, 1.0);
    t.must_be({"topk_method"}, "noaux_tc", false);
    c.norm_topk_prob = t.boolean({"norm_topk_prob"}, true);
    c.routed_scaling_factor = t.number({"routed_scaling_factor", "route_scale"}, 0, 1e6);
    c.swiglu_limit = t.number({"swiglu_limit"}, 0, 1e9);
    t.must_be({"hidden_act"}, "silu", false);
    // Mechanisms of sibling models: known, and absent here.
    t.must_be({"n_group"}, 1, false);
    t.must_be({"topk_group"}, 1, false);
    t.must_be({"first_k_dense_replace"}, 0, false);
    t.must_be({"moe_layer_freq"}, 1, false);
}

void read_engram(FieldReader& t, ModelConfig& c) {
    constexpr size_t kMaxTables = 16;
    // A config without any Engram field has no tables; one that lost only the list is broken.
    const bool none = !t.has({"engram_num_embeddings"}) && !t.has({"engram_vocab_size"});
    c.engram_layer_ids = t.integers(
        {"engram_layer_ids"},
        kMaxTables,
        0,
        kMaxLayers - 1,
        none ? std::optional<std::vector<int64_t>>(std::vector<int64_t>{}) : std::nullopt);
    const bool on = !c.engram_layer_ids.empty();
    const auto size = [&](FieldName name, int64_t low, int64_t high) {
        return t.integer(name, on ? low : 0, high, on ? std::nullopt : std::optional<int64_t>(0));
    };
    c.engram_num_embeddings =
        t.integers({"engram_num_embeddings"},
                   kMaxTables,
                   1,
                   kMaxRows,
                   on ? std::nullopt : std::optional<std::vector<int64_t>>(std::vector<int64_t>{}));
    c.engram_max_ngram_size = size({"engram_max_ngram_size"}, 2, 8);
    c.engram_vocab_size = size({"engram_vocab_size"}, 1, kMaxRows);
    c.engram_n_heads = size({"engram_n_heads"}, 1, 64);
    c.engram_head_dim = size({"engram_head_dim"}, 1, 4096);
    c.engram_pad_token_id = size({"engram_pad_token_id", "engram_pad_id"}, 0, kMaxVocab);
    c.engram_compressed_vocab_size = size({"engram_compressed_vocab_size"}, 1, kMaxVocab);
}

void read_draft(FieldReader& t, ModelConfig& c) {
    const bool on = c.num_nextn_predict_layers > 0;
    const auto size = [&](FieldName name, int64_t low, int64_t high) {
        return t.integer(name, on ? low : 0, high, on ? std::nullopt : std::optional<int64_t>(0));
    };
    c.dspark_block_size = size({"dspark_block_size"}, 1, 64);
    c.dspark_noise_token_id = size({"dspark_noise_token_id"}, 0, kMaxVocab);
    c.dspark_markov_rank = size({"dspark_markov_rank"}, 1, kMaxDim);
    c.dspark_target_layer_ids =
        t.integers({"dspark_target_layer_ids"},
                   16,
                   0,
                   kMaxLayers - 1,
                   on ? std::nullopt : std::optional<std::vector<int64_t>>(std::vector<int64_t>{}));
    c.dspark_n_routed_experts = t.integer({"dspark_n_routed_experts"}, 0, kMaxExperts, 0);
    c.dspark_num_experts_per_tok =
        t.integer({"dspark_num_experts_per_tok", "dspark_n_activated_experts"}, 0, kMaxExperts, 0);
    if (!on) return;
    if (c.dspark_n_routed_experts == 0) c.dspark_n_routed_experts = c.n_routed_experts;
    if (c.dspark_num_experts_per_tok == 0) c.dspark_num_experts_per_tok = c.num_experts_per_tok;
}

void read_text(FieldReader& t, std::vector<std::string>* problems, bool flat, ModelConfig& c) {
    c.vocab_size = t.integer({"vocab_size"}, 1, kMaxVocab);
    c.hidden_size = t.integer({"hidden_size", "dim"}, 1, kMaxDim);
    c.num_hidden_layers = t.integer({"num_hidden_layers", "n_layers"}, 1, kMaxLayers);
    c.num_nextn_predict_layers = t.integer({"num_nextn_predict_layers", "n_mtp_layers"}, 0, 16);
    read_attention(t, c);
    read_moe(t, c);
    read_rope(t, problems, flat, c);
    c.hc_mult = t.integer({"hc_mult"}, 1, 16);
    c.hc_sinkhorn_iters = t.integer({"hc_sinkhorn_iters"}, 1, 1000);
    c.hc_eps = t.number({"hc_eps"}, 0, 1);
    read_engram(t, c);
    read_draft(t, c);
    // The flat layout has no context length of its own: YaRN's reach is the model's.
    const double reach = c.rope_scaling.factor *
                         static_cast<double>(c.rope_scaling.original_max_position_embeddings);
    std::optional<int64_t> context;
    if (flat && c.rope_scaling.yarn && reach <= static_cast<double>(kMaxContext)) {
        context = std::max<int64_t>(1, static_cast<int64_t>(reach));
    }
    c.max_position_embeddings = t.integer({"max_position_embeddings"}, 1, kMaxContext, context);
    t.must_be({"tie_word_embeddings"}, false, false);
    t.ignore(kHarmless);
}

void read_vision(FieldReader& v, bool flat, ModelConfig& c) {
    // The same fields under two names: nested without, flat with the prefix.
    const auto name = [flat](const char* hf, const char* flat_name) {
        return flat ? FieldName{flat_name} : FieldName{hf};
    };
    const FieldName layers = name("num_hidden_layers", "vision_n_layers");
    const int64_t n =
        v.integer(layers, 0, kMaxLayers, flat ? std::optional<int64_t>(0) : std::nullopt);
    const bool on = n > 0;
    const auto size = [&](FieldName field, int64_t low, int64_t high) {
        return v.integer(field, on ? low : 0, high, on ? std::nullopt : std::optional<int64_t>(0));
    };
    VisionConfig& o = c.vision;
    o.num_hidden_layers = n;
    o.hidden_size = size(name("hidden_size", "vision_dim"), 1, kMaxDim);
    o.num_attention_heads = size(name("num_attention_heads", "vision_n_heads"), 1, kMaxHeads);
    o.intermediate_size = size(name("intermediate_size", "vision_inter_dim"), 1, kMaxDim);
    o.patch_size = size(name("patch_size", "vision_patch_size"), 1, 256);
    o.downsample_ratio = size(name("downsample_ratio", "vision_downsample_ratio"), 1, 64);
    o.max_image_tokens = size(name("max_image_tokens", "vision_max_n_token"), 4, 1 << 20);
    o.min_pixels = size(name("min_pixels", "vision_min_pixels"), 0, int64_t{1} << 31);
    o.rope_theta = v.number(name("rope_theta", "vision_rope_theta"),
                            1.0001,
                            kMaxTheta,
                            on ? std::nullopt : std::optional<double>(10000));
    o.max_wh_ratio = v.number(name("max_wh_ratio", "vision_max_wh_ratio"), 1e-6, 1e6, 0.0);
    c.has_vision = on;
}

/// Identity first: the rest of the message would only confuse when the file is another model's.
void read_identity(FieldReader& root, bool flat) {
    root.must_be({"model_type"}, "deepseek_v41", !flat);
    root.must_be({"architectures"}, json::array({"DeepseekV41ForCausalLM"}), false);
}

Status refuse(const std::string& where, const std::vector<std::string>& problems) {
    std::string text;
    for (const std::string& p : problems) text += (text.empty() ? "" : "; ") + p;
    return {StatusCode::kInvalidFile, where + ": " + text};
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& json_text, const std::string& where) {
    JsonLimits limits;
    limits.max_nodes = 100'000;
    Result<json> parsed = parse_strict_json(json_text, limits, where);
    if (!parsed.ok()) return parsed.status();
    const json& object = parsed.value();
    std::vector<std::string> problems;
    if (!object.is_object()) {
        return refuse(where, {"config is " + show_json(object) + ", expected an object"});
    }
    const bool flat = !object.contains("text_config");
    FieldReader root(object, "", &problems);
    read_identity(root, flat);
    if (!problems.empty()) {
        problems.push_back(
            "supported is model_type \"deepseek_v41\" with architecture "
            "\"DeepseekV41ForCausalLM\"");
        return refuse(where, problems);
    }

    ModelConfig c;
    read_quantization(root, &problems, flat);
    c.bos_token_id = root.integer({"bos_token_id"}, 0, kMaxVocab, 0);
    c.eos_token_id = root.integer({"eos_token_id"}, 0, kMaxVocab, 1);
    c.pad_token_id = root.integer({"pad_token_id"}, 0, kMaxVocab, 2);
    c.image_token_id = root.integer({"image_token_id"}, 0, kMaxVocab, -1);
    if (flat) {
        read_text(root, &problems, true, c);
        read_vision(root, true, c);
    } else {
        root.ignore(kHarmless);
        root.must_be({"tie_word_embeddings"}, false, false);
        if (const json* t = root.object({"text_config"}, true)) {
            FieldReader text(*t, "text_config.", &problems);
            text.must_be({"model_type"}, "deepseek_v41_text", false);
            text.must_be({"dtype"}, "bfloat16", false);
            text.must_be({"torch_dtype"}, "bfloat16", false);
            // Some writers repeat the special ids here, some have them only here.
            const auto special = [&](const char* id, int64_t& value) {
                if (object.contains(id)) {
                    text.must_be({id}, object[id], false);
                } else {
                    value = text.integer({id}, 0, kMaxVocab, value);
                }
            };
            special("bos_token_id", c.bos_token_id);
            special("eos_token_id", c.eos_token_id);
            special("pad_token_id", c.pad_token_id);
            read_text(text, &problems, false, c);
            text.refuse_unknown();
        }
        if (const json* v = root.object({"vision_config"}, false)) {
            FieldReader vision(*v, "vision_config.", &problems);
            vision.must_be({"model_type"}, "deepseek_v41_vision", false);
            vision.must_be({"dtype"}, "bfloat16", false);
            vision.must_be({"torch_dtype"}, "bfloat16", false);
            read_vision(vision, false, c);
            vision.ignore(kHarmless);
            vision.refuse_unknown();
        }
    }
    root.refuse_unknown();
    if (problems.empty()) problems = broken_config_rules(c);
    if (!problems.empty()) return refuse(where, problems);
    return c;
}

int64_t ModelConfig::kv_source(int64_t l) const {
    if (l >= num_hidden_layers || ratio(l) == 0) return -1;
    int64_t source = -1;
    for (int64_t s : kv_source_layer_ids) {
        if (s <= l) source = s;
    }
    return source;
}

int64_t ModelConfig::index_source(int64_t l) const {
    if (l >= num_hidden_layers || ratio(l) == 0) return -1;
    int64_t source = -1;
    for (int64_t s : index_source_layer_ids) {
        if (s <= l) source = s;
    }
    return source;
}

bool ModelConfig::is_kv_source(int64_t l) const {
    return std::find(kv_source_layer_ids.begin(), kv_source_layer_ids.end(), l) !=
           kv_source_layer_ids.end();
}

bool ModelConfig::is_index_source(int64_t l) const {
    return std::find(index_source_layer_ids.begin(), index_source_layer_ids.end(), l) !=
           index_source_layer_ids.end();
}

int64_t ModelConfig::engram_table(int64_t l) const {
    const auto it = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), l);
    return it == engram_layer_ids.end() ? -1 : it - engram_layer_ids.begin();
}

}  // namespace deepinfer
