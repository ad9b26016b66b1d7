#include "checkpoint/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/weight_names.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::checkpoint_path;
using testing::data_path;
using ::testing::HasSubstr;
using testing::read_json;

json nano() {
    return read_json(checkpoint_path("nano") + "/config.json");
}
json release() {
    return read_json(data_path("checkpoints/release_config.json"));
}

Result<ModelConfig> parse(const json& config) {
    return parse_model_config(config.dump(), "config.json");
}

/// The names of inference/config.json for the same geometry.
json flattened(const json& hf) {
    const std::map<std::string, std::string> renamed = {
        {"hidden_size", "dim"},
        {"num_hidden_layers", "n_layers"},
        {"num_attention_heads", "n_heads"},
        {"qk_rope_head_dim", "rope_head_dim"},
        {"moe_intermediate_size", "moe_inter_dim"},
        {"num_experts_per_tok", "n_activated_experts"},
        {"scoring_func", "score_func"},
        {"routed_scaling_factor", "route_scale"},
        {"rms_norm_eps", "norm_eps"},
        {"sliding_window", "window_size"},
        {"kv_source_layer_ids", "kv_source_layers"},
        {"index_source_layer_ids", "index_source_layers"},
        {"candidate_source_layer_id", "candidate_source_layer"},
        {"engram_pad_token_id", "engram_pad_id"},
        {"num_nextn_predict_layers", "n_mtp_layers"},
        {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}};
    const std::vector<std::string> dropped = {"model_type",
                                              "num_key_value_heads",
                                              "topk_method",
                                              "norm_topk_prob",
                                              "hidden_act",
                                              "attention_bias",
                                              "rope_scaling",
                                              "max_position_embeddings"};
    json flat = {
        {"dtype", "fp8"}, {"expert_dtype", "fp4"}, {"image_token_id", hf["image_token_id"]}};
    for (const auto& item : hf["text_config"].items()) {
        if (std::find(dropped.begin(), dropped.end(), item.key()) != dropped.end()) continue;
        const auto it = renamed.find(item.key());
        flat[it == renamed.end() ? item.key() : it->second] = item.value();
    }
    const json& rope = hf["text_config"]["rope_scaling"];
    flat["rope_factor"] = rope["factor"];
    flat["beta_fast"] = rope["beta_fast"];
    flat["beta_slow"] = rope["beta_slow"];
    flat["original_seq_len"] = rope["original_max_position_embeddings"];
    const std::map<std::string, std::string> vision = {
        {"num_hidden_layers", "vision_n_layers"},
        {"hidden_size", "vision_dim"},
        {"num_attention_heads", "vision_n_heads"},
        {"intermediate_size", "vision_inter_dim"},
        {"patch_size", "vision_patch_size"},
        {"rope_theta", "vision_rope_theta"},
        {"downsample_ratio", "vision_downsample_ratio"},
        {"max_image_tokens", "vision_max_n_token"},
        {"min_pixels", "vision_min_pixels"},
        {"max_wh_ratio", "vision_max_wh_ratio"}};
    for (const auto& item : vision) flat[item.second] = hf["vision_config"][item.first];
    return flat;
}

TEST(HfConfig, ReadsEveryFieldOfTheRelease) {
    const auto r = parse(release());
    ASSERT_TRUE(r.ok()) << r.status().message();
    const ModelConfig& c = r.value();
    EXPECT_EQ(c.vocab_size, 129280);
    EXPECT_EQ(c.hidden_size, 5120);
    EXPECT_EQ(c.num_attention_heads, 64);
    EXPECT_EQ(c.rms_norm_eps, 1e-20);
    EXPECT_EQ(c.gate_temp, 1.0);
    EXPECT_EQ(c.routed_scaling_factor, 1.5);
    EXPECT_TRUE(c.rope_scaling.yarn);
    EXPECT_EQ(c.rope_scaling.original_max_position_embeddings, 65536);
    EXPECT_EQ(c.candidate_source_layer_id, 20);
    EXPECT_EQ(c.dspark_n_routed_experts, 128);
    EXPECT_EQ(c.image_token_id, 129264);
    EXPECT_TRUE(c.has_vision);
    EXPECT_EQ(c.vision.min_pixels, 295936);
    EXPECT_EQ(c.vision.max_wh_ratio, 0);
}

