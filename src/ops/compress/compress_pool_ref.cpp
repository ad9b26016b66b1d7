#include <cstring>
#include <vector>

#include "ops/compress/compress_pool.h"
#include "ops/twin_math.h"

namespace deepinfer {

template <typename Acc>
void compress_pool_ref(Stream& stream,
                       const Tensor& z,
                       const Tensor& g,
                       const BatchView& batch,
                       const Tensor& tail,
                       int ratio,
                       const Tensor& entry_rows,
                       Tensor out) {
    const int64_t dh = z.dim(1), tail_len = tail.dim(1);
    DI_CHECK(z.dtype == twin::acc_dtype<Acc>() && g.dtype == z.dtype && tail.dtype == z.dtype);
    DI_CHECK(entry_rows.dtype == DType::kI32 && out.dtype == DType::kBF16 && ratio >= 1);
    DI_CHECK_EQ(out.dim(0), entry_rows.dim(0));
    DI_CHECK_EQ(out.dim(1), dh);
    parallel_for(stream, entry_rows.dim(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<const Acc*> zs(static_cast<size_t>(ratio)), gs(zs);
        std::vector<Acc> w(static_cast<size_t>(ratio));
        for (int64_t e = begin; e < end; ++e) {
            const int64_t row = entry_rows.ptr<int32_t>()[e],
                          seq = batch.row_seq.ptr<int32_t>()[row];
            const int64_t start = batch.seq_start.ptr<int32_t>()[seq];
            for (int i = 0; i < ratio; ++i) {  // member i of the group, oldest first
                const int64_t back = ratio - 1 - i,
                              position = batch.positions.ptr<int32_t>()[row] - back;
                DI_CHECK_GE(position, 0);
                const size_t at = static_cast<size_t>(i);
                if (position >= start) {
                    zs[at] = z.row<Acc>(row - back);
                    gs[at] = g.row<Acc>(row - back);
                } else {
                    zs[at] = tail.row<Acc>(batch.seq_slot.ptr<int32_t>()[seq]) +
                             (position % tail_len) * tail.stride[1];
                    gs[at] = zs[at] + tail.stride[2];
                }
            }
            for (int64_t c = 0; c < dh; ++c) {
                Acc top = gs[0][c], sum = 0, pooled = 0;
                for (const Acc* gi : gs) top = std::max(top, gi[c]);
                for (size_t i = 0; i < gs.size(); ++i) sum += w[i] = std::exp(gs[i][c] - top);
                for (size_t i = 0; i < zs.size(); ++i) pooled += w[i] / sum * zs[i][c];
                out.row<bf16>(e)[c] = to_bf16(pooled);
            }
        }
    });
}

template <typename Acc>
void compress_tail_store_ref(
    Stream& stream, const Tensor& z, const Tensor& g, const BatchView& batch, Tensor tail) {
    const int64_t dh = z.dim(1), tail_len = tail.dim(1);
    DI_CHECK(z.dtype == twin::acc_dtype<Acc>() && g.dtype == z.dtype && tail.dtype == z.dtype);
    DI_CHECK_EQ(tail.dim(3), dh);
    parallel_for(stream, batch.num_seqs(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            const int64_t first = batch.seq_rows.ptr<int32_t>()[b],
                          last = batch.seq_rows.ptr<int32_t>()[b + 1];
            Acc* slot = tail.row<Acc>(batch.seq_slot.ptr<int32_t>()[b]);
            for (int64_t t = std::max(first, last - tail_len); t < last; ++t) {
                Acc* row = slot + (batch.positions.ptr<int32_t>()[t] % tail_len) * tail.stride[1];
                std::memcpy(row, z.row<Acc>(t), static_cast<size_t>(dh) * sizeof(Acc));
                std::memcpy(
                    row + tail.stride[2], g.row<Acc>(t), static_cast<size_t>(dh) * sizeof(Acc));
            }
        }
    });
}

#define DI_INSTANTIATE(Acc)                                \
    template void compress_pool_ref<Acc>(Stream&,          \
                                         const Tensor&,    \
                                         const Tensor&,    \
                                         const BatchView&, \
                                         const Tensor&,    \
                                         int,              \
                                         const Tensor&,    \
                                         Tensor);          \
    template void compress_tail_store_ref<Acc>(            \
        Stream&, const Tensor&, const Tensor&, const BatchView&, Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
