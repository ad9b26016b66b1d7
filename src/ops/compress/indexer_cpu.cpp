// Indexer: scores by GEMM over widened key blocks, candidate blocks, exact top-k.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/index_inl.h"
#include "backends/cpu/scratch.h"
#include "tensor/quant_block.h"

namespace deepinfer::cpu {

extern const IndexKernels kIndex_baseline;
const IndexKernels kIndex_baseline = index_kernels();

namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kIndexRows = 16;  // query rows that share one widened key panel
constexpr int64_t kKeyRun = 8;      // panels of one unit of work

/// First of row t's ascending candidate blocks that ends after entry `begin` (or the end, or a −1).
const int32_t* first_reaching(const Tensor& candidates, int64_t t, int block_size, int64_t begin) {
    const int32_t *b = candidates.row<int32_t>(t), *end = b + candidates.dim(1);
    const int32_t wanted = static_cast<int32_t>(begin / block_size);
    // −1 pads the end: as unsigned it is the largest.
    return std::lower_bound(b, end, wanted, [](int32_t x, int32_t y) {
        return static_cast<uint32_t>(x) < static_cast<uint32_t>(y);
    });
}

/// True if one of the row's candidate blocks reaches into entries [begin, end).
bool reaches(const Tensor& candidates, int64_t t, int block_size, int64_t begin, int64_t end) {
    const int32_t* b = first_reaching(candidates, t, block_size, begin);
    return b != candidates.row<int32_t>(t) + candidates.dim(1) && *b >= 0 &&
           static_cast<int64_t>(*b) * block_size < end;
}

}  // namespace

