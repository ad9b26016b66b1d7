// The CPU backend's ops: the contracts of src/ops with the kernels of one ISA level as first
// argument. cpu_op_table.cpp binds a level; shapes that the kernels do not take go to the twin, for
// every row.
#pragma once

#include <span>

#include "backends/cpu/kernels/kernels.h"
#include "ops/op_table.h"

namespace deepinfer::cpu {

void linear_cpu(
    const Kernels& k, Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out);
void grouped_o_proj_cpu(const Kernels& k,
                        Stream& stream,
                        const Tensor& o,
                        const WeightMatrix& wo_a,
                        int groups,
                        Tensor out);
void rms_norm_cpu(
    const Kernels& k, Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out);
void quant_q8_cpu(const Kernels& k, Stream& stream, const Tensor& x, Tensor out);
void quant_q4m_cpu(const Kernels& k, Stream& stream, const Tensor& x, Tensor out);
void rope_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse);
void mhc_mixes_cpu(const Kernels& k,
                   Stream& stream,
                   const Tensor& x,
                   const Tensor& fn,
                   const Tensor& base,
                   const Tensor& scale,
                   int sinkhorn_iters,
                   float hc_eps,
                   float norm_eps,
                   Tensor pre,
                   Tensor post,
                   Tensor comb);
void mhc_collapse_cpu(
    const Kernels& k, Stream& stream, const Tensor& x, const Tensor& pre, Tensor out);
void mhc_expand_cpu(const Kernels& k,
                    Stream& stream,
                    const Tensor& y,
                    const Tensor& x,
                    const Tensor& post,
                    const Tensor& comb,
                    Tensor out);
void engram_lookup_cpu(
    const Kernels& k, Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out);
void engram_gate_cpu(const Kernels& k,
                     Stream& stream,
                     Tensor x,
                     const Tensor& kv,
                     const Tensor& q_weight,
                     const Tensor& k_weight,
                     const Tensor& dead,
                     float eps);
void embed_streams_cpu(
    const Kernels& k, Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out);
void window_pack_cpu(const Kernels& k, Stream& stream, const Tensor& kv, Tensor rows);
void kv_entry_store_cpu(
    const Kernels& k, Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool);
void index_key_store_cpu(
    const Kernels& k, Stream& stream, const Tensor& key, const Tensor& slots, Tensor pool);
void index_scores_cpu(const Kernels& k,
                      Stream& stream,
                      const Tensor& q,
                      const Tensor& hw,
                      const BatchView& batch,
                      const IndexCache& cache,
                      const Tensor& candidates,
                      int candidate_block_size,
                      Tensor scores);
void candidate_blocks_cpu(const Kernels& k,
                          Stream& stream,
                          const Tensor& scores,
                          const Tensor& positions,
                          int ratio,
                          int block_size,
                          Tensor blocks);
void topk_select_cpu(const Kernels& k, Stream& stream, const Tensor& scores, Tensor lists);
void sparse_attention_cpu(const Kernels& k,
                          Stream& stream,
                          const Tensor& q,
                          const BatchView& batch,
                          const AttentionCache& cache,
                          const Tensor& lists,
                          const Tensor& sink,
                          double scale,
                          Tensor out);
void draft_attention_cpu(const Kernels& k,
                         Stream& stream,
                         const Tensor& q,
                         const BatchView& batch,
                         const AttentionCache& cache,
                         const Tensor& sink,
                         double scale,
                         Tensor out);
void router_scores_cpu(const Kernels& k,
                       Stream& stream,
                       const Tensor& u,
                       const WeightMatrix& gate,
                       float temperature,
                       ScoringFunc func,
                       Tensor scores);
void router_topk_cpu(const Kernels& k,
                     Stream& stream,
                     const Tensor& scores,
                     const Tensor& bias,
                     const Tensor& bias_vl,
                     const Tensor& image_rows,
                     Tensor ids);
void swiglu_cpu(const Kernels& k,
                Stream& stream,
                const Tensor& gate,
                const Tensor& up,
                const Tensor& weight,
                float limit,
                Tensor out);
void moe_ffn_cpu(const Kernels& k,
                 Stream& stream,
                 const Tensor& u,
                 const Tensor& ids,
                 const Tensor& weights,
                 std::span<const ExpertWeights> experts,
                 const ExpertWeights& shared,
                 float limit,
                 Tensor out);
void linear_bias_cpu(const Kernels& k,
                     Stream& stream,
                     const Tensor& x,
                     const WeightMatrix& w,
                     const Tensor& bias,
                     Tensor out);
void vit_rope_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& cos_sin);
void vit_attention_cpu(const Kernels& k,
                       Stream& stream,
                       const Tensor& qkv,
                       const Tensor& cu_rows,
                       double scale,
                       Tensor out);
void vit_swiglu_cpu(const Kernels& k, Stream& stream, const Tensor& gate_up, Tensor out);
void add_bf16_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& y);

}  // namespace deepinfer::cpu
