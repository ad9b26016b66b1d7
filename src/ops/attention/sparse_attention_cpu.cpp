// sparse_attention: key lists as pointers, then blocks of 64 entries per row. Many rows are split
// over the threads; few rows split their blocks instead, which changes nothing (blocks are merged
// in order).
#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/attention_inl.h"
#include "backends/cpu/scratch.h"
#include "tensor/quant_block.h"

namespace deepinfer::cpu {

extern const AttentionKernels kAttention_baseline;
const AttentionKernels kAttention_baseline = attention_kernels();

namespace {

/// Where the keys of one row are.
struct RowKeys {
    int64_t seq, position, start, first_row, lowest;
};

RowKeys keys_of(const BatchView& batch, const AttentionCache& cache, int64_t t) {
    RowKeys k;
    k.seq = batch.row_seq.ptr<int32_t>()[t];
    k.position = batch.positions.ptr<int32_t>()[t];
    k.start = batch.seq_start.ptr<int32_t>()[k.seq];
    k.first_row = batch.seq_rows.ptr<int32_t>()[k.seq];
    k.lowest = std::max<int64_t>(
        {0, batch.window_floor.ptr<int32_t>()[k.seq], k.position - cache.window + 1});
    return k;
}

/// Packed window rows of positions [from, to] of a sequence; returns how many.
int64_t window_rows(const BatchView& batch,
                    const AttentionCache& cache,
                    const RowKeys& k,
                    int64_t from,
                    int64_t to,
                    const uint8_t** rows) {
    int64_t n = 0;
    for (int64_t pos = from; pos < std::min(k.start, to + 1); ++pos) {
        rows[n++] = cache.window_ring.row<uint8_t>(batch.seq_slot.ptr<int32_t>()[k.seq]) +
                    pos % cache.window_ring.dim(1) * cache.window_ring.stride[1];
    }
    for (int64_t pos = std::max(from, k.start); pos <= to; ++pos)
        rows[n++] = cache.step_rows.row<uint8_t>(k.first_row + pos - k.start);
    return n;
}

/// Packed entries of row t's list; returns how many.
int64_t entry_rows(const BatchView& batch,
                   const AttentionCache& cache,
                   const Tensor& lists,
                   int64_t t,
                   int64_t seq,
                   const uint8_t** rows) {
    if (!lists) return 0;
    const int32_t* list = lists.row<int32_t>(t);
    const int32_t* blocks = batch.block_table.row<int32_t>(seq);
    int64_t n = 0;
    for (; n < lists.dim(1) && list[n] >= 0; ++n) {
        const int64_t block = blocks[list[n] / cache.entries_per_block];
        DI_CHECK_GE(block, 0);
        rows[n] = cache.kv_pool.row<uint8_t>(block * cache.entries_per_block +
                                             list[n] % cache.entries_per_block);
    }
    return n;
}

int64_t list_length(const Tensor& lists, int64_t t) {
    if (!lists) return 0;
    const int32_t* l = lists.row<int32_t>(t);
    return std::find(l, l + lists.dim(1), -1) - l;
}

/// Rows from t on that one group may hold: same sequence, entry lists prefixes of the next row's.
int64_t group_length(const BatchView& batch, const Tensor& lists, int64_t t, int64_t end) {
    int64_t n = 1;
    for (; t + n < end && n < kGroupRows; ++n) {
        if (batch.row_seq.ptr<int32_t>()[t + n] != batch.row_seq.ptr<int32_t>()[t]) break;
        if (!lists) continue;
        const int64_t before = list_length(lists, t + n - 1);
        const int32_t *a = lists.row<int32_t>(t + n - 1), *b = lists.row<int32_t>(t + n);
        if (list_length(lists, t + n) < before || !std::equal(a, a + before, b)) break;
    }
    return n;
}

/// The AMX form: groups of rows over the threads, or the blocks of one row over them.
void attend_groups(const Kernels& k,
                   Stream& stream,
                   const Tensor& q,
                   const BatchView& batch,
                   const AttentionCache& cache,
                   const Tensor& lists,
                   const Tensor& sink,
                   float scale,
                   const Tensor& out) {
    const int64_t num_rows = q.dim(0), heads = q.dim(1), dh = q.dim(2);
    const int64_t longest = cache.window + kGroupRows + (lists ? lists.dim(1) : 0);
    const auto fill =
        [&](int64_t t, int64_t n, const uint8_t** rows, int64_t* lowest, int64_t* counts) {
            AttentionGroup g;
            g.q = &q.row<bf16>(t)->bits;
            g.ld_q = q.stride[0];
            g.heads = heads;
            g.dh = dh;
            g.num_rows = n;
            for (int64_t r = 0; r < n; ++r) {
                lowest[r] = keys_of(batch, cache, t + r).lowest;
                counts[r] = list_length(lists, t + r);
            }
            const RowKeys first = keys_of(batch, cache, t);
            g.first_position = first.position;
            g.lowest = lowest;
            g.window = rows;
            g.entries =
                rows + window_rows(batch, cache, first, first.lowest, first.position + n - 1, rows);
            g.num_entries = counts;
            entry_rows(
                batch, cache, lists, t + n - 1, first.seq, const_cast<const uint8_t**>(g.entries));
            g.sink = sink.ptr<float>();
            g.scale = scale;
            g.scratch = scratch<uint8_t>(Slot::kAttention, group_scratch_bytes(heads, dh));
            g.out = &out.row<bf16>(t)->bits;
            g.ld_out = out.stride[0];
            return g;
        };
    if (num_rows > 2) {
        parallel_for(stream, num_rows, 1, [&](int64_t begin, int64_t end) {
            const uint8_t** rows = scratch<const uint8_t*>(Slot::kKeys, longest);
            int64_t lowest[kGroupRows], counts[kGroupRows];
            for (int64_t t = begin; t < end;) {
                const int64_t n = group_length(batch, lists, t, end);
                k.attention.attend_group(fill(t, n, rows, lowest, counts));
                t += n;
            }
        });
        return;
    }
    const uint8_t** rows = scratch<const uint8_t*>(Slot::kKeys, longest);
    const int64_t part = attention_part_floats(heads, dh);
    for (int64_t t = 0; t < num_rows; ++t) {
        int64_t lowest, count;
        const AttentionGroup g = fill(t, 1, rows, &lowest, &count);
        const int64_t blocks = k.attention.group_blocks(g);
        float* parts = scratch<float>(Slot::kIndex, (blocks + 1) * part);
        float* state = parts + blocks * part;
        parallel_for(stream, blocks, 1, [&](int64_t begin, int64_t end) {
            AttentionGroup own = g;
            own.scratch = scratch<uint8_t>(Slot::kAttention, group_scratch_bytes(heads, dh));
            for (int64_t b = begin; b < end; ++b) k.attention.group_block(own, b, parts + b * part);
        });
        std::copy(g.sink, g.sink + heads, state);
        std::fill(state + heads, state + 2 * heads, 1.0f);
        std::fill(state + 2 * heads, state + part, 0.0f);
        for (int64_t b = 0; b < blocks; ++b)
            k.attention.merge_block(state, parts + b * part, heads, dh);
        k.attention.finish_group(g, state);
    }
}

}  // namespace

void sparse_attention_cpu(const Kernels& k,
                          Stream& stream,
                          const Tensor& q,
                          const BatchView& batch,
                          const AttentionCache& cache,
                          const Tensor& lists,
                          const Tensor& sink,
                          double scale,
                          Tensor out) {
    const int64_t num_rows = q.dim(0), heads = q.dim(1), dh = q.dim(2);
    if (num_rows == 0) return;
    if (dh % 64 != 0)
        return sparse_attention_ref<float>(stream, q, batch, cache, lists, sink, scale, out);
    DI_CHECK(q.dtype == DType::kBF16 && out.dtype == DType::kBF16 && sink.dtype == DType::kF32);
    DI_CHECK_EQ(batch.num_rows(), num_rows);
    DI_CHECK_EQ(sink.dim(0), heads);
    DI_CHECK_EQ(cache.step_rows.dim(1), window_row_bytes(dh));
    if (k.attention.attend_group != nullptr) {
        return attend_groups(
            k, stream, q, batch, cache, lists, sink, static_cast<float>(scale), out);
    }
    const int64_t longest = cache.window + (lists ? lists.dim(1) : 0),
                  max_blocks = (longest + kKeyBlock - 1) / kKeyBlock;
    const int64_t part = attention_part_floats(heads, dh),
                  work = attention_scratch_floats(heads, dh);
    const auto new_state = [&](float* state) {
        std::copy(sink.ptr<float>(), sink.ptr<float>() + heads, state);
        std::fill(state + heads, state + 2 * heads, 1.0f);
        std::fill(state + 2 * heads, state + part, 0.0f);
    };
    const auto args_of = [&](int64_t t, const uint8_t** rows) {
        AttentionArgs a;
        a.q = &q.row<bf16>(t)->bits;
        a.heads = heads;
        a.dh = dh;
        a.rows = rows;
        const RowKeys row = keys_of(batch, cache, t);
        a.num_window = window_rows(batch, cache, row, row.lowest, row.position, rows);
        a.num_rows =
            a.num_window + entry_rows(batch, cache, lists, t, row.seq, rows + a.num_window);
        a.scale = static_cast<float>(scale);
        return a;
    };
    if (num_rows > 2) {
        parallel_for(stream, num_rows, 1, [&](int64_t begin, int64_t end) {
            const uint8_t** rows = scratch<const uint8_t*>(Slot::kKeys, longest);
            float* memory = scratch<float>(Slot::kAttention, work + 2 * part);
            float *state = memory + work, *block_part = state + part;
            for (int64_t t = begin; t < end; ++t) {
                const AttentionArgs a = args_of(t, rows);
                new_state(state);
                for (int64_t b = 0; b * kKeyBlock < a.num_rows; ++b) {
                    k.attention.attend_block(a, b, memory, block_part);
                    k.attention.merge_block(state, block_part, heads, dh);
                }
                k.attention.finish_row(state, heads, dh, &out.row<bf16>(t)->bits);
            }
        });
        return;
    }
    const uint8_t** rows = scratch<const uint8_t*>(Slot::kKeys, longest);
    float* parts = scratch<float>(Slot::kIndex, (max_blocks + 1) * part);
    float* state = parts + max_blocks * part;
    for (int64_t t = 0; t < num_rows; ++t) {
        const AttentionArgs a = args_of(t, rows);
        const int64_t blocks = (a.num_rows + kKeyBlock - 1) / kKeyBlock;
        parallel_for(stream, blocks, 1, [&](int64_t begin, int64_t end) {
            float* memory = scratch<float>(Slot::kAttention, work + 2 * part);
            for (int64_t b = begin; b < end; ++b)
                k.attention.attend_block(a, b, memory, parts + b * part);
        });
        new_state(state);
        for (int64_t b = 0; b < blocks; ++b)
            k.attention.merge_block(state, parts + b * part, heads, dh);
        k.attention.finish_row(state, heads, dh, &out.row<bf16>(t)->bits);
    }
}

}  // namespace deepinfer::cpu
