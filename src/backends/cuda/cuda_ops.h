// Every op of ops/op_table.h on an NVIDIA device. Contracts: the op headers. Accumulator type: f32.
#pragma once

#include "ops/op_table.h"

namespace deepinfer::cuda {

void rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out);
void linear(Stream& stream, const Tensor& x, const WeightMatrix& w, Tensor out);
void grouped_o_proj(
    Stream& stream, const Tensor& o, const WeightMatrix& wo_a, int groups, Tensor out);
void quant_q8(Stream& stream, const Tensor& x, Tensor out);
void quant_q4m(Stream& stream, const Tensor& x, Tensor out);
void scale_bf16(Stream& stream, const Tensor& x, float factor, Tensor out);
void rope_table(Stream& stream, const Tensor& positions, const Tensor& freqs, Tensor cos_sin);
void rope(Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse);
void mhc_mixes(Stream& stream,
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
void mhc_collapse(Stream& stream, const Tensor& x, const Tensor& pre, Tensor out);
void mhc_expand(Stream& stream,
                const Tensor& y,
                const Tensor& x,
                const Tensor& post,
                const Tensor& comb,
                Tensor out);
void mhc_step(Stream& stream,
              const Tensor& y,
              const Tensor& x,
              const Tensor& post,
              const Tensor& comb,
              const Tensor& pre,
              const Tensor& weight,
              float eps,
              Tensor out,
              Tensor u,
              Tensor uq);
void rms_norm_q8(
    Stream& stream, const Tensor& x, const Tensor& weight, float eps, Tensor out, Tensor outq);
void streams_mean(Stream& stream, const Tensor& x, Tensor out);
void engram_hash(Stream& stream,
                 const Tensor& ngrams,
                 const Tensor& multipliers,
                 const Tensor& primes,
                 const Tensor& offsets,
                 Tensor ids);
void engram_lookup(Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out);
void engram_gate(Stream& stream,
                 Tensor x,
                 const Tensor& kv,
                 const Tensor& q_weight,
                 const Tensor& k_weight,
                 const Tensor& dead,
                 float eps);
void embed_streams(Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out);
void gather_rows(Stream& stream, const Tensor& src, const Tensor& rows, Tensor out);
void window_pack(Stream& stream, const Tensor& kv, Tensor rows);
void window_store(Stream& stream, const Tensor& rows, const BatchView& batch, Tensor ring);
void kv_entry_store(Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool);
void index_key_store(Stream& stream, const Tensor& k, const Tensor& slots, Tensor pool);
void compress_pool(Stream& stream,
                   const Tensor& z,
                   const Tensor& g,
                   const BatchView& batch,
                   const Tensor& tail,
                   int ratio,
                   const Tensor& entry_rows,
                   Tensor out);
void compress_tail_store(
    Stream& stream, const Tensor& z, const Tensor& g, const BatchView& batch, Tensor tail);
void index_scores(Stream& stream,
                  const Tensor& q,
                  const Tensor& hw,
                  const BatchView& batch,
                  const IndexCache& cache,
                  const Tensor& candidates,
                  int candidate_block_size,
                  Tensor scores);
void candidate_blocks(Stream& stream,
                      const Tensor& scores,
                      const Tensor& positions,
                      int ratio,
                      int block_size,
                      Tensor blocks);
void topk_select(Stream& stream, const Tensor& scores, Tensor lists);
void sparse_attention(Stream& stream,
                      const Tensor& q,
                      const BatchView& batch,
                      const AttentionCache& cache,
                      const Tensor& lists,
                      const Tensor& sink,
                      double scale,
                      Tensor out);
void router_scores(Stream& stream,
                   const Tensor& u,
                   const WeightMatrix& gate,
                   float temperature,
                   ScoringFunc func,
                   Tensor scores);
void router_topk(Stream& stream,
                 const Tensor& scores,
                 const Tensor& bias,
                 const Tensor& bias_vl,
                 const Tensor& image_rows,
                 Tensor ids);
void router_weights(Stream& stream,
                    const Tensor& scores,
                    const Tensor& ids,
                    bool normalize,
                    float scale,
                    Tensor weights);
void swiglu(Stream& stream,
            const Tensor& gate,
            const Tensor& up,
            const Tensor& weight,
            float limit,
            Tensor out);
void moe_ffn(Stream& stream,
             const Tensor& u,
             const Tensor& ids,
             const Tensor& weights,
             std::span<const ExpertWeights> experts,
             const ExpertWeights& shared,
             float limit,
             Tensor out);

void draft_attention(Stream& stream,
                     const Tensor& q,
                     const BatchView& batch,
                     const AttentionCache& cache,
                     const Tensor& sink,
                     double scale,
                     Tensor out);
void add_rows(Stream& stream, const Tensor& x, Tensor out);
void argmax_rows(Stream& stream, const Tensor& x, Tensor ids);
void sample_rows(Stream& stream, const Tensor& logits, const Tensor& requests, Tensor choices);

void linear_bias(
    Stream& stream, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Tensor out);
void vit_rope(Stream& stream, Tensor x, const Tensor& cos_sin);
void vit_attention(
    Stream& stream, const Tensor& qkv, const Tensor& cu_rows, double scale, Tensor out);
void vit_swiglu(Stream& stream, const Tensor& gate_up, Tensor out);
void add_bf16(Stream& stream, Tensor x, const Tensor& y);
void gelu(Stream& stream, Tensor x);
void pixel_unshuffle(Stream& stream, const Tensor& x, const Tensor& cells, Tensor out);
void place_rows(Stream& stream, const Tensor& src, const Tensor& rows, Tensor x);

/// All of the above.
OpTable cuda_op_table();

}  // namespace deepinfer::cuda
