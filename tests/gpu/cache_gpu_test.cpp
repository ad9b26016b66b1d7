// Caches, compressor, indexer and attention on the device against the twins, over random paged
// sequences.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "gpu/gpu_support.h"
#include "ops/sampling/sample_rows.h"
#include "tensor/quant_block.h"

namespace deepinfer::gpu_test {
namespace {

using CacheGpu = GpuTest;

struct Chunk {
    int32_t start, rows, floor;
};

/// Batch tensors of some chunks, blocks shuffled over the pool, slots reversed.
struct Step {
    std::vector<Chunk> chunks;
    int64_t rows = 0;
    int block_tokens = 16;
    int64_t num_blocks = 0;
    HostTensor positions, row_seq, seq_rows, seq_start, seq_slot, window_floor, block_table;
    Arg args[7]{};

    Step(std::mt19937_64& rng, std::vector<Chunk> c, int tokens)
        : chunks(std::move(c)), block_tokens(tokens) {
        std::vector<int32_t> pos, seq, first{0}, start, slot, floor, table;
        int64_t max_blocks = 1;
        for (const Chunk& k : chunks)
            max_blocks = std::max<int64_t>(max_blocks, (k.start + k.rows + tokens - 1) / tokens);
        num_blocks = max_blocks * static_cast<int64_t>(chunks.size()) + 3;
        std::vector<int32_t> free(static_cast<size_t>(num_blocks));
        std::iota(free.begin(), free.end(), 0);
        std::shuffle(free.begin(), free.end(), rng);
        for (size_t s = 0; s < chunks.size(); ++s) {
            const Chunk& k = chunks[s];
            for (int32_t i = 0; i < k.rows; ++i) {
                pos.push_back(k.start + i);
                seq.push_back(static_cast<int32_t>(s));
            }
            first.push_back(static_cast<int32_t>(pos.size()));
            start.push_back(k.start);
            slot.push_back(static_cast<int32_t>(chunks.size() - 1 - s));
            floor.push_back(k.floor);
            for (int64_t b = 0; b < max_blocks; ++b) {
                const bool used = b < (k.start + k.rows + tokens - 1) / tokens;
                table.push_back(used ? free.back() : -1);
                if (used) free.pop_back();
            }
        }
        rows = static_cast<int64_t>(pos.size());
        const auto b = static_cast<int64_t>(chunks.size());
        positions = ints(pos, {rows});
        row_seq = ints(seq, {rows});
        seq_rows = ints(first, {b + 1});
        seq_start = ints(start, {b});
        seq_slot = ints(slot, {b});
        window_floor = ints(floor, {b});
        block_table = ints(table, {b, max_blocks});
    }

