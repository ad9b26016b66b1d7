#include "backends/cpu/cpu_op_table.h"

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernel_tables.h"

namespace deepinfer::cpu {
namespace {

/// An op of the table with the level's kernels bound: op pointers are plain functions, so the level
/// is part of the type.
template <Isa kIsa, auto kOp>
struct Bind;
template <Isa kIsa, typename... Args, void (*kOp)(const Kernels&, Args...)>
struct Bind<kIsa, kOp> {
    static void call(Args... args) { kOp(kernels(kIsa), args...); }
};

template <Isa kIsa>
OpTable make_table() {
    OpTable t = ref_op_table();
    t.name = "cpu";
    t.acc = DType::kF32;
    t.rms_norm = &Bind<kIsa, &rms_norm_cpu>::call;
    t.linear = &Bind<kIsa, &linear_cpu>::call;
    t.grouped_o_proj = &Bind<kIsa, &grouped_o_proj_cpu>::call;
    t.quant_q8 = &Bind<kIsa, &quant_q8_cpu>::call;
    t.quant_q4m = &Bind<kIsa, &quant_q4m_cpu>::call;
    t.rope = &Bind<kIsa, &rope_cpu>::call;
    t.mhc_mixes = &Bind<kIsa, &mhc_mixes_cpu>::call;
    t.mhc_collapse = &Bind<kIsa, &mhc_collapse_cpu>::call;
    t.mhc_expand = &Bind<kIsa, &mhc_expand_cpu>::call;
    t.engram_lookup = &Bind<kIsa, &engram_lookup_cpu>::call;
    t.engram_gate = &Bind<kIsa, &engram_gate_cpu>::call;
    t.embed_streams = &Bind<kIsa, &embed_streams_cpu>::call;
    t.window_pack = &Bind<kIsa, &window_pack_cpu>::call;
    t.kv_entry_store = &Bind<kIsa, &kv_entry_store_cpu>::call;
    t.index_key_store = &Bind<kIsa, &index_key_store_cpu>::call;
    t.index_scores = &Bind<kIsa, &index_scores_cpu>::call;
    t.candidate_blocks = &Bind<kIsa, &candidate_blocks_cpu>::call;
    t.topk_select = &Bind<kIsa, &topk_select_cpu>::call;
    t.sparse_attention = &Bind<kIsa, &sparse_attention_cpu>::call;
    t.draft_attention = &Bind<kIsa, &draft_attention_cpu>::call;
    t.router_scores = &Bind<kIsa, &router_scores_cpu>::call;
    t.router_topk = &Bind<kIsa, &router_topk_cpu>::call;
    t.swiglu = &Bind<kIsa, &swiglu_cpu>::call;
    t.moe_ffn = &Bind<kIsa, &moe_ffn_cpu>::call;
    t.linear_bias = &Bind<kIsa, &linear_bias_cpu>::call;
    t.vit_rope = &Bind<kIsa, &vit_rope_cpu>::call;
    t.vit_attention = &Bind<kIsa, &vit_attention_cpu>::call;
    t.vit_swiglu = &Bind<kIsa, &vit_swiglu_cpu>::call;
    t.add_bf16 = &Bind<kIsa, &add_bf16_cpu>::call;
    return t;
}

}  // namespace

OpTable cpu_op_table(Isa isa) {
    switch (isa) {
        case Isa::kBaseline:
            return make_table<Isa::kBaseline>();
        case Isa::kAvx2:
            return make_table<Isa::kAvx2>();
        case Isa::kAvx512:
            return make_table<Isa::kAvx512>();
        case Isa::kAvx512Bf16:
            return make_table<Isa::kAvx512Bf16>();
        case Isa::kAmx:
            return make_table<Isa::kAmx>();
    }
    return make_table<Isa::kBaseline>();
}

}  // namespace deepinfer::cpu
