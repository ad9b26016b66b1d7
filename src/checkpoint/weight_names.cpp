#include "checkpoint/weight_names.h"

#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr int64_t kScaleBlock = 32;

/// Appends tensors under a prefix ("layers.3.").
class Builder {
  public:
    explicit Builder(const ModelConfig& config) : c_(config) {
        out_.reserve(static_cast<size_t>(count_expected_tensors(config)));
    }

    std::vector<ExpectedTensor> run() {
        const int64_t d = c_.hidden_size;
        plain("embed.weight", {c_.vocab_size, d}, "vocab_size, hidden_size");
        plain("head.weight", {c_.vocab_size, d}, "vocab_size, hidden_size");
        plain("norm.weight", {d}, "hidden_size");
        for (int64_t l = 0; l < c_.num_hidden_layers; ++l) {
            prefix_ = "layers." + std::to_string(l) + ".";
            block(c_.n_routed_experts, "n_routed_experts");
            if (c_.is_kv_source(l)) compressor(c_.ratio(l));
            if (c_.is_index_source(l)) indexer();
            if (c_.engram_table(l) >= 0) engram(c_.engram_table(l));
        }
        for (int64_t m = 0; m < c_.num_nextn_predict_layers; ++m) {
            prefix_ = "mtp." + std::to_string(m) + ".";
            block(c_.dspark_n_routed_experts, "dspark_n_routed_experts");
            draft_heads(m);
        }
        prefix_.clear();
        if (c_.has_vision) vision();
        return std::move(out_);
    }

  private:
    void add(const std::string& name,
             WeightKind kind,
             std::vector<int64_t> shape,
             const std::string& dims) {
        out_.push_back({prefix_ + name, kind, std::move(shape), dims, false});
    }

    void plain(const std::string& name, std::vector<int64_t> shape, const std::string& dims) {
        add(name, WeightKind::kPlain, std::move(shape), dims);
    }

    /// X.weight [n, k] and X.scale [ceil(n/32), ceil(k/32)].
    void fp8(const std::string& name, int64_t n, int64_t k, const std::string& dims) {
        add(name + ".weight", WeightKind::kFp8, {n, k}, dims);
        add(name + ".scale",
            WeightKind::kFp8Scale,
            {(n + kScaleBlock - 1) / kScaleBlock, (k + kScaleBlock - 1) / kScaleBlock},
            "32x32 tiles of " + dims);
    }

    void fp4(const std::string& name, int64_t n, int64_t k, const std::string& dims) {
        add(name + ".weight", WeightKind::kFp4, {n, k / 2}, dims + ", two codes a byte");
        add(name + ".scale",
            WeightKind::kFp4Scale,
            {n, k / kScaleBlock},
            dims + ", 32 columns a scale");
    }

    void expert(const std::string& name,
                void (Builder::*linear)(const std::string&, int64_t, int64_t, const std::string&)) {
        const int64_t d = c_.hidden_size, i = c_.moe_intermediate_size;
        (this->*linear)(name + ".w1", i, d, "moe_intermediate_size, hidden_size");
        (this->*linear)(name + ".w2", d, i, "hidden_size, moe_intermediate_size");
        (this->*linear)(name + ".w3", i, d, "moe_intermediate_size, hidden_size");
    }

    void block(int64_t num_experts, const char* experts_field) {
        const int64_t d = c_.hidden_size, ql = c_.q_lora_rank, dh = c_.head_dim;
        const int64_t width = c_.num_attention_heads * dh;
        const int64_t ol = c_.o_groups * c_.o_lora_rank;
        fp8("attn.wq_a", ql, d, "q_lora_rank, hidden_size");
        plain("attn.q_norm.weight", {ql}, "q_lora_rank");
        fp8("attn.wq_b", width, ql, "num_attention_heads * head_dim, q_lora_rank");
        fp8("attn.wkv", dh, d, "head_dim, hidden_size");
        plain("attn.kv_norm.weight", {dh}, "head_dim");
        fp8("attn.wo_a",
            ol,
            width / c_.o_groups,
            "o_groups * o_lora_rank, num_attention_heads * head_dim / o_groups");
        fp8("attn.wo_b", d, ol, "hidden_size, o_groups * o_lora_rank");
        plain("attn.attn_sink", {c_.num_attention_heads}, "num_attention_heads");
        plain("attn_norm.weight", {d}, "hidden_size");
        plain("ffn_norm.weight", {d}, "hidden_size");
        const int64_t mix = (2 + c_.hc_mult) * c_.hc_mult;
        for (const std::string site : {"hc_attn", "hc_ffn"}) {
            plain(site + "_fn",
                  {mix, c_.hc_mult * d},
                  "(2 + hc_mult) * hc_mult, hc_mult * hidden_size");
            plain(site + "_base", {mix}, "(2 + hc_mult) * hc_mult");
            plain(site + "_scale", {3}, "pre, post, comb");
        }
        const std::string experts = experts_field;
        plain("ffn.gate.weight", {num_experts, d}, experts + ", hidden_size");
        plain("ffn.gate.bias", {num_experts}, experts);
        plain("ffn.gate.bias_vl", {num_experts}, experts);
        // The router's bias for picture tokens: without a vision tower no token uses it.
        out_.back().optional = !c_.has_vision;
        expert("ffn.shared_experts", &Builder::fp8);
        for (int64_t e = 0; e < num_experts; ++e) {
            expert("ffn.experts." + std::to_string(e), &Builder::fp4);
        }
    }