    void add_to(Case& c) {
        args[0] = c.input(positions);
        args[1] = c.input(row_seq);
        args[2] = c.input(seq_rows);
        args[3] = c.input(seq_start);
        args[4] = c.input(seq_slot);
        args[5] = c.input(window_floor);
        args[6] = c.input(block_table);
    }
    BatchView view(const Args& a) const {
        BatchView v;
        v.positions = a[args[0]];
        v.row_seq = a[args[1]];
        v.seq_rows = a[args[2]];
        v.seq_start = a[args[3]];
        v.seq_slot = a[args[4]];
        v.window_floor = a[args[5]];
        v.block_table = a[args[6]];
        return v;
    }
    int64_t num_seqs() const { return static_cast<int64_t>(chunks.size()); }
};

/// Packed rows of random vectors, made by the host quantizers.
HostTensor packed_window(std::mt19937_64& rng, std::vector<int64_t> dims, int64_t dh) {
    int64_t rows = 1;
    for (int64_t d : dims) rows *= d;
    HostTensor kv = normal_bf16(rng, {rows, dh}),
               out = make_tensor(DType::kU8, {rows, window_row_bytes(dh)});
    ref_op_table().window_pack(host().stream(), kv.view, out.view);
    dims.push_back(window_row_bytes(dh));
    HostTensor r = make_tensor(DType::kU8, dims);
    std::copy(out.memory.begin(), out.memory.begin() + out.view.bytes(), r.memory.begin());
    return r;
}
HostTensor packed_pool(std::mt19937_64& rng, int64_t entries, int64_t dim, bool keys) {
    HostTensor v = normal_bf16(rng, {entries, dim}),
               out = make_tensor(DType::kU8,
                                 {entries, keys ? index_key_bytes(dim) : kv_entry_bytes(dim)});
    std::vector<int64_t> slots(static_cast<size_t>(entries));
    std::iota(slots.begin(), slots.end(), 0);
    HostTensor s = longs(slots, {entries});
    if (keys)
        ref_op_table().index_key_store(host().stream(), v.view, s.view, out.view);
    else
        ref_op_table().kv_entry_store(host().stream(), v.view, s.view, out.view);
    return out;
}

TEST_F(CacheGpu, PackedRowsEqualTwin) {
    for (int64_t dh : {32, 64, 512}) {
        for (int64_t rows : {0, 1, 29}) {
            std::vector<int64_t> slots;
            for (int64_t i = 0; i < rows; ++i) slots.push_back(i % 5 == 3 ? -1 : (i * 11 + 2) % 31);
            Case c;
            const Arg x = c.input(normal_bf16(rng, {rows, dh}, 2.0f, 3)),
                      w = c.output(DType::kU8, {rows, window_row_bytes(dh)}),
                      s = c.input(longs(slots, {rows})),
                      pool = c.output(DType::kU8, {31, kv_entry_bytes(dh)}, 5),
                      keys = c.output(DType::kU8, {31, index_key_bytes(dh)});
            c.run([&](const OpTable& ops, Stream& st, const Args& a) {
                ops.window_pack(st, a[x], a[w]);
                ops.kv_entry_store(st, a[x], a[s], a[pool]);
                ops.index_key_store(st, a[x], a[s], a[keys]);
            });
            c.expect_equal(w, "window rows");
            c.expect_equal(pool, "entries");
            c.expect_equal(keys, "index keys");
        }
    }
}

TEST_F(CacheGpu, RingsAndTailsEqualTwin) {
    for (const std::vector<Chunk>& chunks :
         {std::vector<Chunk>{{0, 1, 0}}, std::vector<Chunk>{{5, 40, 0}, {100, 1, 0}, {0, 3, 0}}}) {
        Step step(rng, chunks, 16);
        const int64_t dh = 64, ring_len = 20, tail_len = 7;
        Case c;
        step.add_to(c);
        const Arg rows = c.input(packed_window(rng, {step.rows}, dh)),
                  ring = c.output(DType::kU8, {step.num_seqs(), ring_len, window_row_bytes(dh)}),
                  z = c.input(normal_f32(rng, {step.rows, dh})),
                  g = c.input(normal_f32(rng, {step.rows, dh})),
                  tail = c.output(DType::kF32, {step.num_seqs(), tail_len, 2, dh});
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.window_store(s, a[rows], step.view(a), a[ring]);
            ops.compress_tail_store(s, a[z], a[g], step.view(a), a[tail]);
        });
        c.expect_equal(ring, "ring");
        c.expect_equal(tail, "tail");
    }
}

TEST_F(CacheGpu, PoolingMatchesTwin) {
    for (int ratio : {2, 4}) {
        Step step(rng, {{0, 9, 0}, {7, 6, 0}, {31, 1, 0}}, 16);
        std::vector<int32_t> entries;
        for (int64_t t = 0; t < step.rows; ++t) {
            if ((step.positions.view.ptr<int32_t>()[t] + 1) % ratio == 0)
                entries.push_back(static_cast<int32_t>(t));
        }
        const int64_t dh = 96, n = static_cast<int64_t>(entries.size());
        Case c;
        step.add_to(c);
        const Arg z = c.input(normal_f32(rng, {step.rows, dh})),
                  g = c.input(normal_f32(rng, {step.rows, dh}, 3.0f)),
                  tail = c.input(normal_f32(rng, {3, 9, 2, dh})), e = c.input(ints(entries, {n})),
                  out = c.output(DType::kBF16, {n, dh});
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            ops.compress_pool(s, a[z], a[g], step.view(a), a[tail], ratio, a[e], a[out]);
        });
        c.expect_close(out, 1e-3, "pool");
    }
}

