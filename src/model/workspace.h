// Workspace: every activation tensor of one step, allocated once for the model's limits.
//
// Fixed addresses and a stated size: nothing is allocated during a step, and a captured device
// graph stays valid. Tensors have max_rows rows (or the rows of the largest draft); a step uses the
// first T of them (`rows(0, T)`).
#pragma once

#include "checkpoint/hf_config.h"
#include "device/device.h"
#include "model/deepseek_v41.h"
#include "tensor/quant_block.h"

namespace deepinfer {

struct Workspace {
    Tensor x, x_next;        ///< bf16 [T, hc, D]  residual streams, swapped by every expand
    Tensor pre, post, comb;  ///< acc  [T, hc], [T, hc], [T, hc, hc]  this site's mixes
    Tensor pre_in;           ///< acc  [T, hc]     previous site's pre
    Tensor u, uq, y;     ///< bf16 [T, D]      collapsed+normed input, its q8 form, sublayer output
    Tensor qr, qrq;      ///< bf16 [T, ql]
    Tensor q, o;         ///< bf16 [T, H, dh]
    Tensor og;           ///< bf16 [T, G·ol]
    Tensor kv;           ///< bf16 [T, dh]
    Tensor window_rows;  ///< u8   [T, window_row_bytes]
    Tensor cs_window, cs_global;  ///< acc  [T, rd/2, 2]
    Tensor cs_entry;              ///< acc  [T, rd/2, 2]
    Tensor z, g;                  ///< acc  [T, dh]     compressor
    Tensor c;                     ///< bf16 [T, dh]
    Tensor index_key;             ///< bf16 [T, di]
    Tensor index_q;               ///< bf16 [T, Hi, di]
    Tensor head_weights;          ///< bf16 [T, Hi]
    Tensor scores;                ///< acc  [score_elements]  tiles of rows × visible entries
    Tensor candidates;            ///< i32  [T, candidate_topk_blocks]
    Tensor lists;                 ///< i32  [T, index_topk]
    Tensor router_scores;         ///< acc  [T, E]
    Tensor expert_ids;            ///< i32  [T, k]
    Tensor expert_weights;        ///< acc  [T, k]
    Tensor engram_ids;            ///< i32  [T, cols]
    Tensor engram_e;              ///< bf16 [T, cols·ed]
    Tensor engram_kv;             ///< bf16 [T, (hc+1)·D]
    Tensor taps;                  ///< bf16 [T, num_taps·D]
    Tensor lists_next, candidates_next, taps_next;  ///< with truncation: what narrowing copies to
    Tensor h;                                       ///< bf16 [L, D]      rows for the head
    Tensor h_all;                                   ///< bf16 [T, D]
    Tensor logits;                                  ///< acc  [L, V]
    // Drafting alone; R sequences, S = R · dspark_block_size block rows (T above is at least S
    // then).
    Tensor draft_base;         ///< acc  [S, V]      logits before the Markov bias
    Tensor draft_logits;       ///< acc  [R, V]      of the position in hand
    Tensor draft_tokens;       ///< i32  [block, R]
    Tensor draft_confidence;   ///< acc  [block, R]
    Tensor confidence_hidden;  ///< acc  [S, 1]      the hidden state's share of the confidence
    Tensor markov_e;           ///< bf16 [R, 1, r]   Markov embedding of the token before

    /// Sizes everything; with a null arena only counts. Returns the bytes.
    static size_t carve(const ModelConfig& config,
                        const ModelLimits& limits,
                        DType acc,
                        void* memory,
                        Workspace* out);

    /// Rows of one index-score tile for n visible entries (at least 1).
    int64_t score_tile_rows(int64_t n) const;
};

}  // namespace deepinfer