TEST(HfConfig, LayerRolesOfTheRelease) {
    const auto r = parse(release());
    ASSERT_TRUE(r.ok());
    const ModelConfig& c = r.value();
    for (int64_t l = 0; l < 43; ++l) {
        const int64_t kv = l < 2 || l >= 40 ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20;
        const int64_t index = l < 24 || l >= 40 ? kv : l / 4 * 4;
        EXPECT_EQ(c.kv_source(l), kv) << l;
        EXPECT_EQ(c.index_source(l), index) << l;
        EXPECT_EQ(c.is_kv_source(l), l == 2 || l == 8 || l == 14 || l == 20) << l;
        EXPECT_EQ(c.is_index_source(l), c.is_kv_source(l) || (l >= 24 && l <= 36 && l % 4 == 0))
            << l;
        EXPECT_EQ(c.engram_table(l), l == 1 ? 0 : l == 14 ? 1 : -1) << l;
    }
}

TEST(HfConfig, TestCheckpointsAndDemoAreAccepted) {
    for (const char* name : {"nano", "nano512", "demo"}) {
        const auto r = parse(read_json(checkpoint_path(name) + "/config.json"));
        EXPECT_TRUE(r.ok()) << name << ": " << r.status().message();
    }
}

TEST(HfConfig, FlatLayoutGivesTheSameConfig) {
    for (const json& hf : {release(), nano()}) {
        const auto a = parse(hf), b = parse(flattened(hf));
        ASSERT_TRUE(a.ok()) << a.status().message();
        ASSERT_TRUE(b.ok()) << b.status().message();
        const ModelConfig &x = a.value(), &y = b.value();
        EXPECT_EQ(x.hidden_size, y.hidden_size);
        EXPECT_EQ(x.num_hidden_layers, y.num_hidden_layers);
        EXPECT_EQ(x.num_attention_heads, y.num_attention_heads);
        EXPECT_EQ(x.qk_rope_head_dim, y.qk_rope_head_dim);
        EXPECT_EQ(x.moe_intermediate_size, y.moe_intermediate_size);
        EXPECT_EQ(x.num_experts_per_tok, y.num_experts_per_tok);
        EXPECT_EQ(x.scoring_func, y.scoring_func);
        EXPECT_EQ(x.norm_topk_prob, y.norm_topk_prob);
        EXPECT_EQ(x.routed_scaling_factor, y.routed_scaling_factor);
        EXPECT_EQ(x.rms_norm_eps, y.rms_norm_eps);
        EXPECT_EQ(x.max_position_embeddings == 4096 || x.max_position_embeddings == 1048576, true);
        EXPECT_EQ(x.max_position_embeddings, y.max_position_embeddings);
        EXPECT_EQ(x.rope_scaling.factor, y.rope_scaling.factor);
        EXPECT_EQ(x.rope_scaling.original_max_position_embeddings,
                  y.rope_scaling.original_max_position_embeddings);
        EXPECT_EQ(x.sliding_window, y.sliding_window);
        EXPECT_EQ(x.compress_ratios, y.compress_ratios);
        EXPECT_EQ(x.kv_source_layer_ids, y.kv_source_layer_ids);
        EXPECT_EQ(x.index_source_layer_ids, y.index_source_layer_ids);
        EXPECT_EQ(x.candidate_source_layer_id, y.candidate_source_layer_id);
        EXPECT_EQ(x.engram_pad_token_id, y.engram_pad_token_id);
        EXPECT_EQ(x.engram_num_embeddings, y.engram_num_embeddings);
        EXPECT_EQ(x.num_nextn_predict_layers, y.num_nextn_predict_layers);
        EXPECT_EQ(x.dspark_num_experts_per_tok, y.dspark_num_experts_per_tok);
        EXPECT_EQ(x.image_token_id, y.image_token_id);
        EXPECT_EQ(x.has_vision, y.has_vision);
        EXPECT_EQ(x.vision.hidden_size, y.vision.hidden_size);
        EXPECT_EQ(x.vision.min_pixels, y.vision.min_pixels);
        EXPECT_EQ(expected_tensors(x).size(), expected_tensors(y).size());
    }
}