TEST_F(CacheGpu, IndexScoresEqualTwinToTheBit) {
    struct Size {
        int64_t heads, di;
        int ratio;
    };
    for (const Size& z : {Size{4, 32, 2}, Size{8, 128, 1}, Size{32, 128, 2}, Size{5, 64, 1}}) {
        for (int kind = 0; kind < 3; ++kind) {
            std::vector<Chunk> chunks =
                kind == 0   ? std::vector<Chunk>{{0, 1, 0}}
                : kind == 1 ? std::vector<Chunk>{{700, 3, 0}, {0, 5, 0}, {129, 1, 0}}
                            : std::vector<Chunk>{{0, 150, 0}, {300, 40, 0}};
            Step step(rng, chunks, 16);
            const int epb = 16 / z.ratio;
            int64_t n = 0;
            for (const Chunk& k : chunks) n = std::max<int64_t>(n, (k.start + k.rows) / z.ratio);
            n += 3;
            HostTensor q = normal_bf16(rng, {step.rows, z.heads * z.di});
            ref_op_table().quant_q4m(host().stream(), q.view, q.view);
            q.view = Tensor(q.memory.data(), DType::kBF16, {step.rows, z.heads, z.di});
            for (bool restricted : {false, true}) {
                const int64_t num_candidates = 9;
                std::vector<int32_t> cand;
                for (int64_t t = 0; t < step.rows; ++t) {
                    for (int64_t i = 0; i < num_candidates; ++i)
                        cand.push_back(static_cast<int32_t>(i < t % 10 ? i * 5 + t % 3 : -1));
                }
                Case c;
                step.add_to(c);
                const Arg qa = c.input(q),
                          hw = c.input(normal_bf16(rng, {step.rows, z.heads}, 0.1f)),
                          pool = c.input(packed_pool(rng, step.num_blocks * epb, z.di, true)),
                          ca = restricted ? c.input(ints(cand, {step.rows, num_candidates}))
                                          : c.none(),
                          out = c.output(DType::kF32, {step.rows, n});
                c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                    IndexCache cache{a[pool], epb, z.ratio};
                    ops.index_scores(s, a[qa], a[hw], step.view(a), cache, a[ca], 4, a[out]);
                });
                c.expect_close(
                    out,
                    1e-6,
                    "scores heads " + std::to_string(z.heads) + " kind " + std::to_string(kind));
                c.expect_equal(
                    out,
                    "scores heads " + std::to_string(z.heads) + " kind " + std::to_string(kind));
            }
        }
    }
}

HostTensor tied_scores(std::mt19937_64& rng, int64_t rows, int64_t n, float step) {
    HostTensor s = normal_f32(rng, {rows, n});
    std::uniform_int_distribution<int> what(0, 40);
    for (int64_t i = 0; i < rows * n; ++i) {
        float& v = s.view.ptr<float>()[i];
        if (step > 0) v = std::round(v / step) * step;
        const int w = what(rng);
        if (w == 0) v = -std::numeric_limits<float>::infinity();
        if (w == 1) v = std::numeric_limits<float>::quiet_NaN();
        if (w == 2) v = -0.0f;
    }
    return s;
}

