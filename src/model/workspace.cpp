#include "model/workspace.h"

#include <algorithm>

namespace deepinfer {
namespace {

// Index scores are produced and consumed in row tiles of at most this many elements (64 MiB in
// fp32), so that a long context times a long chunk needs no T × n matrix.
constexpr int64_t kScoreElements = int64_t{16} << 20;

}  // namespace

size_t Workspace::carve(
    const ModelConfig& c, const ModelLimits& limits, DType acc, void* memory, Workspace* out) {
    size_t used = 0;
    const auto take = [&](DType t, std::initializer_list<int64_t> dims) {
        Tensor tensor(memory == nullptr ? nullptr : static_cast<uint8_t*>(memory) + used, t, dims);
        used += (static_cast<size_t>(tensor.bytes()) + 255) / 256 * 256;
        return tensor;
    };
    const int64_t drafts = limits.max_draft_seqs, draft_rows = drafts * c.dspark_block_size;
    // The blocks of a draft pass through the same tensors as a step's rows.
    const int64_t t = std::max(limits.max_rows, draft_rows);
    const int64_t experts =
        drafts > 0 ? std::max(c.n_routed_experts, c.dspark_n_routed_experts) : c.n_routed_experts;
    const int64_t chosen = drafts > 0
                               ? std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok)
                               : c.num_experts_per_tok;
    const int64_t hc = c.hc_mult, d = c.hidden_size, heads = c.num_attention_heads, dh = c.head_dim;
    const int64_t half_rope = c.qk_rope_head_dim / 2, cols = c.engram_columns();
    const DType b = DType::kBF16;
    Workspace w;
    w.x = take(b, {t, hc, d});
    w.x_next = take(b, {t, hc, d});
    w.pre = take(acc, {t, hc});
    w.post = take(acc, {t, hc});
    w.comb = take(acc, {t, hc, hc});
    w.pre_in = take(acc, {t, hc});
    w.u = take(b, {t, d});
    w.uq = take(b, {t, d});
    w.y = take(b, {t, d});
    w.qr = take(b, {t, c.q_lora_rank});
    w.qrq = take(b, {t, c.q_lora_rank});
    w.q = take(b, {t, heads, dh});
    w.o = take(b, {t, heads, dh});
    w.og = take(b, {t, c.o_groups * c.o_lora_rank});
    w.kv = take(b, {t, dh});
    w.window_rows = take(DType::kU8, {t, window_row_bytes(dh)});
    w.cs_window = take(acc, {t, half_rope, 2});
    w.cs_global = take(acc, {t, half_rope, 2});
    w.cs_entry = take(acc, {t, half_rope, 2});
    w.z = take(acc, {t, dh});
    w.g = take(acc, {t, dh});
    w.c = take(b, {t, dh});
    w.index_key = take(b, {t, c.index_head_dim});
    w.index_q = take(b, {t, c.index_n_heads, c.index_head_dim});
    w.head_weights = take(b, {t, c.index_n_heads});
    w.scores = take(
        acc, {std::max(limits.max_positions, std::min(kScoreElements, t * limits.max_positions))});
    w.candidates = take(DType::kI32, {t, std::max<int64_t>(1, c.candidate_topk_blocks)});
    w.lists = take(DType::kI32, {t, c.index_topk});
    w.router_scores = take(acc, {t, experts});
    w.expert_ids = take(DType::kI32, {t, chosen});
    w.expert_weights = take(acc, {t, chosen});
    w.engram_ids = take(DType::kI32, {t, cols});
    w.engram_e = take(b, {t, cols * c.engram_head_dim});
    w.engram_kv = take(b, {t, (hc + 1) * d});
    w.taps = take(b, {t, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d});
    if (limits.truncation.num_levels() > 0) {
        w.lists_next = take(DType::kI32, {t, c.index_topk});
        w.candidates_next = take(DType::kI32, {t, std::max<int64_t>(1, c.candidate_topk_blocks)});
        if (drafts > 0) w.taps_next = take(b, {t, w.taps.dim(1)});
    }
    w.h = take(b, {limits.max_logit_rows, d});
    w.h_all = take(b, {t, d});
    w.logits = take(acc, {limits.max_logit_rows, c.vocab_size});
    if (drafts > 0) {
        w.draft_base = take(acc, {draft_rows, c.vocab_size});
        w.draft_logits = take(acc, {drafts, c.vocab_size});
        w.draft_tokens = take(DType::kI32, {c.dspark_block_size, drafts});
        w.draft_confidence = take(acc, {c.dspark_block_size, drafts});
        w.confidence_hidden = take(acc, {draft_rows, 1});
        w.markov_e = take(b, {drafts, 1, c.dspark_markov_rank});
    }
    if (out != nullptr) *out = w;
    return used;
}

int64_t Workspace::score_tile_rows(int64_t n) const {
    return std::max<int64_t>(1, scores.numel() / std::max<int64_t>(1, n));
}

}  // namespace deepinfer
