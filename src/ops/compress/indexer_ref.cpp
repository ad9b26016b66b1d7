#include <limits>
#include <numeric>
#include <vector>

#include "ops/compress/indexer.h"
#include "ops/twin_math.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

int64_t visible_entries(const Tensor& positions, int64_t row, int ratio) {
    return (static_cast<int64_t>(positions.ptr<int32_t>()[row]) + 1) / ratio;
}

/// Puts 0 where row t of `scores` has to be computed and −inf everywhere else.
template <typename Acc>
void mark_reachable(Acc* scores,
                    int64_t n,
                    int64_t visible,
                    const int32_t* candidates,
                    int64_t num_candidates,
                    int block_size) {
    const Acc minus_inf = -std::numeric_limits<Acc>::infinity();
    std::fill(scores, scores + n, minus_inf);
    if (candidates == nullptr) {
        std::fill(scores, scores + visible, Acc(0));
        return;
    }
    for (int64_t c = 0; c < num_candidates && candidates[c] >= 0; ++c) {
        const int64_t first = static_cast<int64_t>(candidates[c]) * block_size;
        for (int64_t j = first; j < std::min(first + block_size, visible); ++j) scores[j] = Acc(0);
    }
}

}  // namespace

template <typename Acc>
void index_scores_ref(Stream& stream,
                      const Tensor& q,
                      const Tensor& hw,
                      const BatchView& batch,
                      const IndexCache& cache,
                      const Tensor& candidates,
                      int candidate_block_size,
                      Tensor scores) {
    const int64_t rows = q.dim(0), heads = q.dim(1), di = q.dim(2), n = scores.dim(1);
    DI_CHECK(q.dtype == DType::kBF16 && hw.dtype == DType::kBF16 &&
             scores.dtype == twin::acc_dtype<Acc>());
    DI_CHECK(twin::rows_dense(q));
    DI_CHECK_EQ(batch.num_rows(), rows);
    DI_CHECK_EQ(scores.dim(0), rows);
    DI_CHECK_EQ(hw.dim(1), heads);
    DI_CHECK(n == 0 || cache.key_pool.dim(1) == index_key_bytes(di));
    parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> raw(static_cast<size_t>(di));
        std::vector<Acc> key(static_cast<size_t>(di)),
            qs(static_cast<size_t>((end - begin) * heads * di));
        for (int64_t t = begin; t < end; ++t) {
            const int64_t visible = visible_entries(batch.positions, t, cache.ratio);
            DI_CHECK_LE(visible, n);
            mark_reachable(scores.row<Acc>(t),
                           n,
                           visible,
                           candidates ? candidates.row<int32_t>(t) : nullptr,
                           candidates ? candidates.dim(1) : 0,
                           candidate_block_size);
            twin::widen(q.row<bf16>(t), heads * di, qs.data() + (t - begin) * heads * di);
        }
        // Rows of one sequence share its keys: each key is unpacked once for all of them.
        for (int64_t first = begin; first < end;) {
            const int32_t seq = batch.row_seq.ptr<int32_t>()[first];
            int64_t last = first + 1;
            while (last < end && batch.row_seq.ptr<int32_t>()[last] == seq) ++last;
            const int32_t* blocks = batch.block_table.row<int32_t>(seq);
            const int64_t most_visible = visible_entries(batch.positions, last - 1, cache.ratio);
            for (int64_t j = 0; j < most_visible; ++j) {
                const int64_t block = blocks[j / cache.entries_per_block];
                DI_CHECK_GE(block, 0);
                unpack_index_key(cache.key_pool.row<uint8_t>(block * cache.entries_per_block +
                                                             j % cache.entries_per_block),
                                 di,
                                 raw.data());
                twin::widen(raw.data(), di, key.data());
                for (int64_t t = first; t < last; ++t) {
                    Acc& score = scores.row<Acc>(t)[j];
                    if (score != Acc(0)) continue;  // marked as unreachable
                    for (int64_t h = 0; h < heads; ++h) {
                        const Acc dot =
                            twin::dot(qs.data() + ((t - begin) * heads + h) * di, key.data(), di);
                        const Acc relu = dot < Acc(0) ? Acc(0) : dot;  // lets NaN through
                        score += static_cast<Acc>(to_float(hw.row<bf16>(t)[h])) * relu;
                    }
                }
            }
            first = last;
        }
    });
}

namespace {

/// Indices of the `k` best of `scores` (larger first, then the smaller index) among those above
/// −inf, ascending, into out[k]; the rest of out is −1.
template <typename Acc>
void select_best(const Acc* scores, int64_t n, int64_t k, int32_t* out) {
    std::vector<int32_t> order;
    for (int64_t j = 0; j < n; ++j) {
        if (scores[j] > -std::numeric_limits<Acc>::infinity())
            order.push_back(static_cast<int32_t>(j));  // false for NaN
    }
    const auto better = [&](int32_t a, int32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    const int64_t kept = std::min<int64_t>(k, static_cast<int64_t>(order.size()));
    std::nth_element(order.begin(), order.begin() + kept, order.end(), better);
    std::sort(order.begin(), order.begin() + kept);
    std::copy(order.begin(), order.begin() + kept, out);
    std::fill(out + kept, out + k, -1);
}

}  // namespace

template <typename Acc>
void candidate_blocks_ref(Stream& stream,
                          const Tensor& scores,
                          const Tensor& positions,
                          int ratio,
                          int block_size,
                          Tensor blocks) {
    DI_CHECK(scores.dtype == twin::acc_dtype<Acc>() && positions.dtype == DType::kI32 &&
             blocks.dtype == DType::kI32);
    DI_CHECK_EQ(blocks.dim(0), scores.dim(0));
    parallel_for(stream, scores.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const int64_t visible = visible_entries(positions, t, ratio);
            DI_CHECK_LE(visible, scores.dim(1));
            std::vector<Acc> best(static_cast<size_t>((visible + block_size - 1) / block_size),
                                  -std::numeric_limits<Acc>::infinity());
            for (int64_t j = 0; j < visible; ++j) {
                Acc& b = best[static_cast<size_t>(j / block_size)];
                b = std::max(b, scores.row<Acc>(t)[j]);
            }
            if (visible > 0)
                best.back() =
                    std::numeric_limits<Acc>::infinity();  // the newest entry's block always wins
            select_best(best.data(),
                        static_cast<int64_t>(best.size()),
                        blocks.dim(1),
                        blocks.row<int32_t>(t));
        }
    });
}

template <typename Acc>
void topk_select_ref(Stream& stream, const Tensor& scores, Tensor lists) {
    DI_CHECK(scores.dtype == twin::acc_dtype<Acc>() && lists.dtype == DType::kI32);
    DI_CHECK_EQ(lists.dim(0), scores.dim(0));
    parallel_for(stream, scores.dim(0), 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            select_best(scores.row<Acc>(t), scores.dim(1), lists.dim(1), lists.row<int32_t>(t));
        }
    });
}

#define DI_INSTANTIATE(Acc)                                       \
    template void index_scores_ref<Acc>(Stream&,                  \
                                        const Tensor&,            \
                                        const Tensor&,            \
                                        const BatchView&,         \
                                        const IndexCache&,        \
                                        const Tensor&,            \
                                        int,                      \
                                        Tensor);                  \
    template void candidate_blocks_ref<Acc>(                      \
        Stream&, const Tensor&, const Tensor&, int, int, Tensor); \
    template void topk_select_ref<Acc>(Stream&, const Tensor&, Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
