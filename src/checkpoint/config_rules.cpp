#include "checkpoint/config_rules.h"

#include <algorithm>
#include <numeric>

namespace deepinfer {
namespace {

constexpr int64_t kScaleBlock = 32;  // columns of one FP8 / FP4 scale
constexpr int64_t kKvBlock = 16;     // columns of one scale of a packed KV entry

/// Collects complaints; each check reads as one line.
class Rules {
  public:
    explicit Rules(const ModelConfig& config) : c_(config) {}

    std::vector<std::string> run() {
        sizes();
        sources();
        candidates();
        engram();
        draft();
        vision();
        return std::move(problems_);
    }

  private:
    void require(bool ok, const std::string& sentence) {
        if (!ok) problems_.push_back(sentence);
    }

    void multiple(const std::string& name, int64_t value, int64_t of) {
        require(value % of == 0,
                name + " is " + std::to_string(value) + ", expected a multiple of " +
                    std::to_string(of) + " (quantization blocks)");
    }

    void token_id(const std::string& name, int64_t value) {
        require(value < c_.vocab_size,
                name + " is " + std::to_string(value) + ", expected a token below vocab_size " +
                    std::to_string(c_.vocab_size));
    }

    /// Layer lists are ascending without repeats and lie in the backbone.
    bool layer_list(const std::string& name, const std::vector<int64_t>& ids) {
        const size_t before = problems_.size();
        for (size_t i = 0; i < ids.size(); ++i) {
            require(ids[i] < c_.num_hidden_layers,
                    name + " names layer " + std::to_string(ids[i]) + ", expected one below " +
                        std::to_string(c_.num_hidden_layers) + " (num_hidden_layers)");
            require(i == 0 || ids[i] > ids[i - 1],
                    name + " is not strictly ascending at " + std::to_string(ids[i]));
        }
        return problems_.size() == before;
    }

    void sizes() {
        multiple("hidden_size", c_.hidden_size, kScaleBlock);
        multiple("q_lora_rank", c_.q_lora_rank, kScaleBlock);
        multiple("head_dim", c_.head_dim, kScaleBlock);
        multiple("head_dim", c_.head_dim, kKvBlock);
        multiple("moe_intermediate_size", c_.moe_intermediate_size, kScaleBlock);
        multiple("o_groups * o_lora_rank", c_.o_groups * c_.o_lora_rank, kScaleBlock);
        require(c_.num_attention_heads % c_.o_groups == 0,
                "num_attention_heads is " + std::to_string(c_.num_attention_heads) +
                    ", expected a multiple of o_groups " + std::to_string(c_.o_groups));
        if (c_.num_attention_heads % c_.o_groups == 0) {
            multiple("num_attention_heads * head_dim / o_groups",
                     c_.num_attention_heads / c_.o_groups * c_.head_dim,
                     kScaleBlock);
        }
        require(c_.qk_rope_head_dim % 2 == 0 && c_.qk_rope_head_dim <= c_.head_dim,
                "qk_rope_head_dim is " + std::to_string(c_.qk_rope_head_dim) +
                    ", expected an even number up to head_dim " + std::to_string(c_.head_dim));
        require(c_.num_experts_per_tok <= c_.n_routed_experts,
                "num_experts_per_tok is " + std::to_string(c_.num_experts_per_tok) +
                    ", expected at most n_routed_experts " + std::to_string(c_.n_routed_experts));
        token_id("bos_token_id", c_.bos_token_id);
        token_id("eos_token_id", c_.eos_token_id);
        token_id("pad_token_id", c_.pad_token_id);
        if (c_.image_token_id >= 0) token_id("image_token_id", c_.image_token_id);
        const RopeScaling& r = c_.rope_scaling;
        require(!r.yarn || r.beta_fast >= r.beta_slow,
                "rope_scaling.beta_fast is below rope_scaling.beta_slow");
    }

    /// Rules 1 to 3: who owns global KV, who runs an indexer, and that readers agree with them.
    void sources() {
        const int64_t layers = c_.num_hidden_layers;
        for (int64_t m = 0; m < c_.num_nextn_predict_layers; ++m) {
            require(c_.ratio(layers + m) == 0,
                    "compress_ratios[" + std::to_string(layers + m) + "] is " +
                        std::to_string(c_.ratio(layers + m)) + ", expected 0 for a draft stage");
        }
        const bool kv_ok = layer_list("kv_source_layer_ids", c_.kv_source_layer_ids);
        const bool index_ok = layer_list("index_source_layer_ids", c_.index_source_layer_ids);
        if (!kv_ok || !index_ok) return;
        for (int64_t s : c_.kv_source_layer_ids) {
            require(c_.ratio(s) > 0,
                    "kv_source_layer_ids names layer " + std::to_string(s) +
                        ", whose compress_ratios entry is 0, expected > 0");
            require(c_.is_index_source(s),
                    "kv_source_layer_ids names layer " + std::to_string(s) +
                        ", expected it in index_source_layer_ids too (it owns the index keys)");
        }
        for (int64_t s : c_.index_source_layer_ids) {
            require(c_.ratio(s) > 0,
                    "index_source_layer_ids names layer " + std::to_string(s) +
                        ", whose compress_ratios entry is 0, expected > 0");
        }
        for (int64_t l = 0; l < layers; ++l) layer_reads(l);
    }