// Field case C-003.
TEST(HfConfig, ModelTypeAndArchitectureMatchExactly) {
    int rows = 0;
    for (const auto& c : read_json(data_path("cases/checkpoint.json"))) {
        if (c["id"] != "C-003") continue;
        for (const auto& row : c["rows"]) {
            SCOPED_TRACE(row.dump());
            json config = nano();
            config.update(row["in"]["config"]);
            const auto r = parse(config);
            EXPECT_EQ(r.ok(), row["want"] == "loads") << r.status().message();
            if (!r.ok()) {
                EXPECT_EQ(r.status().code(), StatusCode::kInvalidFile);
                EXPECT_THAT(r.status().message(), HasSubstr("\"deepseek_v41\""));
            }
            ++rows;
        }
    }
    EXPECT_EQ(rows, 9);
}

/// Fields that a config may lack, because the format gives them a default or another layout has
/// none.
const std::set<std::string> kOptional = {"architectures",
                                         "dtype",
                                         "bos_token_id",
                                         "eos_token_id",
                                         "pad_token_id",
                                         "vision_config",
                                         "text_config.model_type",
                                         "text_config.num_key_value_heads",
                                         "text_config.topk_method",
                                         "text_config.norm_topk_prob",
                                         "text_config.hidden_act",
                                         "text_config.attention_bias",
                                         "text_config.candidate_source_layer_id",
                                         "text_config.dspark_n_routed_experts",
                                         "text_config.dspark_num_experts_per_tok",
                                         "vision_config.model_type",
                                         "vision_config.max_wh_ratio"};

struct Field {
    std::vector<std::string> path;
    std::string dotted() const {
        std::string s;
        for (const std::string& p : path) s += (s.empty() ? "" : ".") + p;
        return s;
    }
    json& in(json& root) const {
        json* at = &root;
        for (const std::string& p : path) at = &(*at)[p];
        return *at;
    }
    void erase_from(json& root) const {
        json* at = &root;
        for (size_t i = 0; i + 1 < path.size(); ++i) at = &(*at)[path[i]];
        at->erase(path.back());
    }
};

std::vector<Field> all_fields(const json& object, const std::vector<std::string>& prefix = {}) {
    std::vector<Field> out;
    for (const auto& item : object.items()) {
        std::vector<std::string> path = prefix;
        path.push_back(item.key());
        out.push_back({path});
        if (item.value().is_object()) {
            for (Field& f : all_fields(item.value(), path)) out.push_back(std::move(f));
        }
    }
    return out;
}

TEST(HfConfig, EveryFieldIsNeededUnlessItHasADefault) {
    for (const Field& f : all_fields(nano())) {
        SCOPED_TRACE(f.dotted());
        json config = nano();
        f.erase_from(config);
        const auto r = parse(config);
        EXPECT_EQ(r.ok(), kOptional.count(f.dotted()) != 0) << r.status().message();
        if (f.dotted() == "text_config") continue;  // reads as the flat layout then
        if (!r.ok()) {
            EXPECT_THAT(r.status().message(), HasSubstr(f.path.back()));
        }
    }
}

TEST(HfConfig, EveryFieldRefusesTheWrongType) {
    for (const Field& f : all_fields(nano())) {
        for (const json& wrong :
             {json("x"), json(true), json(json::array({"x"})), json(json::object({{"x", 1}}))}) {
            json config = nano();
            json& value = f.in(config);
            if (value.is_boolean() && wrong.is_boolean()) continue;
            value = wrong;
            SCOPED_TRACE(f.dotted() + " = " + wrong.dump());
            const auto r = parse(config);
            ASSERT_FALSE(r.ok());
            EXPECT_THAT(r.status().message(), HasSubstr(f.path.back()));
        }
    }
}

