// What one call of an op must move and compute, from its arguments: the accounts of bench ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <type_traits>

#include "ops/op_table.h"
#include "tensor/quant_block.h"

namespace deepinfer {

struct CallCost {
    double bytes = 0, flops = 0;
    double stored = 0;  ///< of the bytes: weights and cache rows
};

template <auto kMember>
struct OpTag {};

namespace op_costs {

inline double size(const Tensor& t) {
    return t ? static_cast<double>(t.bytes()) : 0.0;
}
inline CallCost weights(const WeightMatrix& w) {
    const double b = static_cast<double>(w.bytes());
    return {b, 0, b};
}
inline double product(int64_t a, int64_t b, int64_t c = 1) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

/// Tensors count once, whatever the op does with them; everything else is free.
template <typename T>
double any_size(const T& argument) {
    if constexpr (std::is_same_v<T, Tensor>) return size(argument);
    return 0;
}

/// Length of a list that ends with -1.
inline int64_t list_length(const Tensor& lists, int64_t t) {
    if (!lists) return 0;
    const int32_t* l = lists.row<int32_t>(t);
    return std::find(l, l + lists.dim(1), -1) - l;
}

}  // namespace op_costs

/// Row ops: what goes in and what comes out.
template <auto kMember, typename... Args>
CallCost call_cost(OpTag<kMember>, const Args&... args) {
    return {(0.0 + ... + op_costs::any_size(args)), 0, 0};
}

inline CallCost matrix_cost(const Tensor& x, const WeightMatrix& w, const Tensor& out) {
    CallCost c = op_costs::weights(w);
    c.bytes += op_costs::size(x) + op_costs::size(out);
    c.flops = 2 * op_costs::product(x.dim(0), w.n, w.k);
    return c;
}
inline CallCost call_cost(OpTag<&OpTable::linear>,
                          const Tensor& x,
                          const WeightMatrix& w,
                          const Tensor& out) {
    return matrix_cost(x, w, out);
}
inline CallCost call_cost(OpTag<&OpTable::grouped_o_proj>,
                          const Tensor& o,
                          const WeightMatrix& w,
                          int,
                          const Tensor& out) {
    return matrix_cost(o, w, out);
}
inline CallCost call_cost(OpTag<&OpTable::router_scores>,
                          const Tensor& u,
                          const WeightMatrix& gate,
                          float,
                          ScoringFunc,
                          const Tensor& out) {
    return matrix_cost(u, gate, out);
}

/// The experts that these rows use.
inline CallCost call_cost(OpTag<&OpTable::moe_ffn>,
                          const Tensor& u,
                          const Tensor& ids,
                          const Tensor&,
                          std::span<const ExpertWeights> experts,
                          const ExpertWeights& shared,
                          float,
                          const Tensor& out) {
    std::set<int32_t> used;
    for (int64_t t = 0; t < u.dim(0); ++t)
        used.insert(ids.row<int32_t>(t), ids.row<int32_t>(t) + ids.dim(1));
    CallCost c;
    const auto add = [&](const ExpertWeights& e) {
        c.stored += static_cast<double>(e.w1.bytes() + e.w2.bytes() + e.w3.bytes());
    };
    for (const int32_t e : used) add(experts[static_cast<size_t>(e)]);
    add(shared);
    c.bytes = c.stored + op_costs::size(u) + op_costs::size(out);
    c.flops = 6 * op_costs::product(u.dim(0) * (ids.dim(1) + 1), u.dim(1), shared.w1.n);
    return c;
}

/// Products of every row with its keys; packed rows once a sequence.
inline CallCost call_cost(OpTag<&OpTable::sparse_attention>,
                          const Tensor& q,
                          const BatchView& batch,
                          const AttentionCache& cache,
                          const Tensor& lists,
                          const Tensor&,
                          double,
                          const Tensor& out) {
    const int64_t width = q.dim(1) * q.dim(2), dh = q.dim(2);
    CallCost c;
    double keys = 0;
    int64_t seq = -1, window_from = 0, longest = 0, position = 0;
    const auto end_sequence = [&] {
        if (seq < 0) return;
        c.stored += op_costs::product(position + 1 - window_from, window_row_bytes(dh)) +
                    op_costs::product(longest, kv_entry_bytes(dh));
    };
    for (int64_t t = 0; t < q.dim(0); ++t) {
        const int64_t s = batch.row_seq.ptr<int32_t>()[t], p = batch.positions.ptr<int32_t>()[t];
        const int64_t floor = batch.window_floor.ptr<int32_t>()[s];
        const int64_t lowest = std::max<int64_t>({0, floor, p - cache.window + 1});
        if (s != seq) {
            end_sequence();
            seq = s;
            window_from = lowest;
            longest = 0;
        }
        position = p;
        const int64_t entries = op_costs::list_length(lists, t);
        longest = std::max(longest, entries);
        keys += static_cast<double>(std::max<int64_t>(1, p - lowest + 1) + entries);
    }
    end_sequence();
    c.bytes = c.stored + op_costs::size(q) + op_costs::size(out);
    c.flops = 4 * keys * static_cast<double>(width);
    return c;
}

/// Visible entries of every row, or its candidates; keys once a sequence.
inline CallCost call_cost(OpTag<&OpTable::index_scores>,
                          const Tensor& q,
                          const Tensor& hw,
                          const BatchView& batch,
                          const IndexCache& cache,
                          const Tensor& candidates,
                          int block_size,
                          const Tensor& scores) {
    CallCost c;
    double keys = 0;
    for (int64_t t = 0; t < q.dim(0); ++t) {
        const int64_t s = batch.row_seq.ptr<int32_t>()[t];
        int64_t n = (batch.positions.ptr<int32_t>()[t] + 1) / cache.ratio;
        if (candidates) n = std::min(n, op_costs::list_length(candidates, t) * block_size);
        keys += static_cast<double>(n);
        const bool last = t + 1 == q.dim(0) || batch.row_seq.ptr<int32_t>()[t + 1] != s;
        if (last) c.stored += op_costs::product(n, index_key_bytes(q.dim(2)));
    }
    c.bytes = c.stored + op_costs::size(q) + op_costs::size(hw) + 4 * keys;
    c.flops = 2 * keys * op_costs::product(q.dim(1), q.dim(2));
    (void)scores;
    return c;
}

inline CallCost mix_cost(const Tensor& x, const Tensor& fn) {
    const double stored = op_costs::size(fn);
    return {op_costs::size(x) + stored, 2 * op_costs::product(x.dim(0), fn.numel()), stored};
}
template <typename... Rest>
CallCost call_cost(OpTag<&OpTable::mhc_mixes>, const Tensor& x, const Tensor& fn, const Rest&...) {
    return mix_cost(x, fn);
}

// Tables and pools: the rows that are touched.
inline CallCost call_cost(OpTag<&OpTable::embed_streams>,
                          const WeightMatrix& embed,
                          const Tensor& ids,
                          const Tensor& out) {
    const double rows = op_costs::product(ids.numel(), embed.k, 2);
    return {rows + op_costs::size(out), 0, rows};
}
inline CallCost call_cost(OpTag<&OpTable::gather_rows>,
                          const Tensor&,
                          const Tensor&,
                          const Tensor& out) {
    return {2 * op_costs::size(out), 0, 0};
}
inline CallCost call_cost(OpTag<&OpTable::engram_lookup>,
                          const WeightMatrix& table,
                          const Tensor& ids,
                          const Tensor& out) {
    const double rows = op_costs::product(ids.numel(), table.k + table.k / 32);
    return {rows + op_costs::size(out), 0, rows};
}
inline CallCost call_cost(OpTag<&OpTable::window_store>,
                          const Tensor& rows,
                          const BatchView&,
                          const Tensor&) {
    return {2 * op_costs::size(rows), 0, 0};
}
inline CallCost call_cost(OpTag<&OpTable::kv_entry_store>,
                          const Tensor& entries,
                          const Tensor&,
                          const Tensor& pool) {
    return {op_costs::size(entries) + op_costs::product(entries.dim(0), pool.dim(1)), 0, 0};
}
inline CallCost call_cost(OpTag<&OpTable::index_key_store>,
                          const Tensor& keys,
                          const Tensor&,
                          const Tensor& pool) {
    return {op_costs::size(keys) + op_costs::product(keys.dim(0), pool.dim(1)), 0, 0};
}
inline CallCost call_cost(OpTag<&OpTable::compress_pool>,
                          const Tensor& z,
                          const Tensor& g,
                          const BatchView&,
                          const Tensor&,
                          int,
                          const Tensor&,
                          const Tensor& out) {
    return {op_costs::size(z) + op_costs::size(g) + op_costs::size(out), 0, 0};
}
inline CallCost call_cost(OpTag<&OpTable::compress_tail_store>,
                          const Tensor& z,
                          const Tensor& g,
                          const BatchView& batch,
                          const Tensor& tail) {
    const int64_t kept = std::min(z.dim(0), batch.num_seqs() * tail.dim(1));
    return {2 * op_costs::product(kept, z.dim(1) + g.dim(1), 4), 0, 0};
}

}  // namespace deepinfer