    void layer_reads(int64_t l) {
        const int64_t r = c_.ratio(l);
        if (r == 0) return;
        const std::string here =
            "layer " + std::to_string(l) + " has compress ratio " + std::to_string(r);
        const int64_t kv = c_.kv_source(l);
        require(kv >= 0, here + ", expected a layer of kv_source_layer_ids at or before it");
        require(c_.index_source(l) >= 0,
                here + ", expected a layer of index_source_layer_ids at or before it");
        if (kv < 0) return;
        require(c_.ratio(kv) == r,
                here + " but reads the cache of layer " + std::to_string(kv) + " with ratio " +
                    std::to_string(c_.ratio(kv)) + ", expected equal ratios");
        const int64_t index = c_.index_source(l);
        // The top-k list that layer l reuses numbers entries of the list owner's cache.
        require(index < 0 || c_.kv_source(index) == kv,
                here + " and reads the cache of layer " + std::to_string(kv) +
                    " with the top-k list of layer " + std::to_string(index) +
                    ", expected a list made over the same cache");
    }

    /// Rules 4 and 5.
    void candidates() {
        const int64_t s = c_.candidate_source_layer_id;
        if (s < 0) return;
        const std::string name = "candidate_source_layer_id is " + std::to_string(s);
        require(c_.is_index_source(s) && c_.is_kv_source(s),
                name + ", expected a layer of kv_source_layer_ids and index_source_layer_ids");
        if (!c_.is_index_source(s) || !c_.is_kv_source(s)) return;
        for (int64_t i : c_.index_source_layer_ids) {
            require(i <= s || c_.kv_source(i) == s,
                    name + ", but index source " + std::to_string(i) +
                        " reads the cache of layer " + std::to_string(c_.kv_source(i)) +
                        ", expected all later ones to read " + std::to_string(s));
        }
        require((c_.candidate_topk_blocks - 1) * c_.candidate_block_size + 1 >= c_.index_topk,
                "candidate_topk_blocks " + std::to_string(c_.candidate_topk_blocks) +
                    " of candidate_block_size " + std::to_string(c_.candidate_block_size) +
                    " may hold fewer than index_topk " + std::to_string(c_.index_topk) +
                    " positions, expected (blocks - 1) * size + 1 >= index_topk");
    }

    void engram() {
        if (!c_.index_source_layer_ids.empty()) {
            multiple("index_head_dim", c_.index_head_dim, kScaleBlock);
            require(c_.qk_rope_head_dim <= c_.index_head_dim,
                    "qk_rope_head_dim is " + std::to_string(c_.qk_rope_head_dim) +
                        ", expected at most index_head_dim " + std::to_string(c_.index_head_dim));
        }
        if (c_.engram_layer_ids.empty()) return;
        layer_list("engram_layer_ids", c_.engram_layer_ids);
        multiple("engram_head_dim", c_.engram_head_dim, kScaleBlock);
        token_id("engram_pad_token_id", c_.engram_pad_token_id);
        require(c_.engram_compressed_vocab_size <= c_.vocab_size,
                "engram_compressed_vocab_size is " +
                    std::to_string(c_.engram_compressed_vocab_size) +
                    ", expected at most vocab_size " + std::to_string(c_.vocab_size));
        if (c_.engram_num_embeddings.size() != c_.engram_layer_ids.size()) {
            require(false,
                    "engram_num_embeddings has " + std::to_string(c_.engram_num_embeddings.size()) +
                        " entries, expected " + std::to_string(c_.engram_layer_ids.size()) +
                        " (one for each of engram_layer_ids)");
            return;
        }
        const std::vector<std::vector<int64_t>> primes = c_.engram_primes();
        for (size_t t = 0; t < primes.size(); ++t) {
            const int64_t rows = std::accumulate(primes[t].begin(), primes[t].end(), int64_t{0});
            require(c_.engram_num_embeddings[t] >= rows,
                    "engram_num_embeddings[" + std::to_string(t) + "] is " +
                        std::to_string(c_.engram_num_embeddings[t]) + ", expected at least " +
                        std::to_string(rows) + " (the sum of its hash primes)");
        }
    }

    void draft() {
        if (c_.num_nextn_predict_layers == 0) return;
        require(!c_.dspark_target_layer_ids.empty(),
                "dspark_target_layer_ids is empty, expected the layers that feed the draft stages");
        layer_list("dspark_target_layer_ids", c_.dspark_target_layer_ids);
        token_id("dspark_noise_token_id", c_.dspark_noise_token_id);
        require(c_.dspark_num_experts_per_tok <= c_.dspark_n_routed_experts,
                "dspark_num_experts_per_tok is " + std::to_string(c_.dspark_num_experts_per_tok) +
                    ", expected at most dspark_n_routed_experts " +
                    std::to_string(c_.dspark_n_routed_experts));
    }

    void vision() {
        if (!c_.has_vision) return;
        const VisionConfig& v = c_.vision;
        require(v.hidden_size % v.num_attention_heads == 0 &&
                    v.hidden_size / v.num_attention_heads % 4 == 0,
                "vision_config.hidden_size is " + std::to_string(v.hidden_size) +
                    ", expected num_attention_heads " + std::to_string(v.num_attention_heads) +
                    " times a multiple of 4 (two-dimensional rotation)");
        require(c_.image_token_id >= 0, "image_token_id is missing, but there is a vision_config");
    }

    const ModelConfig& c_;
    std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> broken_config_rules(const ModelConfig& config) {
    return Rules(config).run();
}

}  // namespace deepinfer
