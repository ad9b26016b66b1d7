#include <type_traits>
#include <vector>

#include "ops/attention/sparse_attention.h"
#include "ops/twin_math.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

/// One row's attention over a list of keys. Blocks of 64 entries with a running maximum in fp32, as
/// the contract says; one block in fp64, where nothing would be gained.
template <typename Acc>
void attend(const bf16* q,
            int64_t heads,
            int64_t dh,
            const std::vector<const float*>& keys,
            const float* sink,
            double scale,
            bf16* y) {
    const size_t n = keys.size(), block = std::is_same_v<Acc, double> ? std::max<size_t>(n, 1) : 64;
    std::vector<Acc> qh(static_cast<size_t>(dh)), key(static_cast<size_t>(dh)),
        sum_v(static_cast<size_t>(dh)), p(block);
    for (int64_t h = 0; h < heads; ++h) {
        twin::widen(q + h * dh, dh, qh.data());
        std::fill(sum_v.begin(), sum_v.end(), Acc(0));
        Acc top = static_cast<Acc>(sink[h]), sum = 1;  // the sink is an entry without a value
        for (size_t first = 0; first < n; first += block) {
            const size_t count = std::min(block, n - first);
            Acc new_top = top;
            for (size_t j = 0; j < count; ++j) {
                twin::widen(keys[first + j], dh, key.data());
                p[j] = twin::dot(qh.data(), key.data(), dh) * static_cast<Acc>(scale);
                new_top = std::max(new_top, p[j]);
            }
            const Acc shrink = std::exp(top - new_top);
            sum *= shrink;
            for (Acc& v : sum_v) v *= shrink;
            for (size_t j = 0; j < count; ++j) {
                p[j] = std::exp(p[j] - new_top);
                sum += p[j];
                const float* value = keys[first + j];
                for (size_t i = 0; i < sum_v.size(); ++i)
                    sum_v[i] += p[j] * static_cast<Acc>(value[i]);
            }
            top = new_top;
        }
        for (int64_t i = 0; i < dh; ++i)
            y[h * dh + i] = to_bf16(sum_v[static_cast<size_t>(i)] / sum);
    }
}

/// Packed rows unpacked on first use and kept, for the rows of one sequence (they share most keys).
class UnpackedRows {
  public:
    using Unpack = void (*)(const uint8_t* row, int64_t dim, float* out);
    UnpackedRows(int64_t dim, Unpack unpack) : dim_(dim), unpack_(unpack) {}

    /// Row number `index` of the sequence, whose packed bytes are at `packed`.
    const float* get(int64_t index, const uint8_t* packed) {
        const size_t i = static_cast<size_t>(index);
        if (i >= rows_.size()) rows_.resize(i + 1);
        if (rows_[i].empty()) {
            rows_[i].resize(static_cast<size_t>(dim_));
            unpack_(packed, dim_, rows_[i].data());
        }
        return rows_[i].data();
    }
    void forget() { rows_.clear(); }

  private:
    int64_t dim_;
    Unpack unpack_;
    std::vector<std::vector<float>> rows_;
};

}  // namespace

template <typename Acc>
void attention_row_ref(const bf16* q,
                       int64_t heads,
                       int64_t dh,
                       const float* keys,
                       int64_t n,
                       const float* sink,
                       double scale,
                       bf16* y) {
    std::vector<const float*> list;
    for (int64_t j = 0; j < n; ++j) list.push_back(keys + j * dh);
    attend<Acc>(q, heads, dh, list, sink, scale, y);
}

template <typename Acc>
void sparse_attention_ref(Stream& stream,
                          const Tensor& q,
                          const BatchView& batch,
                          const AttentionCache& cache,
                          const Tensor& lists,
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
    DI_CHECK(!lists || (lists.dtype == DType::kI32 && lists.dim(0) == num_rows));
    parallel_for(stream, num_rows, 1, [&](int64_t begin, int64_t end) {
        UnpackedRows window(dh, &unpack_window_row), entries(dh, &unpack_kv_entry);
        std::vector<const float*> keys;
        int64_t seq = -1;
        for (int64_t t = begin; t < end; ++t) {
            if (batch.row_seq.ptr<int32_t>()[t] != seq) {
                seq = batch.row_seq.ptr<int32_t>()[t];
                window.forget();
                entries.forget();
            }
            const int64_t p = batch.positions.ptr<int32_t>()[t],
                          start = batch.seq_start.ptr<int32_t>()[seq];
            const int64_t lowest = std::max<int64_t>(
                {0, batch.window_floor.ptr<int32_t>()[seq], p - cache.window + 1});
            const int64_t base =
                std::max<int64_t>(0, start - cache.window);  // no row of this step reads below it
            keys.clear();
            for (int64_t pos = lowest; pos <= p; ++pos) {
                const uint8_t* row;
                if (pos >= start) {
                    row = cache.step_rows.row<uint8_t>(batch.seq_rows.ptr<int32_t>()[seq] + pos -
                                                       start);
                } else {
                    const int64_t ring_len = cache.window_ring.dim(1);
                    row = cache.window_ring.row<uint8_t>(batch.seq_slot.ptr<int32_t>()[seq]) +
                          (pos % ring_len) * cache.window_ring.stride[1];
                }
                keys.push_back(window.get(pos - base, row));
            }
            for (int64_t i = 0; lists && i < lists.dim(1); ++i) {
                const int64_t j = lists.row<int32_t>(t)[i];
                if (j < 0) break;
                const int64_t block =
                    batch.block_table.row<int32_t>(seq)[j / cache.entries_per_block];
                DI_CHECK_GE(block, 0);
                keys.push_back(
                    entries.get(j,
                                cache.kv_pool.row<uint8_t>(block * cache.entries_per_block +
                                                           j % cache.entries_per_block)));
            }
            attend<Acc>(
                q.row<bf16>(t), heads, dh, keys, sink.ptr<float>(), scale, out.row<bf16>(t));
        }
    });
}

#define DI_INSTANTIATE(Acc)                                                                 \
    template void attention_row_ref<Acc>(                                                   \
        const bf16*, int64_t, int64_t, const float*, int64_t, const float*, double, bf16*); \
    template void sparse_attention_ref<Acc>(Stream&,                                        \
                                            const Tensor&,                                  \
                                            const BatchView&,                               \
                                            const AttentionCache&,                          \
                                            const Tensor&,                                  \
                                            const Tensor&,                                  \
                                            double,                                         \
                                            Tensor);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