void index_scores_cpu(const Kernels& k,
                      Stream& stream,
                      const Tensor& q,
                      const Tensor& hw,
                      const BatchView& batch,
                      const IndexCache& cache,
                      const Tensor& candidates,
                      int candidate_block_size,
                      Tensor scores) {
    const int64_t rows = q.dim(0), heads = q.dim(1), di = q.dim(2), n = scores.dim(1);
    if (rows == 0 || n == 0) return;
    DI_CHECK(q.dtype == DType::kBF16 && hw.dtype == DType::kBF16 && scores.dtype == DType::kF32);
    DI_CHECK_EQ(batch.num_rows(), rows);
    DI_CHECK_EQ(scores.dim(0), rows);
    DI_CHECK_EQ(di % 32, 0);
    DI_CHECK_EQ(cache.key_pool.dim(1), index_key_bytes(di));
    const auto visible = [&](int64_t t) {
        return (static_cast<int64_t>(batch.positions.ptr<int32_t>()[t]) + 1) / cache.ratio;
    };
    const int64_t row_blocks = (rows + kIndexRows - 1) / kIndexRows, run = kKeyRun * kPanelRows,
                  runs = (n + run - 1) / run;
    parallel_for(stream, row_blocks * runs, 1, [&](int64_t begin, int64_t end) {
        float* panel = scratch<float>(Slot::kPanel, di * kPanelRows);
        const bool as_bf16 = k.linear.reads_bf16;
        float* qs = scratch<float>(Slot::kIndex, kIndexRows * heads * (di + 1));
        float* ws = qs + kIndexRows * heads * di;
        float* dots = scratch<float>(Slot::kIndexDots, kIndexRows * heads * kPanelRows);
        for (int64_t u = begin; u < end; ++u) {
            const int64_t t0 = u / runs * kIndexRows, t1 = std::min(rows, t0 + kIndexRows);
            const int64_t j_begin = u % runs * run, j_end = std::min(n, j_begin + run);
            for (int64_t t = t0; t < t1; ++t)
                std::fill(scores.row<float>(t) + j_begin, scores.row<float>(t) + j_end, kMinusInf);
            // Rows of one sequence share its keys.
            for (int64_t first = t0; first < t1;) {
                const int32_t seq = batch.row_seq.ptr<int32_t>()[first];
                int64_t last = first + 1;
                while (last < t1 && batch.row_seq.ptr<int32_t>()[last] == seq) ++last;
                const int64_t most = visible(last - 1);
                DI_CHECK_LE(most, n);
                const int32_t* blocks = batch.block_table.row<int32_t>(seq);
                for (int64_t t = first; t < last && j_begin < most; ++t) {
                    if (!as_bf16)
                        k.rows.widen(
                            &q.row<bf16>(t)->bits, heads * di, qs + (t - first) * heads * di);
                    for (int64_t h = 0; h < heads; ++h)
                        ws[(t - first) * heads + h] = to_float(hw.row<bf16>(t)[h]);
                }
                for (int64_t j0 = j_begin; j0 < std::min(j_end, most); j0 += kPanelRows) {
                    const int64_t count = std::min<int64_t>(kPanelRows, most - j0);
                    const auto wanted = [&](int64_t t) {
                        return j0 < visible(t) &&
                               (!candidates ||
                                reaches(candidates, t, candidate_block_size, j0, j0 + count));
                    };
                    int64_t from = first, to = last;
                    while (from < to && !wanted(from)) ++from;
                    while (to > from && !wanted(to - 1)) --to;
                    if (from == to) continue;
                    const uint8_t* keys[kPanelRows] = {};
                    for (int64_t j = 0; j < count; ++j) {
                        const int64_t block = blocks[(j0 + j) / cache.entries_per_block];
                        DI_CHECK_GE(block, 0);
                        keys[j] = cache.key_pool.row<uint8_t>(block * cache.entries_per_block +
                                                              (j0 + j) % cache.entries_per_block);
                    }
                    GemmArgs g;
                    if (as_bf16) {
                        k.index.widen_keys_bf16(keys, di, reinterpret_cast<uint16_t*>(panel));
                        g.x_bf16 = &q.row<bf16>(from)->bits;
                    } else {
                        k.index.widen_keys(keys, di, panel);
                        g.x = qs + (from - first) * heads * di;
                    }
                    g.ldx = di;
                    g.num_rows = (to - from) * heads;
                    g.panel = reinterpret_cast<const uint8_t*>(panel);
                    g.k = di;
                    g.c = dots;
                    (as_bf16 ? k.linear.bf16 : k.linear.f32)(g);
                    for (int64_t t = from; t < to; ++t) {
                        float s[kPanelRows];
                        k.index.head_sum(dots + (t - from) * heads * kPanelRows,
                                         ws + (t - first) * heads,
                                         heads,
                                         s);
                        const int64_t shown = std::min(count, visible(t) - j0);
                        float* dst = scores.row<float>(t) + j0;
                        if (!candidates) {
                            std::copy(s, s + std::max<int64_t>(0, shown), dst);
                            continue;
                        }
                        const int32_t* c = first_reaching(candidates, t, candidate_block_size, j0);
                        const int32_t* c_end = candidates.row<int32_t>(t) + candidates.dim(1);
                        for (; c != c_end && *c >= 0; ++c) {
                            const int64_t b0 = static_cast<int64_t>(*c) * candidate_block_size - j0;
                            if (b0 >= shown) break;
                            for (int64_t j = std::max<int64_t>(0, b0);
                                 j < std::min(shown, b0 + candidate_block_size);
                                 ++j)
                                dst[j] = s[j];
                        }
                    }
                }
                first = last;
            }
        }
    });
}

namespace {

/// Larger is better: order of the score, then of the smaller index, in one integer. −inf and NaN
/// give 0.
uint64_t selection_key(float score, int64_t index) {
    if (!(score > kMinusInf)) return 0;
    const uint32_t u = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);  // -0 ties with +0
    const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
    return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

/// The k best of n keys (0 = never), indices ascending into out, -1 padded.
void select_best(uint64_t* keys, int64_t n, int64_t k, int32_t* out) {
    int64_t kept = std::remove(keys, keys + n, uint64_t{0}) - keys;
    if (kept > k) {
        std::nth_element(keys, keys + k - 1, keys + kept, std::greater<>());
        kept = k;
    }
    for (int64_t i = 0; i < kept; ++i)
        out[i] = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(keys[i]));
    std::sort(out, out + kept);
    std::fill(out + kept, out + k, -1);
}

}  // namespace