TEST(HfConfig, EveryNumberRefusesAbsurdValues) {
    // Token ids and pixel counts may be 0; no field of this architecture takes one of these.
    const std::vector<json> absurd = {-1,
                                      std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min(),
                                      std::numeric_limits<uint64_t>::max(),
                                      1e300,
                                      -0.5};
    for (const Field& f : all_fields(nano())) {
        json probe = nano();
        const json value = f.in(probe);
        const bool list = value.is_array() && !value.empty() && value[0].is_number();
        if (!value.is_number() && !list) continue;
        for (const json& bad : absurd) {
            // A negative candidate source is the documented way to have none.
            if (f.path.back() == "candidate_source_layer_id" && bad.is_number_integer() && bad < 0)
                continue;
            json config = nano();
            f.in(config) = list ? json::array({bad}) : bad;
            SCOPED_TRACE(f.dotted() + " = " + f.in(config).dump());
            const auto r = parse(config);
            ASSERT_FALSE(r.ok());
            EXPECT_THAT(r.status().message(), HasSubstr(f.path.back()));
        }
    }
}

TEST(HfConfig, NumbersBeyondJsonAreRefused) {
    const std::string text = nano().dump();
    const std::string key = "\"swiglu_limit\":10.0";
    ASSERT_NE(text.find(key), std::string::npos);
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "01", "+1", "0x10"}) {
        std::string changed = text;
        changed.replace(changed.find(key), key.size(), std::string("\"swiglu_limit\":") + value);
        EXPECT_FALSE(parse_model_config(changed, "config.json").ok()) << value;
    }
    EXPECT_FALSE(parse_model_config("", "config.json").ok());
    EXPECT_FALSE(parse_model_config("[]", "config.json").ok());
    EXPECT_FALSE(parse_model_config(text + text, "config.json").ok());
    EXPECT_FALSE(
        parse_model_config("{\"model_type\":\"deepseek_v41\"," + text.substr(1), "config.json")
            .ok());
}

TEST(HfConfig, UnknownFieldsAreRefusedByNameAndHarmlessOnesPass) {
    const std::vector<std::string> unknown = {"/qk_norm",
                                              "/auto_map",
                                              "/text_config/q_head_norm",
                                              "/text_config/rope_scaling/mscale",
                                              "/vision_config/use_abs_pos",
                                              "/quantization_config/modules_to_not_convert",
                                              "/text_config/layer_types"};
    for (const std::string& path : unknown) {
        json config = nano();
        config[json::json_pointer(path)] = 1;
        const auto r = parse(config);
        ASSERT_FALSE(r.ok()) << path;
        EXPECT_THAT(r.status().message(),
                    AllOf(HasSubstr("unknown field"), HasSubstr(path.substr(path.rfind('/') + 1))));
    }
    json config = nano();
    config["transformers_version"] = "5.0.0";
    config["torch_dtype"] = "bfloat16";
    config["tie_word_embeddings"] = false;
    config["text_config"]["use_cache"] = true;
    config["text_config"]["initializer_range"] = 0.02;
    config["text_config"]["attention_dropout"] = 0.0;
    EXPECT_TRUE(parse(config).ok()) << parse(config).status().message();
    config["tie_word_embeddings"] = true;
    EXPECT_FALSE(parse(config).ok());
}

TEST(HfConfig, TwoSpellingsMustAgree) {
    json config = nano();
    config["text_config"]["dim"] = 256;
    EXPECT_TRUE(parse(config).ok()) << parse(config).status().message();
    config["text_config"]["dim"] = 128;
    const auto r = parse(config);
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.status().message(), AllOf(HasSubstr("hidden_size is 256"), HasSubstr("dim")));
}

TEST(HfConfig, AllWrongFieldsStandInOneMessage) {
    json config = nano();
    config["text_config"]["head_dim"] = "64";
    config["text_config"]["hc_mult"] = 0;
    config["text_config"].erase("vocab_size");
    config["vision_config"]["patch_size"] = nullptr;
    const auto r = parse(config);
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(
        r.status().message(),
        AllOf(HasSubstr("text_config.head_dim is \"64\", expected an integer from 1 to 65536"),
              HasSubstr("text_config.hc_mult is 0"),
              HasSubstr("text_config.vocab_size is missing"),
              HasSubstr("vision_config.patch_size is null")));
}