TEST_F(CacheGpu, SelectionEqualsTwin) {
    for (int64_t n : {0, 1, 5, 511, 512, 513, 1500, 40000}) {
        for (int64_t k : {1, 16, 512}) {
            for (float step : {0.0f, 0.25f, 100.0f}) {
                const int64_t rows = n > 2000 ? 2 : 5;
                Case c;
                const Arg s = c.input(tied_scores(rng, rows, n, step)),
                          lists = c.output(DType::kI32, {rows, k});
                c.run([&](const OpTable& ops, Stream& st, const Args& a) {
                    ops.topk_select(st, a[s], a[lists]);
                });
                c.expect_equal(lists, "top-" + std::to_string(k) + " of " + std::to_string(n));
            }
        }
    }
    for (int64_t n : {8, 100, 4097}) {
        for (int ratio : {1, 2}) {
            for (int block : {4, 8}) {
                const int64_t rows = 6;
                std::vector<int32_t> pos;
                for (int64_t t = 0; t < rows; ++t)
                    pos.push_back(
                        static_cast<int32_t>(t == 0 ? 0 : n * ratio - 1 - t * 3 % (n * ratio)));
                HostTensor scores = normal_f32(rng, {rows, n});
                for (int64_t i = 0; i < rows * n; ++i) {
                    float& v = scores.view.ptr<float>()[i];
                    v = i % 17 == 0 ? -std::numeric_limits<float>::infinity()
                                    : std::round(v * 4) / 4;
                }
                Case c;
                const Arg s = c.input(scores), p = c.input(ints(pos, {rows})),
                          blocks = c.output(DType::kI32, {rows, 32});
                c.run([&](const OpTable& ops, Stream& st, const Args& a) {
                    ops.candidate_blocks(st, a[s], a[p], ratio, block, a[blocks]);
                });
                c.expect_equal(blocks, "candidate blocks of " + std::to_string(n));
            }
        }
    }
}

struct AttentionSize {
    int64_t heads, dh;
    int window;
    int64_t list;
};

/// Lists: row t takes every (t % 3 + 1)-th visible entry, up to `list`.
HostTensor make_lists(const Step& step, int ratio, int64_t list) {
    std::vector<int32_t> v;
    for (int64_t t = 0; t < step.rows; ++t) {
        const int64_t visible = (step.positions.view.ptr<int32_t>()[t] + 1) / ratio;
        int64_t n = 0;
        for (int64_t j = t % 2; j < visible && n < list; j += t % 3 + 1, ++n)
            v.push_back(static_cast<int32_t>(j));
        for (; n < list; ++n) v.push_back(-1);
    }
    return ints(v, {step.rows, list});
}

TEST_F(CacheGpu, AttentionMatchesTwin) {
    for (const AttentionSize& z : {AttentionSize{8, 64, 16, 16},
                                   AttentionSize{4, 512, 128, 512},
                                   AttentionSize{64, 512, 128, 512},
                                   AttentionSize{20, 512, 128, 96},
                                   AttentionSize{3, 96, 16, 0}}) {
        for (int kind = 0; kind < 4; ++kind) {
            if (z.heads == 64 && kind == 3) continue;
            std::vector<Chunk> chunks;
            if (kind == 0) chunks = {{0, 1, 0}};
            if (kind == 1) chunks = {{1500, 2, 0}, {0, 3, 0}, {127, 1, 0}, {64, 1, 60}};
            if (kind == 2) chunks = {{130, 70, 0}};
            if (kind == 3) chunks = {{0, 200, 0}, {333, 10, 320}};
            Step step(rng, chunks, 16);
            const int ratio = kind % 2 + 1, epb = 16 / ratio, ring_len = z.window + 12;
            Case c;
            step.add_to(c);
            const Arg q = c.input(normal_bf16(rng, {step.rows, z.heads, z.dh})),
                      rows = c.input(packed_window(rng, {step.rows}, z.dh)),
                      ring = c.input(packed_window(rng, {step.num_seqs(), ring_len}, z.dh)),
                      pool = c.input(packed_pool(rng, step.num_blocks * epb, z.dh, false)),
                      lists = z.list > 0 ? c.input(make_lists(step, ratio, z.list)) : c.none(),
                      sink = c.input(normal_f32(rng, {z.heads}, 2.0f)),
                      out = c.output(DType::kBF16, {step.rows, z.heads, z.dh});
            const float scale = 1.0f / std::sqrt(static_cast<float>(z.dh));
            c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                AttentionCache cache{a[rows], a[ring], a[pool], epb, z.window};
                ops.sparse_attention(
                    s, a[q], step.view(a), cache, a[lists], a[sink], scale, a[out]);
            });
            c.expect_close(out,
                           1e-3,
                           "attention heads " + std::to_string(z.heads) + " dh " +
                               std::to_string(z.dh) + " kind " + std::to_string(kind));
        }
    }
}