    void compressor(int64_t ratio) {
        const int64_t d = c_.hidden_size, dh = c_.head_dim, di = c_.index_head_dim;
        plain("attn.compressor.wkv.weight", {dh, d}, "head_dim, hidden_size");
        // With ratio 1 an entry is one token: nothing to weigh against.
        if (ratio > 1) plain("attn.compressor.wgate.weight", {dh, d}, "head_dim, hidden_size");
        plain("attn.compressor.norm.weight", {dh}, "head_dim");
        plain("attn.indexer.wk.weight", {di, dh}, "index_head_dim, head_dim");
        plain("attn.indexer.k_norm.weight", {di}, "index_head_dim");
    }

    void indexer() {
        fp8("attn.indexer.wq_b",
            c_.index_n_heads * c_.index_head_dim,
            c_.q_lora_rank,
            "index_n_heads * index_head_dim, q_lora_rank");
        plain("attn.indexer.weights_proj.weight",
              {c_.index_n_heads, c_.hidden_size},
              "index_n_heads, hidden_size");
    }

    void engram(int64_t table) {
        const int64_t rows = c_.engram_num_embeddings[static_cast<size_t>(table)];
        const int64_t width = c_.engram_head_dim;
        add("engram.embed.weight",
            WeightKind::kEngramTable,
            {rows, width},
            "engram_num_embeddings, engram_head_dim");
        add("engram.embed.scale",
            WeightKind::kEngramScale,
            {rows, width / kScaleBlock},
            "engram_num_embeddings, engram_head_dim / 32");
        fp8("engram.wkv",
            (c_.hc_mult + 1) * c_.hidden_size,
            c_.engram_columns() * width,
            "(hc_mult + 1) * hidden_size, (engram_max_ngram_size - 1) * engram_n_heads * "
            "engram_head_dim");
        plain("engram.q_weight", {c_.hc_mult, c_.hidden_size}, "hc_mult, hidden_size");
        plain("engram.k_weight", {c_.hc_mult, c_.hidden_size}, "hc_mult, hidden_size");
    }

    void draft_heads(int64_t stage) {
        const int64_t d = c_.hidden_size, rank = c_.dspark_markov_rank;
        if (stage == 0) {
            const int64_t taps = static_cast<int64_t>(c_.dspark_target_layer_ids.size());
            fp8("main_proj", d, taps * d, "hidden_size, dspark_target_layer_ids * hidden_size");
            plain("main_norm.weight", {d}, "hidden_size");
        }
        if (stage == c_.num_nextn_predict_layers - 1) {
            plain("norm.weight", {d}, "hidden_size");
            plain("markov_head.embed.weight",
                  {c_.vocab_size, rank},
                  "vocab_size, dspark_markov_rank");
            plain(
                "markov_head.head.weight", {c_.vocab_size, rank}, "vocab_size, dspark_markov_rank");
            plain("confidence_head.proj.weight",
                  {1, d + rank},
                  "1, hidden_size + dspark_markov_rank");
        }
    }

