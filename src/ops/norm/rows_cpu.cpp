// Ops that treat every row of activations alone: norm, quantizers, rotation, SwiGLU, window
// packing.
#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/rows_inl.h"
#include "tensor/quant_block.h"

namespace deepinfer::cpu {

extern const RowKernels kRows_baseline;
const RowKernels kRows_baseline = row_kernels();

namespace {

/// Rows per thread so that a part is worth handing out (about 8,000 elements, some microseconds).
int64_t row_grain(int64_t width) {
    return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
}

const uint16_t* bits(const Tensor& t, int64_t row) {
    return &t.row<bf16>(row)->bits;
}
uint16_t* mutable_bits(const Tensor& t, int64_t row) {
    return &t.row<bf16>(row)->bits;
}

}  // namespace

void rms_norm_cpu(const Kernels& k,
                  Stream& stream,
                  const Tensor& x,
                  const Tensor& weight,
                  float eps,
                  Tensor out) {
    const int64_t n = x.dim(1);
    if (n % 16 != 0) return rms_norm_ref<float>(stream, x, weight, eps, out);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 && weight.dtype == DType::kF32);
    DI_CHECK_EQ(weight.dim(0), n);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, x.dim(0), row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            k.rows.rms_norm(bits(x, t), weight.ptr<float>(), eps, n, mutable_bits(out, t));
    });
}

void quant_q8_cpu(const Kernels& k, Stream& stream, const Tensor& x, Tensor out) {
    const int64_t n = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(n % kQ8Block, 0);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, x.dim(0), row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) k.rows.quant_q8(bits(x, t), n, mutable_bits(out, t));
    });
}

void quant_q4m_cpu(const Kernels& k, Stream& stream, const Tensor& x, Tensor out) {
    const int64_t n = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(n % kQ4mBlock, 0);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, x.dim(0), row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) k.rows.quant_q4m(bits(x, t), n, mutable_bits(out, t));
    });
}

void rope_cpu(const Kernels& k, Stream& stream, Tensor x, const Tensor& cos_sin, bool inverse) {
    const int64_t heads = x.dim(1), d = x.dim(2), rd = 2 * cos_sin.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && cos_sin.dtype == DType::kF32);
    DI_CHECK_EQ(cos_sin.dim(0), x.dim(0));
    DI_CHECK_LE(rd, d);
    parallel_for(stream, x.dim(0), row_grain(heads * rd), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t h = 0; h < heads; ++h) {
                k.rows.rope(mutable_bits(x, t) + h * d + (d - rd),
                            cos_sin.row<float>(t),
                            rd,
                            inverse ? -1.0f : 1.0f);
            }
        }
    });
}

void swiglu_cpu(const Kernels& k,
                Stream& stream,
                const Tensor& gate,
                const Tensor& up,
                const Tensor& weight,
                float limit,
                Tensor out) {
    const int64_t n = gate.dim(1);
    if (n % 16 != 0) return swiglu_ref<float>(stream, gate, up, weight, limit, out);
    DI_CHECK(gate.dtype == DType::kBF16 && up.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK(!weight || weight.dtype == DType::kF32);
    DI_CHECK_EQ(up.dim(1), n);
    DI_CHECK_EQ(out.dim(1), n);
    parallel_for(stream, gate.dim(0), row_grain(4 * n), [&](int64_t begin, int64_t end) {
        constexpr int64_t kChunk = 256;
        float g[kChunk], u[kChunk];
        for (int64_t t = begin; t < end; ++t) {
            const float w = weight ? *weight.row<float>(t) : 1.0f;
            for (int64_t i = 0; i < n; i += kChunk) {
                const int64_t c = std::min(kChunk, n - i);
                k.rows.widen(bits(gate, t) + i, c, g);
                k.rows.widen(bits(up, t) + i, c, u);
                k.rows.swiglu(g, u, w, limit, c, mutable_bits(out, t) + i);
            }
        }
    });
}

void window_pack_cpu(const Kernels& k, Stream& stream, const Tensor& kv, Tensor rows) {
    const int64_t dh = kv.dim(1);
    DI_CHECK(kv.dtype == DType::kBF16 && rows.dtype == DType::kU8);
    DI_CHECK_EQ(dh % kQ8Block, 0);
    DI_CHECK_EQ(rows.dim(0), kv.dim(0));
    DI_CHECK_EQ(rows.dim(1), window_row_bytes(dh));
    parallel_for(stream, kv.dim(0), row_grain(dh), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) k.rows.pack_q8(bits(kv, t), dh, rows.row<uint8_t>(t));
    });
}

namespace {

/// pool[slots[e]] = packed row of c[e]; −1 writes nothing.
void store_rows(Stream& stream,
                const Tensor& c,
                const Tensor& slots,
                Tensor pool,
                void (*pack)(const uint16_t*, int64_t, uint8_t*)) {
    const int64_t n = c.dim(1);
    DI_CHECK(c.dtype == DType::kBF16 && slots.dtype == DType::kI64 && pool.dtype == DType::kU8);
    DI_CHECK_EQ(slots.dim(0), c.dim(0));
    parallel_for(stream, c.dim(0), row_grain(4 * n), [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
            const int64_t slot = slots.ptr<int64_t>()[e];
            if (slot == -1) continue;
            DI_CHECK(slot >= 0 && slot < pool.dim(0));
            pack(bits(c, e), n, pool.row<uint8_t>(slot));
        }
    });
}

}  // namespace

void kv_entry_store_cpu(
    const Kernels& k, Stream& stream, const Tensor& c, const Tensor& slots, Tensor pool) {
    if (c.dim(1) % 32 != 0) return kv_entry_store_ref(stream, c, slots, pool);
    DI_CHECK_EQ(pool.dim(1), kv_entry_bytes(c.dim(1)));
    store_rows(stream, c, slots, pool, k.rows.pack_q4n);
}

void index_key_store_cpu(
    const Kernels& k, Stream& stream, const Tensor& key, const Tensor& slots, Tensor pool) {
    DI_CHECK_EQ(key.dim(1) % kQ4mBlock, 0);
    DI_CHECK_EQ(pool.dim(1), index_key_bytes(key.dim(1)));
    store_rows(stream, key, slots, pool, k.rows.pack_q4m);
}

}  // namespace deepinfer::cpu