TEST_F(CacheGpu, AttentionRowIgnoresItsBatch) {
    // The rows of one long chunk, then its last rows alone (older ones from the ring): the same
    // bits.
    const int64_t dh = 512;
    for (int64_t heads : {4, 64}) {
        const int64_t total = 100;
        Step whole(rng, {{200, static_cast<int32_t>(total), 0}}, 16);
        const HostTensor q = normal_bf16(rng, {total, heads, dh}),
                         rows = packed_window(rng, {total}, dh),
                         ring = packed_window(rng, {1, 240}, dh),
                         pool = packed_pool(rng, whole.num_blocks * 16, dh, false),
                         sink = normal_f32(rng, {heads}), lists = make_lists(whole, 1, 256);
        std::vector<std::vector<uint8_t>> first;
        for (int64_t count :
             {total, int64_t{1}, int64_t{7}, int64_t{64}, int64_t{65}, int64_t{70}}) {
            Step part(rng,
                      {{static_cast<int32_t>(200 + total - count), static_cast<int32_t>(count), 0}},
                      16);
            part.block_table = whole.block_table;
            auto tail_of = [&](const HostTensor& t) {
                HostTensor p = t;
                p.view.shape[0] = count;
                const int64_t bytes = t.view.bytes() / total;
                p.memory.assign(t.memory.begin() + (total - count) * bytes,
                                t.memory.begin() + total * bytes);
                return p;
            };
            HostTensor ring_now = ring;  // holds the rows before the part
            const int64_t rb = window_row_bytes(dh);
            for (int64_t i = 0; i < total - count; ++i) {
                std::copy(rows.memory.begin() + i * rb,
                          rows.memory.begin() + (i + 1) * rb,
                          ring_now.memory.begin() + (200 + i) % 240 * rb);
            }
            Case c;
            part.add_to(c);
            const Arg qa = c.input(tail_of(q)), ra = c.input(tail_of(rows)), ri = c.input(ring_now),
                      po = c.input(pool), li = c.input(tail_of(lists)), si = c.input(sink),
                      out = c.output(DType::kBF16, {count, heads, dh});
            c.run_gpu([&](const OpTable& ops, Stream& s, const Args& a) {
                AttentionCache cache{a[ra], a[ri], a[po], 16, 128};
                ops.sparse_attention(s, a[qa], part.view(a), cache, a[li], a[si], 0.0442f, a[out]);
            });
            for (int64_t r = 0; r < count; ++r) {
                if (count == total) first.push_back(row_bytes(c.gpu(out), r));
                ASSERT_EQ(row_bytes(c.gpu(out), r), first[static_cast<size_t>(total - count + r)])
                    << "heads " << heads << " row " << r << " of the last " << count;
            }
        }
    }
}

