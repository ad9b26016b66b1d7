#include "backends/cpu/cpu_op_table.h"

#include <string>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernel_tables.h"
#include "ops/numeric_class.h"

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

constexpr NumericClass kRow = NumericClass::kRowInvariant, kExact = NumericClass::kExact;

/// Chooses the op at this level, and says what its bits depend on.
template <Isa kIsa, auto kOp, typename Site>
void bind(Site& site, const char* name, NumericClass numeric_class) {
    choose(site, &Bind<kIsa, kOp>::call, std::string(name) + "." + isa_name(kIsa), numeric_class);
}

template <Isa kIsa>
OpTable make_table() {
    OpTable t = ref_op_table();
    t.name = "cpu";
    t.acc = DType::kF32;
    bind<kIsa, &rms_norm_cpu>(t.rms_norm, "rms_norm_cpu", kRow);
    bind<kIsa, &linear_cpu>(t.linear, "linear_cpu", kRow);
    bind<kIsa, &grouped_o_proj_cpu>(t.grouped_o_proj, "grouped_o_proj_cpu", kRow);
    bind<kIsa, &quant_q8_cpu>(t.quant_q8, "quant_q8_cpu", kExact);
    bind<kIsa, &quant_q4m_cpu>(t.quant_q4m, "quant_q4m_cpu", kExact);
    bind<kIsa, &rope_cpu>(t.rope, "rope_cpu", kRow);
    bind<kIsa, &mhc_mixes_cpu>(t.mhc_mixes, "mhc_mixes_cpu", kRow);
    bind<kIsa, &mhc_collapse_cpu>(t.mhc_collapse, "mhc_collapse_cpu", kRow);
    bind<kIsa, &mhc_expand_cpu>(t.mhc_expand, "mhc_expand_cpu", kRow);
    bind<kIsa, &engram_lookup_cpu>(t.engram_lookup, "engram_lookup_cpu", kExact);
    bind<kIsa, &engram_gate_cpu>(t.engram_gate, "engram_gate_cpu", kRow);
    bind<kIsa, &embed_streams_cpu>(t.embed_streams, "embed_streams_cpu", kExact);
    bind<kIsa, &window_pack_cpu>(t.window_pack, "window_pack_cpu", kExact);
    bind<kIsa, &kv_entry_store_cpu>(t.kv_entry_store, "kv_entry_store_cpu", kExact);
    bind<kIsa, &index_key_store_cpu>(t.index_key_store, "index_key_store_cpu", kExact);
    bind<kIsa, &index_scores_cpu>(t.index_scores, "index_scores_cpu", kRow);
    bind<kIsa, &candidate_blocks_cpu>(t.candidate_blocks, "candidate_blocks_cpu", kExact);
    bind<kIsa, &topk_select_cpu>(t.topk_select, "topk_select_cpu", kExact);
    bind<kIsa, &sparse_attention_cpu>(t.sparse_attention, "sparse_attention_cpu", kRow);
    bind<kIsa, &draft_attention_cpu>(t.draft_attention, "draft_attention_cpu", kRow);
    bind<kIsa, &router_scores_cpu>(t.router_scores, "router_scores_cpu", kRow);
    bind<kIsa, &router_topk_cpu>(t.router_topk, "router_topk_cpu", kExact);
    bind<kIsa, &swiglu_cpu>(t.swiglu, "swiglu_cpu", kRow);
    bind<kIsa, &moe_ffn_cpu>(t.moe_ffn, "moe_ffn_cpu", kRow);
    bind<kIsa, &linear_bias_cpu>(t.linear_bias, "linear_bias_cpu", kRow);
    bind<kIsa, &vit_rope_cpu>(t.vit_rope, "vit_rope_cpu", kRow);
    bind<kIsa, &vit_attention_cpu>(t.vit_attention, "vit_attention_cpu", kRow);
    bind<kIsa, &vit_swiglu_cpu>(t.vit_swiglu, "vit_swiglu_cpu", kRow);
    bind<kIsa, &add_bf16_cpu>(t.add_bf16, "add_bf16_cpu", kRow);
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
