#include "ops/quant/cast_round.h"
#include "ops/twin_math.h"
#include "tensor/quant_block.h"

namespace deepinfer {
namespace {

/// Applies fn(const float[32], bf16[32]) to every block of 32 of every row.
template <typename F>
void for_each_block(Stream& stream, const Tensor& x, const Tensor& out, F fn) {
    const int64_t k = x.dim(1);
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(k % 32, 0);
    DI_CHECK_EQ(out.dim(0), x.dim(0));
    DI_CHECK_EQ(out.dim(1), k);
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        float block[32];
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < k; i += 32) {
                twin::widen(x.row<bf16>(t) + i, 32, block);
                fn(block, out.row<bf16>(t) + i);
            }
        }
    });
}

}  // namespace

void quant_q8_ref(Stream& stream, const Tensor& x, Tensor out) {
    for_each_block(stream, x, out, [](const float* block, bf16* y) {
        uint8_t codes[32];
        const float scale = ue8m0_to_float(q8_block(block, codes));
        for (int i = 0; i < 32; ++i) y[i] = to_bf16(e4m3_to_float(codes[i]) * scale);
    });
}

void quant_q4m_ref(Stream& stream, const Tensor& x, Tensor out) {
    for_each_block(stream, x, out, [](const float* block, bf16* y) {
        uint8_t packed[16];
        const float scale = ue8m0_to_float(q4m_block(block, packed));
        for (int i = 0; i < 32; ++i) {
            const uint8_t code = static_cast<uint8_t>((packed[i / 2] >> (4 * (i & 1))) & 15u);
            y[i] = to_bf16(e2m1_to_float(code) * scale);
        }
    });
}

void scale_bf16_ref(Stream& stream, const Tensor& x, float factor, Tensor out) {
    DI_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(out.dim(0), x.dim(0));
    DI_CHECK_EQ(out.dim(1), x.dim(1));
    parallel_for(stream, x.dim(0), 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t j = 0; j < x.dim(1); ++j)
                out.row<bf16>(t)[j] = to_bf16(to_float(x.row<bf16>(t)[j]) * factor);
        }
    });
}

}  // namespace deepinfer
