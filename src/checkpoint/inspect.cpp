// inspect_checkpoint(): the JSON report of a model directory.
#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "checkpoint/model_files.h"
#include "checkpoint/strict_json.h"
#include "checkpoint/tensor_check.h"
#include "deepinfer/checkpoint.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = 16u << 20;

Json geometry(const ModelConfig& c) {
    Json g;
    g["model_type"] = "deepseek_v41";
    g["bos_token_id"] = c.bos_token_id;
    g["eos_token_id"] = c.eos_token_id;
    g["pad_token_id"] = c.pad_token_id;
    if (c.image_token_id >= 0) g["image_token_id"] = c.image_token_id;
    g["vocab_size"] = c.vocab_size;
    g["hidden_size"] = c.hidden_size;
    g["num_hidden_layers"] = c.num_hidden_layers;
    g["num_attention_heads"] = c.num_attention_heads;
    g["head_dim"] = c.head_dim;
    g["qk_rope_head_dim"] = c.qk_rope_head_dim;
    g["q_lora_rank"] = c.q_lora_rank;
    g["o_groups"] = c.o_groups;
    g["o_lora_rank"] = c.o_lora_rank;
    g["moe_intermediate_size"] = c.moe_intermediate_size;
    g["n_routed_experts"] = c.n_routed_experts;
    g["num_experts_per_tok"] = c.num_experts_per_tok;
    g["n_shared_experts"] = c.n_shared_experts;
    g["scoring_func"] = c.scoring_func;
    g["gate_temp"] = c.gate_temp;
    g["norm_topk_prob"] = c.norm_topk_prob;
    g["routed_scaling_factor"] = c.routed_scaling_factor;
    g["swiglu_limit"] = c.swiglu_limit;
    g["rms_norm_eps"] = c.rms_norm_eps;
    g["max_position_embeddings"] = c.max_position_embeddings;
    g["rope_theta"] = c.rope_theta;
    g["compress_rope_theta"] = c.compress_rope_theta;
    if (c.rope_scaling.yarn) {
        g["rope_scaling"] = {
            {"rope_type", "yarn"},
            {"factor", c.rope_scaling.factor},
            {"beta_fast", c.rope_scaling.beta_fast},
            {"beta_slow", c.rope_scaling.beta_slow},
            {"original_max_position_embeddings", c.rope_scaling.original_max_position_embeddings}};
    }
    g["sliding_window"] = c.sliding_window;
    g["compress_ratios"] = c.compress_ratios;
    g["kv_source_layer_ids"] = c.kv_source_layer_ids;
    g["index_source_layer_ids"] = c.index_source_layer_ids;
    if (c.candidate_source_layer_id >= 0) {
        g["candidate_source_layer_id"] = c.candidate_source_layer_id;
        g["candidate_topk_blocks"] = c.candidate_topk_blocks;
        g["candidate_block_size"] = c.candidate_block_size;
    }
    g["index_n_heads"] = c.index_n_heads;
    g["index_head_dim"] = c.index_head_dim;
    g["index_topk"] = c.index_topk;
    g["hc_mult"] = c.hc_mult;
    g["hc_sinkhorn_iters"] = c.hc_sinkhorn_iters;
    g["hc_eps"] = c.hc_eps;
    if (!c.engram_layer_ids.empty()) {
        g["engram_layer_ids"] = c.engram_layer_ids;
        g["engram_num_embeddings"] = c.engram_num_embeddings;
        g["engram_max_ngram_size"] = c.engram_max_ngram_size;
        g["engram_vocab_size"] = c.engram_vocab_size;
        g["engram_n_heads"] = c.engram_n_heads;
        g["engram_head_dim"] = c.engram_head_dim;
        g["engram_pad_token_id"] = c.engram_pad_token_id;
        g["engram_compressed_vocab_size"] = c.engram_compressed_vocab_size;
    }
    g["num_nextn_predict_layers"] = c.num_nextn_predict_layers;
    if (c.num_nextn_predict_layers > 0) {
        g["dspark_block_size"] = c.dspark_block_size;
        g["dspark_noise_token_id"] = c.dspark_noise_token_id;
        g["dspark_target_layer_ids"] = c.dspark_target_layer_ids;
        g["dspark_markov_rank"] = c.dspark_markov_rank;
        g["dspark_n_routed_experts"] = c.dspark_n_routed_experts;
        g["dspark_num_experts_per_tok"] = c.dspark_num_experts_per_tok;
    }
    if (c.has_vision) {
        const VisionConfig& v = c.vision;
        g["vision_config"] = {{"num_hidden_layers", v.num_hidden_layers},
                              {"hidden_size", v.hidden_size},
                              {"num_attention_heads", v.num_attention_heads},
                              {"intermediate_size", v.intermediate_size},
                              {"patch_size", v.patch_size},
                              {"rope_theta", v.rope_theta},
                              {"downsample_ratio", v.downsample_ratio},
                              {"max_image_tokens", v.max_image_tokens},
                              {"min_pixels", v.min_pixels},
                              {"max_wh_ratio", nullptr}};
        if (v.max_wh_ratio > 0) g["vision_config"]["max_wh_ratio"] = v.max_wh_ratio;
    }
    return g;
}

