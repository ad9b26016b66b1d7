// sparse_attention: key lists as pointers, then blocks of 64 entries per row. Many rows are split
// over the threads, neighbours sharing their widened keys; few rows split their blocks instead.
// Neither changes a bit: a row's blocks are its own, and they are merged in order.
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
    // A row below the floor has no window rows; its neighbours in a group may have some.
    k.lowest = std::min(k.lowest, k.position + 1);
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

/// The arguments of one call for the levels without tiles.
struct RowJob {
    const Kernels& k;
    const Tensor& q;
    const BatchView& batch;
    const AttentionCache& cache;
    const Tensor& lists;
    const Tensor& sink;
    float scale;
    const Tensor& out;

    int64_t heads() const { return q.dim(1); }
    int64_t dh() const { return q.dim(2); }
    int64_t part_floats() const { return attention_part_floats(heads(), dh()); }
    int64_t key_bytes() const { return dh() * k.attention.key_value_bytes; }

    void new_state(float* state) const {
        std::copy(sink.ptr<float>(), sink.ptr<float>() + heads(), state);
        std::fill(state + heads(), state + 2 * heads(), 1.0f);
        std::fill(state + 2 * heads(), state + part_floats(), 0.0f);
    }
    AttentionArgs args(int64_t t, const uint8_t* const* keys, int64_t num_keys) const {
        return {&q.row<bf16>(t)->bits, heads(), dh(), keys, num_keys, scale};
    }
    void finish(int64_t t, const float* state) const {
        k.attention.finish_row(state, heads(), dh(), &out.row<bf16>(t)->bits);
    }
};

using WidenKey = void (*)(const uint8_t* row, int64_t dh, uint8_t* key);

/// The last keys of one ascending run (window positions, or entries) in widened form.
class KeyRing {
  public:
    KeyRing(uint8_t* memory, int64_t slots, int64_t key_bytes, const uint8_t* const* rows)
        : memory_(memory), slots_(slots), key_bytes_(key_bytes), rows_(rows) {}
    /// Key `index`, which is at most `slots` behind the farthest one asked for.
    const uint8_t* at(int64_t index, WidenKey widen, int64_t dh) {
        for (; next_ <= index; ++next_) widen(rows_[next_], dh, slot(next_));
        return slot(index);
    }

  private:
    uint8_t* slot(int64_t index) const { return memory_ + index % slots_ * key_bytes_; }
    uint8_t* memory_;
    int64_t slots_, key_bytes_;
    const uint8_t* const* rows_;
    int64_t next_ = 0;
};

/// Rows whose states stay in cache beside the keys.
int64_t group_limit(const RowJob& job) {
    constexpr int64_t kStateFloats = 131072;
    return std::clamp<int64_t>(kStateFloats / job.part_floats(), 1, kGroupRows);
}

/// Rows [t, t + n) of one sequence, entry lists prefixes of the last one's: each key is widened
/// once for all of them. Block by block, so that rings of two blocks hold what the rows are at.
void attend_group_rows(const RowJob& job, int64_t t, int64_t n) {
    const int64_t dh = job.dh(), heads = job.heads(), part = job.part_floats();
    const int64_t slots = n == 1 ? kKeyBlock : 2 * kKeyBlock;
    static_assert(kGroupRows <= kKeyBlock, "a ring holds a block and the rows' shifts against it");
    const int64_t longest = job.cache.window + kGroupRows + (job.lists ? job.lists.dim(1) : 0);
    const uint8_t** packed = scratch<const uint8_t*>(Slot::kKeys, longest);
    int64_t lowest[kGroupRows], num_window[kGroupRows], num_keys[kGroupRows];
    int64_t most = 0;
    for (int64_t r = 0; r < n; ++r) {
        const RowKeys keys = keys_of(job.batch, job.cache, t + r);
        lowest[r] = keys.lowest;
        num_window[r] = keys.position - keys.lowest + 1;
        num_keys[r] = num_window[r] + list_length(job.lists, t + r);
        most = std::max(most, num_keys[r]);
    }
    const RowKeys first = keys_of(job.batch, job.cache, t);
    const int64_t window =
        window_rows(job.batch, job.cache, first, first.lowest, first.position + n - 1, packed);
    entry_rows(job.batch, job.cache, job.lists, t + n - 1, first.seq, packed + window);

    const int64_t ring_floats = slots * job.key_bytes() / static_cast<int64_t>(sizeof(float));
    const int64_t work = attention_scratch_floats(heads, dh);
    float* memory = scratch<float>(Slot::kAttention, 2 * ring_floats + work + (n + 1) * part);
    uint8_t* rings = reinterpret_cast<uint8_t*>(memory);
    KeyRing window_ring(rings, slots, job.key_bytes(), packed);
    KeyRing entry_ring(rings + slots * job.key_bytes(), slots, job.key_bytes(), packed + window);
    float *own = memory + 2 * ring_floats, *block_part = own + work, *states = block_part + part;
    for (int64_t r = 0; r < n; ++r) job.new_state(states + r * part);
    for (int64_t begin = 0; begin < most; begin += kKeyBlock) {
        for (int64_t r = 0; r < n; ++r) {
            const int64_t end = std::min(num_keys[r], begin + kKeyBlock);
            if (end <= begin) continue;
            const uint8_t* keys[kKeyBlock];
            for (int64_t i = begin; i < end; ++i) {
                keys[i - begin] =
                    i < num_window[r]
                        ? window_ring.at(
                              lowest[r] - lowest[0] + i, job.k.attention.widen_window, dh)
                        : entry_ring.at(i - num_window[r], job.k.attention.widen_entry, dh);
            }
            job.k.attention.attend_keys(job.args(t + r, keys, end - begin), own, block_part);
            job.k.attention.merge_block(states + r * part, block_part, heads, dh);
        }
    }
    for (int64_t r = 0; r < n; ++r) job.finish(t + r, states + r * part);
}

