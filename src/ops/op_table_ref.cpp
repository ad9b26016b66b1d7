// The two tables of twins.
#include "ops/op_table.h"
#include "ops/twin_math.h"

namespace deepinfer {
namespace {

template <typename Acc>
OpTable twins(const char* name) {
    OpTable t;
    t.name = name;
    t.acc = twin::acc_dtype<Acc>();
    t.rms_norm = &rms_norm_ref<Acc>;
    t.linear = &linear_ref<Acc>;
    t.grouped_o_proj = &grouped_o_proj_ref<Acc>;
    t.quant_q8 = &quant_q8_ref;
    t.quant_q4m = &quant_q4m_ref;
    t.scale_bf16 = &scale_bf16_ref;
    t.rope_table = &rope_table_ref<Acc>;
    t.rope = &rope_ref<Acc>;
    t.mhc_mixes = &mhc_mixes_ref<Acc>;
    t.mhc_collapse = &mhc_collapse_ref<Acc>;
    t.mhc_expand = &mhc_expand_ref<Acc>;
    t.streams_mean = &streams_mean_ref<Acc>;
    t.engram_hash = &engram_hash_ref;
    t.engram_lookup = &engram_lookup_ref;
    t.engram_gate = &engram_gate_ref<Acc>;
    t.embed_streams = &embed_streams_ref;
    t.gather_rows = &gather_rows_ref;
    t.window_pack = &window_pack_ref;
    t.window_store = &window_store_ref;
    t.kv_entry_store = &kv_entry_store_ref;
    t.index_key_store = &index_key_store_ref;
    t.compress_pool = &compress_pool_ref<Acc>;
    t.compress_tail_store = &compress_tail_store_ref<Acc>;
    t.index_scores = &index_scores_ref<Acc>;
    t.candidate_blocks = &candidate_blocks_ref<Acc>;
    t.topk_select = &topk_select_ref<Acc>;
    t.sparse_attention = &sparse_attention_ref<Acc>;
    t.router_scores = &router_scores_ref<Acc>;
    t.router_topk = &router_topk_ref<Acc>;
    t.router_weights = &router_weights_ref<Acc>;
    t.swiglu = &swiglu_ref<Acc>;
    t.moe_ffn = &moe_ffn_ref<Acc>;
    t.draft_attention = &draft_attention_ref<Acc>;
    t.add_rows = &add_rows_ref<Acc>;
    t.argmax_rows = &argmax_rows_ref<Acc>;
    t.linear_bias = &linear_bias_ref<Acc>;
    t.vit_rope = &vit_rope_ref<Acc>;
    t.vit_attention = &vit_attention_ref<Acc>;
    t.vit_swiglu = &vit_swiglu_ref<Acc>;
    t.add_bf16 = &add_bf16_ref<Acc>;
    t.gelu = &gelu_ref<Acc>;
    t.pixel_unshuffle = &pixel_unshuffle_ref;
    t.place_rows = &place_rows_ref;
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
