// The two tables of twins.
#include "ops/numeric_class.h"
#include "ops/op_table.h"
#include "ops/twin_math.h"

namespace deepinfer {
namespace {

constexpr NumericClass kRow = NumericClass::kRowInvariant, kExact = NumericClass::kExact;

template <typename Acc>
OpTable twins(const char* name) {
    OpTable t;
    t.name = name;
    t.acc = twin::acc_dtype<Acc>();
    const auto acc_name = [name](const char* twin) { return std::string(twin) + "." + name; };
    choose(t.rms_norm, &rms_norm_ref<Acc>, acc_name("rms_norm_ref"), kRow);
    choose(t.linear, &linear_ref<Acc>, acc_name("linear_ref"), kRow);
    choose(t.grouped_o_proj, &grouped_o_proj_ref<Acc>, acc_name("grouped_o_proj_ref"), kRow);
    choose(t.quant_q8, &quant_q8_ref, "quant_q8_ref", kExact);
    choose(t.quant_q4m, &quant_q4m_ref, "quant_q4m_ref", kExact);
    choose(t.scale_bf16, &scale_bf16_ref, "scale_bf16_ref", kExact);
    choose(t.rope_table, &rope_table_ref<Acc>, acc_name("rope_table_ref"), kRow);
    choose(t.rope, &rope_ref<Acc>, acc_name("rope_ref"), kRow);
    choose(t.mhc_mixes, &mhc_mixes_ref<Acc>, acc_name("mhc_mixes_ref"), kRow);
    choose(t.mhc_collapse, &mhc_collapse_ref<Acc>, acc_name("mhc_collapse_ref"), kRow);
    choose(t.mhc_expand, &mhc_expand_ref<Acc>, acc_name("mhc_expand_ref"), kRow);
    choose(t.streams_mean, &streams_mean_ref<Acc>, acc_name("streams_mean_ref"), kRow);
    choose(t.engram_hash, &engram_hash_ref, "engram_hash_ref", kExact);
    choose(t.engram_lookup, &engram_lookup_ref, "engram_lookup_ref", kExact);
    choose(t.engram_gate, &engram_gate_ref<Acc>, acc_name("engram_gate_ref"), kRow);
    choose(t.embed_streams, &embed_streams_ref, "embed_streams_ref", kExact);
    choose(t.gather_rows, &gather_rows_ref, "gather_rows_ref", kExact);
    choose(t.window_pack, &window_pack_ref, "window_pack_ref", kExact);
    choose(t.window_store, &window_store_ref, "window_store_ref", kExact);
    choose(t.kv_entry_store, &kv_entry_store_ref, "kv_entry_store_ref", kExact);
    choose(t.index_key_store, &index_key_store_ref, "index_key_store_ref", kExact);
    choose(t.compress_pool, &compress_pool_ref<Acc>, acc_name("compress_pool_ref"), kRow);
    choose(t.compress_tail_store,
           &compress_tail_store_ref<Acc>,
           acc_name("compress_tail_store_ref"),
           kExact);
    choose(t.index_scores, &index_scores_ref<Acc>, acc_name("index_scores_ref"), kRow);
    choose(
        t.candidate_blocks, &candidate_blocks_ref<Acc>, acc_name("candidate_blocks_ref"), kExact);
    choose(t.topk_select, &topk_select_ref<Acc>, acc_name("topk_select_ref"), kExact);
    choose(t.sparse_attention, &sparse_attention_ref<Acc>, acc_name("sparse_attention_ref"), kRow);
    choose(t.router_scores, &router_scores_ref<Acc>, acc_name("router_scores_ref"), kRow);
    choose(t.router_topk, &router_topk_ref<Acc>, acc_name("router_topk_ref"), kExact);
    choose(t.router_weights, &router_weights_ref<Acc>, acc_name("router_weights_ref"), kRow);
    choose(t.swiglu, &swiglu_ref<Acc>, acc_name("swiglu_ref"), kRow);
    choose(t.moe_ffn, &moe_ffn_ref<Acc>, acc_name("moe_ffn_ref"), kRow);
    choose(t.draft_attention, &draft_attention_ref<Acc>, acc_name("draft_attention_ref"), kRow);
    choose(t.add_rows, &add_rows_ref<Acc>, acc_name("add_rows_ref"), kRow);
    choose(t.argmax_rows, &argmax_rows_ref<Acc>, acc_name("argmax_rows_ref"), kExact);
    choose(t.linear_bias, &linear_bias_ref<Acc>, acc_name("linear_bias_ref"), kRow);
    choose(t.vit_rope, &vit_rope_ref<Acc>, acc_name("vit_rope_ref"), kRow);
    choose(t.vit_attention, &vit_attention_ref<Acc>, acc_name("vit_attention_ref"), kRow);
    choose(t.vit_swiglu, &vit_swiglu_ref<Acc>, acc_name("vit_swiglu_ref"), kRow);
    choose(t.add_bf16, &add_bf16_ref<Acc>, acc_name("add_bf16_ref"), kRow);
    choose(t.gelu, &gelu_ref<Acc>, acc_name("gelu_ref"), kRow);
    choose(t.pixel_unshuffle, &pixel_unshuffle_ref, "pixel_unshuffle_ref", kExact);
    choose(t.place_rows, &place_rows_ref, "place_rows_ref", kExact);
    return t;
}

}  // namespace

OpTable ref_op_table() {
    return twins<float>("ref");
}
OpTable exact_op_table() {
    return twins<double>("exact");
}

}  // namespace deepinfer
