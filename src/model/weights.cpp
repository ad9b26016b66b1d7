#include "model/weights.h"

#include <cstring>
#include <string>

namespace deepinfer {
namespace {

class Binder {
  public:
    /// Converted tensors are kept in `host`, which outlives what is bound.
    Binder(const Checkpoint& checkpoint, Backend& backend, std::deque<std::vector<uint8_t>>& host)
        : checkpoint_(checkpoint), backend_(backend), host_(host) {}

    const Status& status() const { return status_; }

    /// A linear layer's weight: `name`.weight, and `name`.scale for FP8 and FP4.
    WeightMatrix matrix(const std::string& name) {
        const StoredTensor& w = stored(name + ".weight");
        WeightMatrix m;
        m.dtype = w.view.dtype;
        m.n = w.view.dim(0);
        m.k = w.view.dim(1);
        m.weight = w.view.data;
        if (m.dtype == DType::kFP8E4M3 || m.dtype == DType::kFP4)
            m.scale = stored(name + ".scale").view.ptr<uint8_t>();
        keep(backend_.prepare(m));
        if (m.weight != w.view.data || !backend_.reads_stored(m)) {
            checkpoint_.release(name + ".weight");
            if (m.dtype == DType::kFP8E4M3 || m.dtype == DType::kFP4)
                checkpoint_.release(name + ".scale");
        }
        return m;
    }

    /// A BF16 matrix with zero columns appended up to a multiple of `step`.
    WeightMatrix widened_matrix(const std::string& name, int64_t step) {
        const Tensor& w = stored(name + ".weight").view;
        DI_CHECK(w.dtype == DType::kBF16);
        WeightMatrix m;
        m.dtype = w.dtype;
        m.n = w.dim(0);
        m.k = (w.dim(1) + step - 1) / step * step;
        host_.emplace_back(static_cast<size_t>(m.n * m.k) * sizeof(bf16));
        for (int64_t r = 0; r < m.n; ++r) {
            std::memcpy(host_.back().data() + static_cast<size_t>(r * m.k) * sizeof(bf16),
                        w.row<bf16>(r),
                        static_cast<size_t>(w.dim(1)) * sizeof(bf16));
        }
        m.weight = host_.back().data();
        keep(backend_.prepare(m));
        return m;
    }

    /// A vector as bf16 in host memory.
    std::vector<bf16> bf16_vector(const std::string& name) {
        const Tensor& src = stored(name).view;
        std::vector<bf16> out(static_cast<size_t>(src.numel()));
        for (size_t i = 0; i < out.size(); ++i)
            out[i] = src.dtype == DType::kBF16 ? src.ptr<bf16>()[i] : to_bf16(src.ptr<float>()[i]);
        return out;
    }

    /// Columns [begin, end) of a matrix of one row, as a matrix of their own.
    WeightMatrix part_of_row(const std::string& name, int64_t begin, int64_t end) {
        const Tensor part = stored(name + ".weight").view.cols(begin, end);
        DI_CHECK(part.dim(0) == 1 && (part.dtype == DType::kBF16 || part.dtype == DType::kF32));
        WeightMatrix m;
        m.dtype = part.dtype;
        m.n = 1;
        m.k = end - begin;
        m.weight = part.data;
        keep(backend_.prepare(m));
        return m;
    }

    /// Rows that are looked up, not multiplied: never repacked.
    WeightMatrix table(const std::string& weight_name, const std::string& scale_name) {
        Tensor w = stored(weight_name).view;
        WeightMatrix m;
        m.dtype = w.dtype;
        m.n = w.dim(0);
        m.k = w.dim(1);
        const void* host = w.data;
        keep(backend_.prepare(w));
        m.weight = w.data;
        if (m.weight != host) checkpoint_.release(weight_name);
        if (!scale_name.empty()) {
            Tensor s = stored(scale_name).view;
            keep(backend_.prepare(s));
            m.scale = s.ptr<uint8_t>();
        }
        return m;
    }

    /// A small tensor as f32 (BF16 widens exactly).
    Tensor f32(const std::string& name) {
        const Tensor& src = stored(name).view;
        const int64_t n = src.numel();
        std::vector<float> values(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) {
            values[static_cast<size_t>(i)] =
                src.dtype == DType::kBF16 ? to_float(src.ptr<bf16>()[i]) : src.ptr<float>()[i];
        }
        checkpoint_.release(name);
        Tensor t = own(values.data(), DType::kF32, n);
        if (src.ndim == 2) t = t.reshaped({src.dim(0), src.dim(1)});
        return t;
    }