struct Rule {
    const char* what;
    std::function<void(json&)> change;  // gets text_config
    const char* message;                // nullptr = still valid
};

TEST(HfConfig, EveryRuleHasItsSentence) {
    const std::vector<Rule> rules = {
        {"ratios without the stages",
         [](json& t) { t["compress_ratios"].get_ref<json::array_t&>().resize(12); },
         nullptr},
        {"ratios one short",
         [](json& t) { t["compress_ratios"].get_ref<json::array_t&>().resize(14); },
         "compress_ratios has 14 entries, expected 15"},
        {"ratios one long", [](json& t) { t["compress_ratios"].push_back(0); }, "compress_ratios"},
        {"stage with a ratio",
         [](json& t) { t["compress_ratios"][13] = 1; },
         "compress_ratios[13] is 1, expected 0"},
        {"kv source without ratio",
         [](json& t) {
             t["kv_source_layer_ids"] = {1, 2, 4, 6};
             t["index_source_layer_ids"] = {1, 2, 4, 6, 8, 10};
         },
         "kv_source_layer_ids names layer 1, whose compress_ratios entry is 0"},
        {"index source without ratio",
         [](json& t) {
             t["index_source_layer_ids"] = {0, 2, 4, 6, 8, 10};
         },
         "index_source_layer_ids names layer 0, whose"},
        {"kv source beyond the backbone",
         [](json& t) {
             t["kv_source_layer_ids"] = {2, 4, 6, 12};
         },
         "kv_source_layer_ids names layer 12"},
        {"kv source twice",
         [](json& t) {
             t["kv_source_layer_ids"] = {2, 4, 4, 6};
         },
         "kv_source_layer_ids is not strictly ascending at 4"},
        {"kv source that is no index source",
         [](json& t) {
             t["index_source_layer_ids"] = {2, 6, 8, 10};
         },
         "expected it in index_source_layer_ids"},
        {"layer before the first source",
         [](json& t) { t["compress_ratios"][1] = 2; },
         "layer 1 has compress ratio 2, expected a layer of kv_source_layer_ids"},
        {"no sources at all",
         [](json& t) {
             t["kv_source_layer_ids"] = json::array();
             t["index_source_layer_ids"] = json::array();
             t["candidate_source_layer_id"] = -1;
         },
         "expected a layer of kv_source_layer_ids"},
        {"reader with another ratio",
         [](json& t) { t["compress_ratios"][5] = 1; },
         "layer 5 has compress ratio 1 but reads the cache of layer 4 with ratio 2"},
        {"candidate source is a plain reader",
         [](json& t) { t["candidate_source_layer_id"] = 8; },
         "candidate_source_layer_id is 8"},
        {"candidate source before another cache",
         [](json& t) { t["candidate_source_layer_id"] = 4; },
         "index source 6 reads the cache of layer 6"},
        {"no candidate level",
         [](json& t) {
             for (const char* k :
                  {"candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"})
                 t.erase(k);
         },
         nullptr},
        {"negative candidate source",
         [](json& t) { t["candidate_source_layer_id"] = -7; },
         nullptr},
        {"candidates just enough", [](json& t) { t["index_topk"] = 29; }, nullptr},
        {"candidates one short", [](json& t) { t["index_topk"] = 30; }, "candidate_topk_blocks 8"},
        {"two key heads",
         [](json& t) { t["num_key_value_heads"] = 2; },
         "num_key_value_heads is 2, expected 1"},
        {"two shared experts",
         [](json& t) { t["n_shared_experts"] = 2; },
         "n_shared_experts is 2, expected 1"},
        {"odd rotation", [](json& t) { t["qk_rope_head_dim"] = 15; }, "qk_rope_head_dim is 15"},
        {"rotation wider than the head",
         [](json& t) { t["qk_rope_head_dim"] = 66; },
         "qk_rope_head_dim is 66"},
        {"rotation wider than index heads",
         [](json& t) { t["qk_rope_head_dim"] = 34; },
         "at most index_head_dim 32"},
        {"heads that do not divide",
         [](json& t) { t["o_groups"] = 3; },
         "expected a multiple of o_groups 3"},
        {"hidden size off the scale grid",
         [](json& t) { t["hidden_size"] = 250; },
         "hidden_size is 250, expected a multiple of 32"},
        {"query rank off the grid", [](json& t) { t["q_lora_rank"] = 120; }, "q_lora_rank is 120"},
        {"head off the grid", [](json& t) { t["head_dim"] = 48; }, "head_dim is 48"},
        {"inner size off the grid",
         [](json& t) { t["moe_intermediate_size"] = 72; },
         "moe_intermediate_size is 72"},
        {"output rank off the grid",
         [](json& t) { t["o_lora_rank"] = 40; },
         "o_groups * o_lora_rank is 80"},
        {"index head off the grid",
         [](json& t) { t["index_head_dim"] = 40; },
         "index_head_dim is 40"},
        {"engram width off the grid",
         [](json& t) { t["engram_head_dim"] = 48; },
         "engram_head_dim is 48"},
        {"table too small",
         [](json& t) {
             t["engram_num_embeddings"] = {3143, 3424};
         },
         "engram_num_embeddings[0] is 3143, expected at least 3144"},
        {"table with spare rows",
         [](json& t) {
             t["engram_num_embeddings"] = {134217728, 3424};
         },
         nullptr},
        {"table count",
         [](json& t) { t["engram_num_embeddings"] = {3144}; },
         "engram_num_embeddings has 1 entries, expected 2"},
        {"engram layer beyond",
         [](json& t) {
             t["engram_layer_ids"] = {1, 12};
         },
         "engram_layer_ids names layer 12"},
        {"compressed vocabulary too large",
         [](json& t) { t["engram_compressed_vocab_size"] = 2049; },
         "engram_compressed_vocab_size is 2049"},
        {"engram pad",
         [](json& t) { t["engram_pad_token_id"] = 2048; },
         "engram_pad_token_id is 2048"},
        {"too many choices",
         [](json& t) { t["num_experts_per_tok"] = 13; },
         "num_experts_per_tok is 13"},
        {"too many draft choices",
         [](json& t) { t["dspark_num_experts_per_tok"] = 9; },
         "dspark_num_experts_per_tok is 9"},
        {"draft experts as the backbone",
         [](json& t) {
             t["dspark_n_routed_experts"] = 0;
             t["dspark_num_experts_per_tok"] = 0;
         },
         nullptr},
        {"noise token",
         [](json& t) { t["dspark_noise_token_id"] = 2048; },
         "dspark_noise_token_id is 2048"},
        {"no taps",
         [](json& t) { t["dspark_target_layer_ids"] = json::array(); },
         "dspark_target_layer_ids is empty"},
        {"tap beyond",
         [](json& t) {
             t["dspark_target_layer_ids"] = {9, 12};
         },
         "dspark_target_layer_ids names layer 12"},
        {"scoring",
         [](json& t) { t["scoring_func"] = "sigmoid2"; },
         "scoring_func is \"sigmoid2\", expected \"sqrtsoftplus\" or \"softmax\" or \"sigmoid\""},
        {"scoring sigmoid", [](json& t) { t["scoring_func"] = "sigmoid"; }, nullptr},
        {"activation",
         [](json& t) { t["hidden_act"] = "gelu"; },
         "hidden_act is \"gelu\", expected \"silu\""},
        {"top-k method", [](json& t) { t["topk_method"] = "greedy"; }, "topk_method"},
        {"expert groups", [](json& t) { t["n_group"] = 8; }, "n_group is 8, expected 1"},
        {"dense first layers",
         [](json& t) { t["first_k_dense_replace"] = 3; },
         "first_k_dense_replace is 3, expected 0"},
        {"attention bias",
         [](json& t) { t["attention_bias"] = true; },
         "attention_bias is true, expected false"},
        {"other rope scaling",
         [](json& t) { t["rope_scaling"]["rope_type"] = "linear"; },
         "rope_type is \"linear\", expected \"yarn\""},
        {"no rope scaling", [](json& t) { t["rope_scaling"] = nullptr; }, nullptr},
        {"betas the wrong way",
         [](json& t) { t["rope_scaling"]["beta_fast"] = 0.5; },
         "beta_fast is below"},
        {"part of a model",
         [](json& t) { t["model_type"] = "deepseek_v4_text"; },
         "text_config.model_type"},
    };
    for (const Rule& rule : rules) {
        SCOPED_TRACE(rule.what);
        json config = nano();
        rule.change(config["text_config"]);
        const auto r = parse(config);
        EXPECT_EQ(r.ok(), rule.message == nullptr) << r.status().message();
        if (rule.message != nullptr) {
            EXPECT_THAT(r.status().message(), HasSubstr(rule.message));
        }
    }
}