TEST_F(CacheGpu, DraftAttentionMatchesTwin) {
    for (const AttentionSize& z : {AttentionSize{8, 64, 16, 0}, AttentionSize{64, 512, 128, 0}}) {
        // Blocks of six, one at the sequence's start, one whose floor hides every committed row.
        Step step(rng, {{200, 6, 0}, {0, 6, 0}, {64, 6, 60}, {40, 5, 45}, {131, 1, 0}}, 16);
        const int ring_len = z.window + 12;
        Case c;
        step.add_to(c);
        const Arg q = c.input(normal_bf16(rng, {step.rows, z.heads, z.dh})),
                  rows = c.input(packed_window(rng, {step.rows}, z.dh)),
                  ring = c.input(packed_window(rng, {step.num_seqs(), ring_len}, z.dh)),
                  sink = c.input(normal_f32(rng, {z.heads})),
                  out = c.output(DType::kBF16, {step.rows, z.heads, z.dh});
        c.run([&](const OpTable& ops, Stream& s, const Args& a) {
            AttentionCache cache;
            cache.step_rows = a[rows];
            cache.window_ring = a[ring];
            cache.window = z.window;
            ops.draft_attention(s, a[q], step.view(a), cache, a[sink], 0.0625, a[out]);
        });
        c.expect_close(out, 1e-3, "draft attention dh " + std::to_string(z.dh));
    }
}

TEST_F(CacheGpu, SampledTokensEqualTwin) {
    for (int64_t vocab : {1, 5, 1000, 129280}) {
        const int64_t rows = vocab > 1000 ? 5 : 12;
        for (int round = 0; round < 3; ++round) {
            HostTensor logits = round == 1
                                    ? tied_scores(rng, rows, vocab, 0.3f)
                                    : normal_f32(rng, {rows, vocab}, round == 0 ? 0.7f : 6.0f);
            float* l = logits.view.ptr<float>();
            if (round == 2) {
                const float inf = std::numeric_limits<float>::infinity();
                for (int64_t v = 0; v < vocab; ++v) l[v] = -inf;  // row 0: nothing to choose
                l[vocab + vocab / 2] = std::numeric_limits<float>::quiet_NaN();
                l[2 * vocab + vocab / 3] = inf;
                for (int64_t v = 0; v < vocab; v += 2) l[3 * vocab + v] = -inf;
            }
            std::vector<SampleRequest> wishes;
            for (int64_t r = 0; r < rows; ++r) {
                for (double temperature : {0.0, 0.2, 1.0, 7.5}) {
                    SampleRequest w;
                    w.row = static_cast<int32_t>(r);
                    w.greedy = temperature == 0.0 ? 1 : 0;
                    w.inv_temperature = temperature == 0.0 ? 1.0 : 1.0 / temperature;
                    w.seed = rng();
                    w.position = static_cast<uint32_t>(rng());
                    w.sub_sequence = static_cast<uint32_t>(r % 3);
                    wishes.push_back(w);
                }
            }
            const auto n = static_cast<int64_t>(wishes.size());
            std::vector<uint8_t> bytes(wishes.size() * sizeof(SampleRequest));
            std::memcpy(bytes.data(), wishes.data(), bytes.size());
            Case c;
            const Arg x = c.input(logits), w = c.input(bytes_of(bytes, {n, 32})),
                      out = c.output(DType::kU8, {n, 8});
            c.run(
                [&](const OpTable&, Stream& s, const Args& a) {
                    sample_rows_ref(s, a[x], a[w], a[out]);
                },
                [&](const OpTable& ops, Stream& s, const Args& a) {
                    ops.sample_rows(s, a[x], a[w], a[out]);
                });
            c.expect_equal(out, "choices of " + std::to_string(vocab));
        }
    }
}

TEST_F(CacheGpu, DraftRowsEqualTwin) {
    for (int64_t rows : {0, 1, 7}) {
        for (int64_t n : {1, 31, 513, 129280}) {
            if (n > 1000 && rows > 1) continue;
            Case c;
            const Arg x = c.input(tied_scores(rng, rows, n, 0.5f)),
                      y = c.inout(normal_f32(rng, {rows, n})), ids = c.output(DType::kI32, {rows});
            c.run([&](const OpTable& ops, Stream& s, const Args& a) {
                ops.argmax_rows(s, a[x], a[ids]);
                ops.add_rows(s, a[x], a[y]);
            });
            c.expect_equal(ids, "argmax");
            c.expect_close(y, 0, "add_rows");
        }
    }
}

}  // namespace
}  // namespace deepinfer::gpu_test