    Tensor i64(const std::vector<int64_t>& values) {
        return own(values.data(), DType::kI64, static_cast<int64_t>(values.size()));
    }

  private:
    const StoredTensor& stored(const std::string& name) {
        const StoredTensor* t = checkpoint_.find(name);
        DI_CHECK_MSG(t != nullptr, name);  // Checkpoint::open has checked the whole name set
        return *t;
    }
    Tensor own(const void* data, DType dtype, int64_t n) {
        const size_t bytes = static_cast<size_t>(n) * static_cast<size_t>(dtype_bits(dtype)) / 8;
        host_.emplace_back(bytes);
        std::memcpy(host_.back().data(), data, bytes);
        Tensor t(host_.back().data(), dtype, {n});
        keep(backend_.prepare(t));
        return t;
    }
    void keep(Status s) {
        if (status_.ok()) status_ = std::move(s);
    }

    const Checkpoint& checkpoint_;
    Backend& backend_;
    std::deque<std::vector<uint8_t>>& host_;
    Status status_;
};

HyperConnectionWeights bind_hyper_connection(Binder& b, const std::string& prefix) {
    return {b.f32(prefix + "_fn"), b.f32(prefix + "_base"), b.f32(prefix + "_scale")};
}

ExpertWeights bind_expert(Binder& b, const std::string& prefix) {
    return {b.matrix(prefix + ".w1"), b.matrix(prefix + ".w3"), b.matrix(prefix + ".w2")};
}

EngramWeights bind_engram(Binder& b, const ModelConfig& c, int64_t layer) {
    const std::string p = "layers." + std::to_string(layer) + ".engram.";
    EngramWeights e;
    e.table = b.table(p + "embed.weight", p + "embed.scale");
    e.wkv = b.matrix(p + "wkv");
    e.q_weight = b.f32(p + "q_weight");
    e.k_weight = b.f32(p + "k_weight");
    e.multipliers =
        b.i64(engram_multipliers(layer, c.engram_max_ngram_size, c.engram_compressed_vocab_size));
    const std::vector<int64_t> primes =
        c.engram_primes()[static_cast<size_t>(c.engram_table(layer))];
    std::vector<int64_t> offsets;
    int64_t sum = 0;
    for (int64_t prime : primes) {
        offsets.push_back(sum);
        sum += prime;
    }
    e.primes = b.i64(primes);
    e.offsets = b.i64(offsets);
    return e;
}

/// Attention, hyper-connections and MoE: the 30 tensors and experts that every block has.
LayerWeights bind_block(Binder& b, const std::string& p, int64_t num_experts) {
    LayerWeights w;
    w.hc_attn = bind_hyper_connection(b, p + "hc_attn");
    w.hc_ffn = bind_hyper_connection(b, p + "hc_ffn");
    w.attn_norm = b.f32(p + "attn_norm.weight");
    w.ffn_norm = b.f32(p + "ffn_norm.weight");
    w.wq_a = b.matrix(p + "attn.wq_a");
    w.q_norm = b.f32(p + "attn.q_norm.weight");
    w.wq_b = b.matrix(p + "attn.wq_b");
    w.wkv = b.matrix(p + "attn.wkv");
    w.kv_norm = b.f32(p + "attn.kv_norm.weight");
    w.wo_a = b.matrix(p + "attn.wo_a");
    w.wo_b = b.matrix(p + "attn.wo_b");
    w.attn_sink = b.f32(p + "attn.attn_sink");
    w.gate = b.matrix(p + "ffn.gate");
    w.gate_bias = b.f32(p + "ffn.gate.bias");
    w.gate_bias_vl = b.f32(p + "ffn.gate.bias_vl");
    w.shared = bind_expert(b, p + "ffn.shared_experts");
    for (int64_t e = 0; e < num_experts; ++e)
        w.experts.push_back(bind_expert(b, p + "ffn.experts." + std::to_string(e)));
    return w;
}

}  // namespace

Status bind_weights(const Checkpoint& checkpoint, Backend& backend, ModelWeights& out) {
    const ModelConfig& c = checkpoint.config();
    Binder b(checkpoint, backend, out.host);
    out.embed = b.table("embed.weight", "");
    out.head = b.matrix("head");
    out.norm = b.f32("norm.weight");
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        const std::string p = "layers." + std::to_string(l) + ".";
        LayerWeights w = bind_block(b, p, c.n_routed_experts);
        if (c.is_kv_source(l)) {
            w.compressor.wkv = b.matrix(p + "attn.compressor.wkv");
            if (c.ratio(l) > 1) w.compressor.wgate = b.matrix(p + "attn.compressor.wgate");
            w.compressor.norm = b.f32(p + "attn.compressor.norm.weight");
            w.compressor.index_wk = b.matrix(p + "attn.indexer.wk");
            w.compressor.index_k_norm = b.f32(p + "attn.indexer.k_norm.weight");
        }
        if (c.is_index_source(l)) {
            w.indexer.wq_b = b.matrix(p + "attn.indexer.wq_b");
            w.indexer.weights_proj = b.matrix(p + "attn.indexer.weights_proj");
        }
        if (c.engram_table(l) >= 0) w.engram = bind_engram(b, c, l);
        out.layers.push_back(std::move(w));
        DI_RETURN_IF_ERROR(b.status());
    }
    return b.status();
}