TEST(HfConfig, QuantizationAndTokenRules) {
    const std::vector<std::pair<const char*, json>> rows = {
        {"/quantization_config/quant_method", "gptq"},
        {"/quantization_config/activation_scheme", "static"},
        {"/quantization_config/weight_block_size", {128, 128}},
        {"/quantization_config/scale_fmt", "float"},
        {"/quantization_config/expert_dtype", "fp8"},
        {"/dtype", "float16"},
        {"/bos_token_id", 2048},
        {"/image_token_id", 2048},
        {"/vision_config/hidden_size", 66},
        {"/vision_config/max_image_tokens", 3},
        {"/vision_config/model_type", "siglip"},
    };
    for (const auto& row : rows) {
        json config = nano();
        config[json::json_pointer(row.first)] = row.second;
        const std::string path = row.first;
        const auto r = parse(config);
        ASSERT_FALSE(r.ok()) << path;
        EXPECT_THAT(r.status().message(), HasSubstr(path.substr(path.rfind('/') + 1)));
    }
}

TEST(HfConfig, TextOnlyAndWithoutDrafts) {
    json config = nano();
    config.erase("vision_config");
    config.erase("image_token_id");
    json& t = config["text_config"];
    t["num_nextn_predict_layers"] = 0;
    for (const char* k : {"dspark_block_size",
                          "dspark_noise_token_id",
                          "dspark_target_layer_ids",
                          "dspark_markov_rank",
                          "dspark_n_routed_experts",
                          "dspark_num_experts_per_tok",
                          "engram_layer_ids",
                          "engram_num_embeddings",
                          "engram_max_ngram_size",
                          "engram_vocab_size",
                          "engram_n_heads",
                          "engram_head_dim",
                          "engram_pad_token_id",
                          "engram_compressed_vocab_size"}) {
        t.erase(k);
    }
    t["compress_ratios"].get_ref<json::array_t&>().resize(12);
    const auto r = parse(config);
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_FALSE(r->has_vision);
    EXPECT_EQ(r->num_nextn_predict_layers, 0);
    EXPECT_EQ(r->image_token_id, -1);
    for (const ExpectedTensor& e : expected_tensors(r.value())) {
        EXPECT_EQ(e.name.rfind("mtp.", 0), std::string::npos) << e.name;
        EXPECT_EQ(e.name.find("engram"), std::string::npos) << e.name;
    }
}

