#include <algorithm>
#include <vector>

#include "ops/attention/draft_attention.h"
#include "ops/twin_math.h"
#include "tensor/quant_block.h"

namespace deepinfer {

template <typename Acc>
void draft_attention_ref(Stream& stream,
                         const Tensor& q,
                         const BatchView& batch,
                         const AttentionCache& cache,
                         const Tensor& sink,
                         double scale,
                         Tensor out) {
    const int64_t num_rows = q.dim(0), heads = q.dim(1), dh = q.dim(2);
    DI_CHECK(q.dtype == DType::kBF16 && out.dtype == DType::kBF16 && sink.dtype == DType::kF32);
    DI_CHECK(twin::rows_dense(q) && twin::rows_dense(out));
    DI_CHECK_EQ(batch.num_rows(), num_rows);
    DI_CHECK_EQ(out.dim(0), num_rows);
    DI_CHECK_EQ(sink.dim(0), heads);
    DI_CHECK_EQ(cache.step_rows.dim(1), window_row_bytes(dh));
    parallel_for(stream, batch.num_seqs(), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> keys;  // the list of one block, widened: every row of the block reads it
        for (int64_t b = begin; b < end; ++b) {
            const int64_t first = batch.seq_rows.ptr<int32_t>()[b],
                          last = batch.seq_rows.ptr<int32_t>()[b + 1];
            const int64_t start = batch.seq_start.ptr<int32_t>()[b];
            const int64_t lowest =
                std::max<int64_t>({0, batch.window_floor.ptr<int32_t>()[b], start - cache.window});
            const int64_t committed = std::max<int64_t>(0, start - lowest),
                          n = committed + last - first;
            keys.resize(static_cast<size_t>(n * dh));
            const uint8_t* ring = cache.window_ring.row<uint8_t>(batch.seq_slot.ptr<int32_t>()[b]);
            for (int64_t j = 0; j < committed; ++j) {
                const int64_t place = (lowest + j) % cache.window_ring.dim(1);
                unpack_window_row(
                    ring + place * cache.window_ring.stride[1], dh, keys.data() + j * dh);
            }
            for (int64_t t = first; t < last; ++t) {
                unpack_window_row(cache.step_rows.row<uint8_t>(t),
                                  dh,
                                  keys.data() + (committed + t - first) * dh);
            }
            for (int64_t t = first; t < last; ++t) {
                attention_row_ref<Acc>(q.row<bf16>(t),
                                       heads,
                                       dh,
                                       keys.data(),
                                       n,
                                       sink.ptr<float>(),
                                       scale,
                                       out.row<bf16>(t));
            }
        }
    });
}

#define DI_INSTANTIATE(Acc)                                       \
    template void draft_attention_ref<Acc>(Stream&,               \
                                           const Tensor&,         \
                                           const BatchView&,      \
                                           const AttentionCache&, \
                                           const Tensor&,         \
                                           double,                \
                                           Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