void candidate_blocks_cpu(const Kernels&,
                          Stream& stream,
                          const Tensor& scores,
                          const Tensor& positions,
                          int ratio,
                          int block_size,
                          Tensor blocks) {
    const int64_t n = scores.dim(1), kept = blocks.dim(1);
    DI_CHECK(scores.dtype == DType::kF32 && positions.dtype == DType::kI32 &&
             blocks.dtype == DType::kI32);
    DI_CHECK_EQ(blocks.dim(0), scores.dim(0));
    parallel_for(
        stream,
        scores.dim(0),
        std::max<int64_t>(1, 8192 / std::max<int64_t>(1, n)),
        [&](int64_t begin, int64_t end) {
            uint64_t* keys = scratch<uint64_t>(Slot::kIndex, n / block_size + 1);
            for (int64_t t = begin; t < end; ++t) {
                const float* s = scores.row<float>(t);
                const int64_t visible =
                    (static_cast<int64_t>(positions.ptr<int32_t>()[t]) + 1) / ratio;
                const int64_t num_blocks = (std::min(n, visible) + block_size - 1) / block_size;
                for (int64_t b = 0; b < num_blocks; ++b) {
                    float best = kMinusInf;
                    for (int64_t j = b * block_size; j < std::min(n, (b + 1) * block_size); ++j)
                        best = s[j] > best ? s[j] : best;
                    if (visible >= 1 && b == (visible - 1) / block_size)
                        best = std::numeric_limits<float>::infinity();
                    keys[b] = selection_key(best, b);
                }
                select_best(keys, num_blocks, kept, blocks.row<int32_t>(t));
            }
        });
}

namespace {

constexpr int kBins = 4096;

/// The k best of a row's scores, ascending. One histogram over the upper bits of the ordered scores
/// finds the bin of the k-th; only that bin is sorted out exactly. keys: scratch for n values.
void select_scores(
    const float* s, int64_t n, int64_t k, uint64_t* keys, uint32_t* ordered, int32_t* out) {
    int64_t valid = 0;
    for (int64_t j = 0; j < n; ++j) {  // branch-free: out has room while fewer than k are written
        if (valid < k) out[valid] = static_cast<int32_t>(j);
        valid += s[j] > kMinusInf;
    }
    if (valid <= k) {
        std::fill(out + valid, out + k, -1);
        return;
    }
    uint32_t bins[kBins] = {};
    for (int64_t j = 0; j < n; ++j) {
        ordered[j] = static_cast<uint32_t>(selection_key(s[j], 0) >> 32);
        ++bins[ordered[j] >> 20];
    }
    int bin = kBins - 1;
    int64_t above = 0;  // entries in better bins
    while (above + bins[bin] < k) above += bins[bin--];
    int64_t inside = 0;
    for (int64_t j = 0; j < n; ++j) {
        if (static_cast<int>(ordered[j] >> 20) == bin) keys[inside++] = selection_key(s[j], j);
    }
    const int64_t wanted = k - above;
    std::nth_element(keys, keys + wanted - 1, keys + inside, std::greater<>());
    const uint64_t least = keys[wanted - 1];
    const uint32_t least_score = static_cast<uint32_t>(least >> 32);
    const int64_t last_equal = 0xFFFFFFFFu - static_cast<uint32_t>(least);
    int64_t kept = 0;
    for (int64_t j = 0; j < n && kept < k; ++j) {
        out[kept] = static_cast<int32_t>(j);
        kept += ordered[j] > least_score || (ordered[j] == least_score && j <= last_equal);
    }
}

}  // namespace

void topk_select_cpu(const Kernels&, Stream& stream, const Tensor& scores, Tensor lists) {
    const int64_t n = scores.dim(1), kept = lists.dim(1);
    DI_CHECK(scores.dtype == DType::kF32 && lists.dtype == DType::kI32);
    DI_CHECK_EQ(lists.dim(0), scores.dim(0));
    parallel_for(stream,
                 scores.dim(0),
                 std::max<int64_t>(1, 4096 / std::max<int64_t>(1, n)),
                 [&](int64_t begin, int64_t end) {
                     uint64_t* keys = scratch<uint64_t>(Slot::kIndex, n + n / 2 + 2);
                     uint32_t* ordered = reinterpret_cast<uint32_t*>(keys + n + 1);
                     for (int64_t t = begin; t < end; ++t)
                         select_scores(
                             scores.row<float>(t), n, kept, keys, ordered, lists.row<int32_t>(t));
                 });
}

}  // namespace deepinfer::cpu