TEST(WeightNames, TheReleaseHas96085Tensors) {
    const auto c = parse(release());
    ASSERT_TRUE(c.ok());
    const auto tensors = expected_tensors(c.value());
    EXPECT_EQ(tensors.size(), 96085u);
    EXPECT_EQ(count_expected_tensors(c.value()), 96085);
    int64_t mtp = 0;
    double backbone = 0, tables = 0, draft = 0, table_bytes = 0;
    std::set<std::string> names;
    for (const ExpectedTensor& t : tensors) {
        EXPECT_TRUE(names.insert(t.name).second) << t.name;
        double n = t.kind == WeightKind::kFp4 ? 2 : 1;
        for (int64_t d : t.shape) n *= static_cast<double>(d);
        const bool table = t.kind == WeightKind::kEngramTable || t.kind == WeightKind::kEngramScale;
        if (table) table_bytes += n;
        const bool is_mtp = t.name.rfind("mtp.", 0) == 0;
        mtp += is_mtp ? 1 : 0;
        if (t.name.size() > 6 && t.name.substr(t.name.size() - 6) == ".scale") continue;
        if (t.name.rfind("vision.", 0) == 0 || t.name.rfind("aligner.", 0) == 0) continue;
        (table ? tables : is_mtp ? draft : backbone) += n;
    }
    EXPECT_EQ(mtp, 2401);
    EXPECT_NEAR(backbone / 1e9, 551.9, 0.05);
    EXPECT_NEAR(tables / 1e9, 196.6, 0.05);
    EXPECT_NEAR(draft / 1e9, 14.2, 0.05);
    EXPECT_NEAR(table_bytes / 1e9, 202.8, 0.05);
}