bool contains(const std::vector<int64_t>& list, int64_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

/// First layer of the decoder half, or -1 if the layout does not split: later layers must own no
/// cache and read the one of the middle layer, Engram must lie before it and the taps not before
/// it.
int64_t decoder_start(const ModelConfig& c) {
    const int64_t mid = c.num_hidden_layers / 2;
    if (c.num_hidden_layers % 2 != 0 || c.kv_source_layer_ids.empty()) return -1;
    if (c.kv_source_layer_ids.back() != mid || c.ratio(mid) != 1) return -1;
    for (int64_t l = mid; l < c.num_hidden_layers; ++l) {
        if (c.ratio(l) != 1 || c.engram_table(l) >= 0) return -1;
    }
    for (int64_t t : c.dspark_target_layer_ids) {
        if (t < mid) return -1;
    }
    return mid;
}

const char* layer_mode(const ModelConfig& c, int64_t l) {
    if (c.ratio(l) == 0) return "window";
    if (c.is_kv_source(l)) return "full";
    return c.is_index_source(l) ? "reindex" : "reuse";
}

Json layers(const ModelConfig& c) {
    Json out = Json::array();
    const int64_t decoder = decoder_start(c);
    const auto id_or_null = [](int64_t id) { return id < 0 ? Json(nullptr) : Json(id); };
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        Json o;
        o["layer"] = l;
        o["name"] = "layers." + std::to_string(l);
        o["half"] = decoder < 0 ? Json(nullptr) : Json(l < decoder ? "encoder" : "decoder");
        o["ratio"] = c.ratio(l);
        o["mode"] = layer_mode(c, l);
        o["kv_source"] = id_or_null(c.kv_source(l));
        o["index_source"] = id_or_null(c.index_source(l));
        o["candidate"] = nullptr;
        if (c.candidate_source_layer_id >= 0 && c.is_index_source(l)) {
            if (l == c.candidate_source_layer_id) o["candidate"] = "source";
            if (l > c.candidate_source_layer_id) o["candidate"] = "filtered";
        }
        o["engram_table"] = id_or_null(c.engram_table(l));
        o["dspark_tap"] = c.num_nextn_predict_layers > 0 && contains(c.dspark_target_layer_ids, l);
        out.push_back(std::move(o));
    }
    for (int64_t m = 0; m < c.num_nextn_predict_layers; ++m) {
        Json o;
        o["layer"] = c.num_hidden_layers + m;
        o["name"] = "mtp." + std::to_string(m);
        o["half"] = nullptr;
        o["ratio"] = 0;
        o["mode"] = "draft";
        o["kv_source"] = nullptr;
        o["index_source"] = nullptr;
        o["candidate"] = nullptr;
        o["engram_table"] = nullptr;
        o["dspark_tap"] = false;
        out.push_back(std::move(o));
    }
    return out;
}

Json cache_sizes(const ModelConfig& c) {
    double per_token = 0;
    int64_t tail = 0;
    for (int64_t s : c.kv_source_layer_ids) {
        const int64_t entry = kv_entry_bytes(c.head_dim) + index_key_bytes(c.index_head_dim);
        per_token += static_cast<double>(entry) / static_cast<double>(c.ratio(s));
        // z and g of the tokens of an open group, fp32.
        tail += (c.ratio(s) - 1) * 2 * c.head_dim * 4;
    }
    const int64_t rings = c.num_hidden_layers + c.num_nextn_predict_layers;
    return {{"global_bytes_per_token", per_token},
            {"window_bytes_per_sequence", rings * c.sliding_window * window_row_bytes(c.head_dim)},
            {"tail_bytes_per_sequence", tail}};
}

const char* kind_name(WeightKind kind) {
    switch (kind) {
        case WeightKind::kPlain:
            return "plain";
        case WeightKind::kFp8:
            return "fp8";
        case WeightKind::kFp8Scale:
            return "fp8_scale";
        case WeightKind::kFp4:
            return "fp4";
        case WeightKind::kFp4Scale:
            return "fp4_scale";
        case WeightKind::kEngramTable:
            return "engram_table";
        case WeightKind::kEngramScale:
            return "engram_scale";
    }
    return "?";
}

bool is_scale(WeightKind kind) {
    return kind == WeightKind::kFp8Scale || kind == WeightKind::kFp4Scale ||
           kind == WeightKind::kEngramScale;
}

bool starts_with(const std::string& text, const char* prefix) {
    return text.rfind(prefix, 0) == 0;
}