Status bind_dspark_weights(const Checkpoint& checkpoint, Backend& backend, ModelWeights& out) {
    const ModelConfig& c = checkpoint.config();
    DI_CHECK_GE(c.num_nextn_predict_layers, 1);
    Binder b(checkpoint, backend, out.host);
    DsparkWeights& d = out.dspark;
    d.main_proj = b.matrix("mtp.0.main_proj");
    d.main_norm = b.f32("mtp.0.main_norm.weight");
    for (int64_t m = 0; m < c.num_nextn_predict_layers; ++m) {
        d.stages.push_back(
            bind_block(b, "mtp." + std::to_string(m) + ".", c.dspark_n_routed_experts));
    }
    const std::string last = "mtp." + std::to_string(c.num_nextn_predict_layers - 1) + ".";
    d.norm = b.f32(last + "norm.weight");
    d.markov_embed = b.table(last + "markov_head.embed.weight", "");
    d.markov_head = b.matrix(last + "markov_head.head");
    const std::string proj = last + "confidence_head.proj";
    d.confidence_hidden = b.part_of_row(proj, 0, c.hidden_size);
    d.confidence_markov = b.part_of_row(proj, c.hidden_size, c.hidden_size + c.dspark_markov_rank);
    return b.status();
}

Status bind_vision_weights(const Checkpoint& checkpoint, Backend& backend, VisionWeights& out) {
    constexpr int64_t kGemmStep = 32;  // the fast kernels' block of k; 3 · 14² is no multiple
    const VisionConfig& c = checkpoint.config().vision;
    Binder b(checkpoint, backend, out.host);
    out.patch_embed = b.widened_matrix("vision.patch_embed.proj", kGemmStep);
    out.patch_width = out.patch_embed.k;
    out.patch_embed_bias = b.f32("vision.patch_embed.proj.bias");
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
        const std::string p = "vision.blocks." + std::to_string(i) + ".";
        VisionBlockWeights w;
        w.norm1 = b.f32(p + "norm1.weight");
        w.wqkv = b.matrix(p + "attn.wqkv");
        w.wqkv_bias = b.f32(p + "attn.wqkv.bias");
        w.wo = b.matrix(p + "attn.wo");
        w.wo_bias = b.f32(p + "attn.wo.bias");
        w.norm2 = b.f32(p + "norm2.weight");
        w.mlp_w1 = b.matrix(p + "mlp.w1");
        w.mlp_w2 = b.matrix(p + "mlp.w2");
        out.blocks.push_back(w);
    }
    out.norm = b.f32("vision.norm.weight");
    out.aligner_w1 = b.matrix("aligner.w1");
    out.aligner_w1_bias = b.f32("aligner.w1.bias");
    out.aligner_w2 = b.matrix("aligner.w2");
    out.aligner_w2_bias = b.f32("aligner.w2.bias");
    out.image_start = b.bf16_vector("image_start");
    out.image_newline = b.bf16_vector("image_newline");
    out.image_end = b.bf16_vector("image_end");
    return b.status();
}

}  // namespace deepinfer
