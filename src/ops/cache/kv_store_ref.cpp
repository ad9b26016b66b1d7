#include <cstring>
#include <vector>

#include "ops/cache/kv_store.h"
#include "ops/twin_math.h"
#include "tensor/quant_block.h"

namespace deepinfer {

void window_pack_ref(Stream& stream, const Tensor& kv, Tensor rows) {
    const int64_t dh = kv.dim(1);
    DI_CHECK(kv.dtype == DType::kBF16 && rows.dtype == DType::kU8);
    DI_CHECK_EQ(dh % kQ8Block, 0);
    DI_CHECK_EQ(rows.dim(0), kv.dim(0));
    DI_CHECK_EQ(rows.dim(1), window_row_bytes(dh));
    parallel_for(stream, kv.dim(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> v(static_cast<size_t>(dh));
        for (int64_t t = begin; t < end; ++t) {
            twin::widen(kv.row<bf16>(t), dh, v.data());
            uint8_t* row = rows.row<uint8_t>(t);
            for (int64_t i = 0; i < dh; i += kQ8Block)
                row[dh + i / kQ8Block] = q8_block(v.data() + i, row + i);
        }
    });
}

void window_store_ref(Stream& stream, const Tensor& rows, const BatchView& batch, Tensor ring) {
    const int64_t ring_len = ring.dim(1), row_bytes = rows.dim(1);
    DI_CHECK(rows.dtype == DType::kU8 && ring.dtype == DType::kU8);
    DI_CHECK_EQ(ring.dim(2), row_bytes);
    parallel_for(stream, batch.num_seqs(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) {
            const int64_t first = batch.seq_rows.ptr<int32_t>()[b],
                          last = batch.seq_rows.ptr<int32_t>()[b + 1];
            uint8_t* slot = ring.row<uint8_t>(batch.seq_slot.ptr<int32_t>()[b]);
            for (int64_t t = std::max(first, last - ring_len); t < last; ++t) {
                const int64_t position = batch.positions.ptr<int32_t>()[t];
                std::memcpy(slot + (position % ring_len) * ring.stride[1],
                            rows.row<uint8_t>(t),
                            static_cast<size_t>(row_bytes));
            }
        }
    });
}

void kv_entry_store_ref(Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool) {
    const int64_t dh = c.dim(1);
    DI_CHECK(c.dtype == DType::kBF16 && slots.dtype == DType::kI64 && pool.dtype == DType::kU8);
    DI_CHECK_EQ(dh % kQ4nBlock, 0);
    DI_CHECK_EQ(slots.dim(0), c.dim(0));
    DI_CHECK_EQ(pool.dim(1), kv_entry_bytes(dh));
    parallel_for(stream, c.dim(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> v(static_cast<size_t>(dh));
        for (int64_t e = begin; e < end; ++e) {
            const int64_t slot = slots.ptr<int64_t>()[e];
            if (slot == -1) continue;
            DI_CHECK(slot >= 0 && slot < pool.dim(0));
            twin::widen(c.row<bf16>(e), dh, v.data());
            uint8_t* row = pool.row<uint8_t>(slot);
            for (int64_t i = 0; i < dh; i += kQ4nBlock)
                row[dh / 2 + i / kQ4nBlock] = q4n_block(v.data() + i, row + i / 2);
        }
    });
}

void index_key_store_ref(Stream& stream, const Tensor& k, const Tensor& slots, Tensor pool) {
    const int64_t di = k.dim(1);
    DI_CHECK(k.dtype == DType::kBF16 && slots.dtype == DType::kI64 && pool.dtype == DType::kU8);
    DI_CHECK_EQ(di % kQ4mBlock, 0);
    DI_CHECK_EQ(slots.dim(0), k.dim(0));
    DI_CHECK_EQ(pool.dim(1), index_key_bytes(di));
    parallel_for(stream, k.dim(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> v(static_cast<size_t>(di));
        for (int64_t e = begin; e < end; ++e) {
            const int64_t slot = slots.ptr<int64_t>()[e];
            if (slot == -1) continue;
            DI_CHECK(slot >= 0 && slot < pool.dim(0));
            twin::widen(k.row<bf16>(e), di, v.data());
            uint8_t* row = pool.row<uint8_t>(slot);
            for (int64_t i = 0; i < di; i += kQ4mBlock)
                row[di / 2 + i / kQ4mBlock] = q4m_block(v.data() + i, row + i / 2);
        }
    });
}

}  // namespace deepinfer