    void vision() {
        const VisionConfig& v = c_.vision;
        const int64_t e = v.hidden_size, f = v.intermediate_size, d = c_.hidden_size;
        plain("vision.patch_embed.proj.weight",
              {e, 3 * v.patch_size * v.patch_size},
              "vision hidden_size, 3 * patch_size^2");
        plain("vision.patch_embed.proj.bias", {e}, "vision hidden_size");
        for (int64_t i = 0; i < v.num_hidden_layers; ++i) {
            prefix_ = "vision.blocks." + std::to_string(i) + ".";
            plain("norm1.weight", {e}, "vision hidden_size");
            plain("attn.wqkv.weight", {3 * e, e}, "3 * vision hidden_size, vision hidden_size");
            plain("attn.wqkv.bias", {3 * e}, "3 * vision hidden_size");
            plain("attn.wo.weight", {e, e}, "vision hidden_size, vision hidden_size");
            plain("attn.wo.bias", {e}, "vision hidden_size");
            plain("norm2.weight", {e}, "vision hidden_size");
            plain("mlp.w1.weight", {2 * f, e}, "2 * intermediate_size, vision hidden_size");
            plain("mlp.w2.weight", {e, f}, "vision hidden_size, intermediate_size");
        }
        prefix_.clear();
        plain("vision.norm.weight", {e}, "vision hidden_size");
        plain("aligner.w1.weight",
              {d, e * v.downsample_ratio * v.downsample_ratio},
              "hidden_size, vision hidden_size * downsample_ratio^2");
        plain("aligner.w1.bias", {d}, "hidden_size");
        plain("aligner.w2.weight", {d, d}, "hidden_size, hidden_size");
        plain("aligner.w2.bias", {d}, "hidden_size");
        for (const char* name : {"image_start", "image_end", "image_newline"}) {
            plain(name, {d}, "hidden_size");
        }
    }

    const ModelConfig& c_;
    std::string prefix_;
    std::vector<ExpectedTensor> out_;
};

}  // namespace

int64_t count_expected_tensors(const ModelConfig& c) {
    // Per block: 5 FP8 projections and 3 shared expert matrices with scales (16), 3 norms of width
    // rank or head and sink (3), two block norms, 6 mHC, gate with two biases (3); and 6 per routed
    // expert.
    constexpr int64_t kBlock = 30;
    int64_t n = 3;
    n += c.num_hidden_layers * (kBlock + 6 * c.n_routed_experts);
    n += c.num_nextn_predict_layers * (kBlock + 6 * c.dspark_n_routed_experts);
    for (int64_t s : c.kv_source_layer_ids) n += c.ratio(s) > 1 ? 5 : 4;
    n += 3 * static_cast<int64_t>(c.index_source_layer_ids.size());
    n += 6 * static_cast<int64_t>(c.engram_layer_ids.size());
    if (c.num_nextn_predict_layers > 0) n += 7;
    if (c.has_vision) n += 2 + 8 * c.vision.num_hidden_layers + 1 + 4 + 3;
    return n;
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
    DI_CHECK_LE(count_expected_tensors(config), kMaxExpectedTensors);
    std::vector<ExpectedTensor> out = Builder(config).run();
    DI_CHECK_EQ(static_cast<int64_t>(out.size()), count_expected_tensors(config));
    return out;
}

bool is_ignored_leftover(std::string_view name) {
    constexpr std::string_view kPrefix = "mtp.";
    if (name.substr(0, kPrefix.size()) != kPrefix) return false;
    name.remove_prefix(kPrefix.size());
    size_t digits = 0;
    while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9') ++digits;
    if (digits == 0) return false;
    name.remove_prefix(digits);
    return name == ".embed.weight" || name == ".head.weight";
}

bool accepts_dtype(WeightKind kind, const std::string& dtype) {
    switch (kind) {
        case WeightKind::kPlain:
            return dtype == "BF16" || dtype == "F32";
        case WeightKind::kFp8:
        case WeightKind::kEngramTable:
            return dtype == "F8_E4M3";
        case WeightKind::kFp4:
            return dtype == "I8";
        case WeightKind::kFp8Scale:
        case WeightKind::kFp4Scale:
        case WeightKind::kEngramScale:
            return dtype == "F8_E8M0" || dtype == "U8";
    }
    return false;
}

const char* accepted_dtypes(WeightKind kind) {
    switch (kind) {
        case WeightKind::kPlain:
            return "BF16 or F32";
        case WeightKind::kFp8:
        case WeightKind::kEngramTable:
            return "F8_E4M3";
        case WeightKind::kFp4:
            return "I8 (two FP4 codes a byte)";
        case WeightKind::kFp8Scale:
        case WeightKind::kFp4Scale:
        case WeightKind::kEngramScale:
            return "F8_E8M0 or U8";
    }
    return "?";
}

}  // namespace deepinfer