TEST(WeightNames, ShapesOfTheRelease) {
    const auto c = parse(release());
    ASSERT_TRUE(c.ok());
    std::map<std::string, std::vector<int64_t>> shape;
    for (const ExpectedTensor& t : expected_tensors(c.value())) shape[t.name] = t.shape;
    using S = std::vector<int64_t>;
    EXPECT_EQ(shape.at("layers.0.attn.wq_b.weight"), (S{32768, 1280}));
    EXPECT_EQ(shape.at("layers.0.attn.wq_b.scale"), (S{1024, 40}));
    EXPECT_EQ(shape.at("layers.39.attn.wo_a.weight"), (S{8192, 4096}));
    EXPECT_EQ(shape.at("layers.39.attn.wo_b.scale"), (S{160, 256}));
    EXPECT_EQ(shape.at("layers.5.hc_attn_fn"), (S{24, 20480}));
    EXPECT_EQ(shape.at("layers.5.ffn.experts.383.w1.weight"), (S{2304, 2560}));
    EXPECT_EQ(shape.at("layers.5.ffn.experts.383.w2.scale"), (S{5120, 72}));
    EXPECT_EQ(shape.at("layers.2.attn.compressor.wgate.weight"), (S{512, 5120}));
    EXPECT_EQ(shape.count("layers.20.attn.compressor.wgate.weight"), 0u);
    EXPECT_EQ(shape.at("layers.20.attn.indexer.wk.weight"), (S{128, 512}));
    EXPECT_EQ(shape.count("layers.24.attn.indexer.wk.weight"), 0u);
    EXPECT_EQ(shape.at("layers.24.attn.indexer.wq_b.scale"), (S{128, 40}));
    EXPECT_EQ(shape.at("layers.14.engram.wkv.scale"), (S{800, 192}));
    EXPECT_EQ(shape.at("layers.14.engram.embed.scale"), (S{384016682, 8}));
    EXPECT_EQ(shape.at("mtp.0.main_proj.weight"), (S{5120, 15360}));
    EXPECT_EQ(shape.at("mtp.2.confidence_head.proj.weight"), (S{1, 5376}));
    EXPECT_EQ(shape.at("mtp.1.ffn.gate.bias_vl"), (S{128}));
    EXPECT_EQ(shape.at("vision.blocks.31.mlp.w1.weight"), (S{5632, 1024}));
    EXPECT_EQ(shape.at("aligner.w1.weight"), (S{5120, 9216}));
}

TEST(WeightNames, LeftoversAreMatchedExactly) {
    for (const char* yes : {"mtp.0.embed.weight", "mtp.12.head.weight"})
        EXPECT_TRUE(is_ignored_leftover(yes)) << yes;
    for (const char* no : {"mtp.embed.weight",
                           "mtp..embed.weight",
                           "mtp.0.embed.weights",
                           "mtp.a.head.weight",
                           "layers.0.embed.weight",
                           "mtp.0.markov_head.embed.weight",
                           "xmtp.0.embed.weight",
                           ""}) {
        EXPECT_FALSE(is_ignored_leftover(no)) << no;
    }
}

}  // namespace
}  // namespace deepinfer