/// Many rows: runs of rows go round the threads, because later rows of a prompt see more keys.
void attend_rows(Stream& stream, const RowJob& job) {
    const int64_t num_rows = job.q.dim(0);
    const int64_t threads = static_cast<CpuStream&>(stream).pool().num_threads();
    const int64_t run = std::clamp<int64_t>(num_rows / (4 * threads), 1, group_limit(job));
    const int64_t runs = (num_rows + run - 1) / run;
    parallel_for(stream, std::min(threads, runs), 1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
            for (int64_t i = part; i < runs; i += std::min(threads, runs)) {
                const int64_t stop = std::min(num_rows, (i + 1) * run);
                for (int64_t t = i * run; t < stop;) {
                    const int64_t n = group_length(job.batch, job.lists, t, stop);
                    attend_group_rows(job, t, n);
                    t += n;
                }
            }
        }
    });
}

/// A row alone: its blocks go over the threads.
void attend_one_row(Stream& stream, const RowJob& job, int64_t t) {
    const int64_t dh = job.dh(), heads = job.heads(), part = job.part_floats();
    const uint8_t** packed =
        scratch<const uint8_t*>(Slot::kKeys, job.cache.window + (job.lists ? job.lists.dim(1) : 0));
    const RowKeys row = keys_of(job.batch, job.cache, t);
    const int64_t window = window_rows(job.batch, job.cache, row, row.lowest, row.position, packed);
    const int64_t num_keys =
        window + entry_rows(job.batch, job.cache, job.lists, t, row.seq, packed + window);
    const int64_t blocks = (num_keys + kKeyBlock - 1) / kKeyBlock;
    float* parts = scratch<float>(Slot::kIndex, (blocks + 1) * part);
    float* state = parts + blocks * part;
    parallel_for(stream, blocks, 1, [&](int64_t begin, int64_t end) {
        const int64_t ring_floats =
            kKeyBlock * job.key_bytes() / static_cast<int64_t>(sizeof(float));
        float* memory =
            scratch<float>(Slot::kAttention, ring_floats + attention_scratch_floats(heads, dh));
        uint8_t* widened = reinterpret_cast<uint8_t*>(memory);
        for (int64_t b = begin; b < end; ++b) {
            const uint8_t* keys[kKeyBlock];
            const int64_t from = b * kKeyBlock, n = std::min<int64_t>(kKeyBlock, num_keys - from);
            for (int64_t j = 0; j < n; ++j) {
                uint8_t* key = widened + j * job.key_bytes();
                const WidenKey widen =
                    from + j < window ? job.k.attention.widen_window : job.k.attention.widen_entry;
                widen(packed[from + j], dh, key);
                keys[j] = key;
            }
            job.k.attention.attend_keys(
                job.args(t, keys, n), memory + ring_floats, parts + b * part);
        }
    });
    job.new_state(state);
    for (int64_t b = 0; b < blocks; ++b)
        job.k.attention.merge_block(state, parts + b * part, heads, dh);
    job.finish(t, state);
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
    const RowJob job{k, q, batch, cache, lists, sink, static_cast<float>(scale), out};
    if (num_rows > 2) {
        attend_rows(stream, job);
    } else {
        for (int64_t t = 0; t < num_rows; ++t) attend_one_row(stream, job, t);
    }
}

}  // namespace deepinfer::cpu