/// "backbone", "engram_tables", "draft" or "vision".
const char* part_of(const ExpectedTensor& t) {
    if (t.kind == WeightKind::kEngramTable || t.kind == WeightKind::kEngramScale) {
        return "engram_tables";
    }
    if (starts_with(t.name, "mtp.")) return "draft";
    const bool vision = starts_with(t.name, "vision.") || starts_with(t.name, "aligner.") ||
                        starts_with(t.name, "image_");
    return vision ? "vision" : "backbone";
}

/// Values that the tensor holds: FP4 has two a byte, scales are none.
int64_t parameter_count(const ExpectedTensor& t) {
    if (is_scale(t.kind)) return 0;
    int64_t n = t.kind == WeightKind::kFp4 ? 2 : 1;
    for (int64_t d : t.shape) n *= d;
    return n;
}

void add_tensors(const TensorCheck& check, const ModelFiles& files, Json& report) {
    std::unordered_map<std::string, const ExpectedTensor*> expected;
    for (const ExpectedTensor& t : check.expected) expected.emplace(t.name, &t);
    std::vector<std::pair<std::string, TensorPlace>> found(files.tensors.begin(),
                                                           files.tensors.end());
    std::sort(
        found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

    Json tensors = Json::array();
    std::map<std::string, uint64_t> bytes_by_kind;
    struct Part {
        int64_t tensors = 0, parameters = 0;
        uint64_t bytes = 0;
    };
    std::map<std::string, Part> parts;
    for (const auto& item : found) {
        const SafetensorsEntry& entry = files.entry(item.second);
        const auto it = expected.find(item.first);
        const std::string kind = it != expected.end()              ? kind_name(it->second->kind)
                                 : is_ignored_leftover(item.first) ? "ignored"
                                                                   : "unexpected";
        const uint64_t bytes = entry.end - entry.begin;
        Json o;
        o["name"] = item.first;
        o["kind"] = kind;
        o["dtype"] = entry.dtype;
        o["shape"] = entry.shape;
        o["shard"] = files.shards[item.second.shard].name;
        o["bytes"] = bytes;
        tensors.push_back(std::move(o));
        bytes_by_kind[kind] += bytes;
        if (it == expected.end()) continue;
        Part& part = parts[part_of(*it->second)];
        part.tensors += 1;
        part.parameters += parameter_count(*it->second);
        part.bytes += bytes;
    }
    Json parameters;
    int64_t total = 0;
    for (const char* name : {"backbone", "engram_tables", "draft", "vision"}) {
        parameters[name] = parts[name].parameters;
        total += parts[name].parameters;
    }
    parameters["total"] = total;
    report["parameters"] = parameters;
    report["bytes_by_kind"] = bytes_by_kind;
    report["num_tensors"] = found.size();
    report["ignored_tensors"] = check.ignored;
    report["tensors"] = std::move(tensors);
}

/// Fills the report from what can be read; every refusal ends in `refused`.
void inspect(const std::string& dir, Json& report, std::vector<std::string>* refused) {
    Result<std::string> config_path = model_file_path(dir, "config.json");
    Result<std::string> text = config_path.ok() ? read_file(config_path.value(), kMaxConfigBytes)
                                                : Result<std::string>(config_path.status());
    Result<ModelConfig> config = text.ok() ? parse_model_config(text.value(), config_path.value())
                                           : Result<ModelConfig>(text.status());
    if (!config.ok()) refused->push_back(config.status().message());
    Result<ModelFiles> files = ModelFiles::open(dir);
    if (!files.ok()) refused->push_back(files.status().message());
    if (!config.ok()) return;
    const ModelConfig& c = config.value();
    report["geometry"] = geometry(c);
    report["layers"] = layers(c);
    report["cache"] = cache_sizes(c);
    if (!files.ok()) return;
    const TensorCheck check = check_tensors(c, files.value());
    const auto names = [refused](const char* what, const std::vector<std::string>& list) {
        for (const std::string& name : list) refused->push_back(name + what);
    };
    names(" is missing", check.missing);
    names(" is not expected", check.unexpected);
    names("", check.wrong);
    add_tensors(check, files.value(), report);
}

}  // namespace

Result<std::string> inspect_checkpoint(const std::string& dir) {
    try {
        std::error_code error;
        if (!std::filesystem::is_directory(dir, error)) {
            return Status(StatusCode::kNotFound, in_quotes(dir) + " is no directory");
        }
        std::vector<std::string> refused;
        Json body = Json::object();
        inspect(dir, body, &refused);
        Json report;
        report["directory"] = dir;
        report["loadable"] = refused.empty();
        report["refused"] = refused;
        report.update(body);
        // Names and paths may hold bytes that are no UTF-8: they are shown replaced, never thrown
        // over.
        return report.dump(1, ' ', false, Json::error_handler_t::replace);
    } catch (const std::exception& e) {
        return Status(StatusCode::kResourceExhausted,
                      "cannot inspect " + in_quotes(dir) + ": " + e.what());
    }
}

}  // namespace deepinfer
