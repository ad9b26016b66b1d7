// What a step of a geometry must cost at least: per op the larger of bytes / read rate and flops /
// matrix rate, and their sum. Formulas: bytes of weights as stored (FP8 n k (1 + 1/1024), FP4 17/32
// n k, BF16 2 n k), activations in at one byte and out at two a value; routed experts by
// independent uniform routing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "checkpoint/hf_config.h"

namespace deepinfer {

struct Ceilings {
    double read = 4300e9;  ///< bytes/s
    double bf16 = 790e12;  ///< flop/s
};

class StepFloors {
  public:
    explicit StepFloors(const Ceilings& c) : c_(c) {}
    void add(const std::string& op, double bytes, double flops, double count = 1) {
        seconds_[op] += count * std::max(bytes / c_.read, flops / c_.bf16);
    }
    void fp8(const std::string& op, double b, double n, double k, double count = 1) {
        add(op, n * k * (1 + 1.0 / 1024) + b * k + 2 * b * n, 2 * b * n * k, count);
    }
    double of(const std::string& op) const {
        const auto it = seconds_.find(op);
        return it == seconds_.end() ? 0 : it->second;
    }
    double total() const {
        double sum = 0;
        for (const auto& [op, s] : seconds_) sum += s;
        return sum;
    }
    const std::map<std::string, double>& ops() const { return seconds_; }

  private:
    Ceilings c_;
    std::map<std::string, double> seconds_;
};

/// A step of `b` rows at context `ctx`: `requests` sequences, `layers` of the model run, `logits`
/// rows through the head.
inline StepFloors step_floors(const ModelConfig& m,
                              const Ceilings& ceilings,
                              double b,
                              double requests,
                              double ctx,
                              int64_t layers,
                              double logits) {
    StepFloors f(ceilings);
    const auto d = static_cast<double>(m.hidden_size),
               heads = static_cast<double>(m.num_attention_heads),
               dh = static_cast<double>(m.head_dim), ql = static_cast<double>(m.q_lora_rank),
               inter = static_cast<double>(m.moe_intermediate_size),
               experts = static_cast<double>(m.n_routed_experts),
               top = static_cast<double>(m.num_experts_per_tok),
               hc = static_cast<double>(m.hc_mult),
               og = static_cast<double>(m.o_groups * m.o_lora_rank),
               window = static_cast<double>(m.sliding_window),
               topk = static_cast<double>(m.index_topk), hi = static_cast<double>(m.index_n_heads),
               di = static_cast<double>(m.index_head_dim);
    for (int64_t l = 0; l < layers; ++l) {
        f.add("mhc", b * (4 * d * 2 * 2 + d * 2 * 2) + 24 * hc * d * 4, b * 2 * 24 * hc * d, 2);
        f.fp8("linear", b, ql + dh, d);
        f.fp8("linear", b, heads * dh, ql);
        f.add("grouped_o_proj",
              og * heads * dh / static_cast<double>(m.o_groups) + b * (heads * dh + 2 * og),
              2 * b * og * heads * dh / static_cast<double>(m.o_groups));
        f.fp8("linear", b, d, og);
        const double entries =
            m.ratio(l) > 0 ? std::min(topk, ctx / static_cast<double>(m.ratio(l))) : 0;
        f.add("sparse_attention",
              b * (entries * 288 + window * 528 + heads * dh * 3),
              4 * b * heads * dh * (entries + window));
        if (m.is_kv_source(l)) {
            f.add("linear",
                  2 * d * dh * (m.ratio(l) > 1 ? 2 : 1) + 2 * di * dh + b * d,
                  2 * b * (d * dh * (m.ratio(l) > 1 ? 2 : 1) + di * dh));
        }
        if (m.is_index_source(l)) {
            f.fp8("linear", b, hi * di, ql);
            f.add("linear", 2 * hi * d, 2 * b * hi * d);
            const double source = static_cast<double>(m.ratio(m.kv_source(l)));
            double keys = ctx / source;
            if (l > m.candidate_source_layer_id && m.candidate_source_layer_id >= 0)
                keys = std::min(
                    keys, static_cast<double>(m.candidate_topk_blocks * m.candidate_block_size));
            f.add("index_scores", requests * keys * 68 + b * keys * 2, 2 * b * keys * hi * di);
            f.add("topk_select", b * keys * 2, 0);
        }
        f.add("router", 2 * experts * d + b * d, 2 * b * experts * d);
        const double used = experts * (1 - std::pow(1 - top / experts, b));
        f.add("moe_ffn",
              used * 3 * d * inter * 17 / 32 + b * top * (3 * d + 3 * inter),
              6 * b * top * d * inter);
        f.add("moe_ffn",
              3 * d * inter * (1 + 1.0 / 1024) + b * (d + 3 * inter + 2 * d),
              6 * b * d * inter);
        if (m.engram_table(l) >= 0)
            f.fp8("linear",
                  b,
                  (hc + 1) * d,
                  static_cast<double>(m.engram_columns() * m.engram_head_dim));
    }
    f.add("embed", b * d * 2 * (1 + hc), 0);
    if (logits > 0)
        f.add("linear",
              2.0 * static_cast<double>(m.vocab_size) * d,
              2 * logits * static_cast<double>(m.vocab_size) * d);
    return f;
}

}  // namespace deepinfer
