// mHC and Engram ops: coefficients from the streams, collapse, expand, gate.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/kernels/mhc_inl.h"
#include "backends/cpu/scratch.h"

namespace deepinfer::cpu {

extern const MhcKernels kMhc_baseline;
const MhcKernels kMhc_baseline = mhc_kernels();

namespace {

int64_t row_grain(int64_t width) {
    return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
}
const uint16_t* bits(const Tensor& t, int64_t row) {
    return &t.row<bf16>(row)->bits;
}
uint16_t* mutable_bits(const Tensor& t, int64_t row) {
    return &t.row<bf16>(row)->bits;
}
float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

/// Sinkhorn of one 4 × 4 matrix in four SSE registers (every x86-64 has them): adds and divisions
/// only, so all levels agree. A row pass is a column pass of the transposed matrix.
void sinkhorn4(float* a, int iters, float eps) {
    const __m128 e = _mm_set1_ps(eps);
    for (int j = 0; j < 4; ++j) {
        float* row = a + 4 * j;
        const float top = std::max(std::max(row[0], row[1]), std::max(row[2], row[3]));
        for (int c = 0; c < 4; ++c) row[c] = std::exp(row[c] - top);
        const float sum = (row[0] + row[1]) + (row[2] + row[3]);
        for (int c = 0; c < 4; ++c) row[c] = row[c] / sum + eps;
    }
    __m128 r0 = _mm_loadu_ps(a), r1 = _mm_loadu_ps(a + 4), r2 = _mm_loadu_ps(a + 8),
           r3 = _mm_loadu_ps(a + 12);
    const auto columns = [&] {
        const __m128 sum = _mm_add_ps(_mm_add_ps(_mm_add_ps(r0, r1), _mm_add_ps(r2, r3)), e);
        r0 = _mm_div_ps(r0, sum);
        r1 = _mm_div_ps(r1, sum);
        r2 = _mm_div_ps(r2, sum);
        r3 = _mm_div_ps(r3, sum);
    };
    columns();
    for (int i = 1; i < iters; ++i) {
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        columns();
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        columns();
    }
    _mm_storeu_ps(a, r0);
    _mm_storeu_ps(a + 4, r1);
    _mm_storeu_ps(a + 8, r2);
    _mm_storeu_ps(a + 12, r3);
}

/// Coefficients of one row from its 24 sums.
void finish_mixes(const float* m,
                  float r,
                  const float* scale,
                  const float* base,
                  int iters,
                  float eps,
                  float* pre,
                  float* post,
                  float* comb) {
    for (int i = 0; i < 4; ++i) {
        pre[i] = sigmoid(m[i] * r * scale[0] + base[i]) + eps;
        post[i] = 2.0f * sigmoid(m[4 + i] * r * scale[1] + base[4 + i]);
    }
    for (int i = 0; i < 16; ++i) comb[i] = m[8 + i] * r * scale[2] + base[8 + i];
    sinkhorn4(comb, iters, eps);
}

}  // namespace

void mhc_mixes_cpu(const Kernels& k,
                   Stream& stream,
                   const Tensor& x,
                   const Tensor& fn,
                   const Tensor& base,
                   const Tensor& scale,
                   int sinkhorn_iters,
                   float hc_eps,
                   float norm_eps,
                   Tensor pre,
                   Tensor post,
                   Tensor comb) {
    const int hc = static_cast<int>(x.dim(1));
    const int64_t n = x.dim(1) * x.dim(2);
    if (n % 16 != 0 || hc != 4) {
        return mhc_mixes_ref<float>(
            stream, x, fn, base, scale, sinkhorn_iters, hc_eps, norm_eps, pre, post, comb);
    }
    DI_CHECK(x.dtype == DType::kBF16 && fn.dtype == DType::kF32 && pre.dtype == DType::kF32 &&
             fn.dense());
    DI_CHECK_EQ(fn.dim(0), (2 + hc) * hc);
    DI_CHECK_EQ(fn.dim(1), n);
    const float* b = base.ptr<float>();
    const float* s = scale.ptr<float>();
    parallel_for(stream, x.dim(0), 2, [&](int64_t begin, int64_t end) {
        float* wide = scratch<float>(Slot::kPanel, kMixRows * n);
        for (int64_t t0 = begin; t0 < end; t0 += kMixRows) {
            const int num_rows = static_cast<int>(std::min<int64_t>(kMixRows, end - t0));
            float sums[kMixRows * 24], squares[kMixRows];
            k.mhc.mix_sums(
                bits(x, t0), x.stride[0], num_rows, fn.ptr<float>(), n, 24, wide, sums, squares);
            for (int i = 0; i < num_rows; ++i) {
                const int64_t t = t0 + i;
                finish_mixes(sums + 24 * i,
                             1.0f / std::sqrt(squares[i] / static_cast<float>(n) + norm_eps),
                             s,
                             b,
                             sinkhorn_iters,
                             hc_eps,
                             pre.row<float>(t),
                             post.row<float>(t),
                             comb.row<float>(t));
            }
        }
    });
}

void mhc_collapse_cpu(
    const Kernels& k, Stream& stream, const Tensor& x, const Tensor& pre, Tensor out) {
    const int64_t d = x.dim(2);
    const int hc = static_cast<int>(x.dim(1));
    if (d % 16 != 0) return mhc_collapse_ref<float>(stream, x, pre, out);
    DI_CHECK(x.dtype == DType::kBF16 && pre.dtype == DType::kF32 && out.dtype == DType::kBF16);
    parallel_for(stream, x.dim(0), row_grain(d * hc), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
            k.mhc.collapse(bits(x, t), pre.row<float>(t), hc, d, mutable_bits(out, t));
    });
}

void mhc_expand_cpu(const Kernels& k,
                    Stream& stream,
                    const Tensor& y,
                    const Tensor& x,
                    const Tensor& post,
                    const Tensor& comb,
                    Tensor out) {
    const int64_t d = x.dim(2);
    const int hc = static_cast<int>(x.dim(1));
    if (d % 16 != 0) return mhc_expand_ref<float>(stream, y, x, post, comb, out);
    DI_CHECK(x.dtype == DType::kBF16 && y.dtype == DType::kBF16 && post.dtype == DType::kF32 &&
             out.dtype == DType::kBF16);
    parallel_for(stream, x.dim(0), row_grain(d * hc), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            k.mhc.expand(bits(y, t),
                         bits(x, t),
                         post.row<float>(t),
                         comb.row<float>(t),
                         hc,
                         d,
                         mutable_bits(out, t));
        }
    });
}

void engram_lookup_cpu(
    const Kernels&, Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out) {
    const int64_t ed = table.k, cols = ids.dim(1);
    DI_CHECK(table.dtype == DType::kFP8E4M3 && ids.dtype == DType::kI32 &&
             out.dtype == DType::kBF16);
    DI_CHECK_EQ(ed % 32, 0);
    DI_CHECK_EQ(out.dim(1), cols * ed);
    // bf16 bits of every code; a power-of-two scale is then an exact fp32 product.
    static const auto values = [] {
        std::array<float, 256> t{};
        for (int c = 0; c < 256; ++c)
            t[static_cast<size_t>(c)] = e4m3_to_float(static_cast<uint8_t>(c));
        return t;
    }();
    parallel_for(stream, ids.dim(0), 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t c = 0; c < cols; ++c) {
                const int64_t row = ids.row<int32_t>(t)[c];
                DI_CHECK(row >= 0 && row < table.n);
                const uint8_t* codes = static_cast<const uint8_t*>(table.weight) + row * ed;
                const uint8_t* scales = table.scale + row * (ed / 32);
                bf16* y = out.row<bf16>(t) + c * ed;
                for (int64_t b = 0; b < ed; b += 32) {
                    const float s = ue8m0_to_float(scales[b / 32]);
                    for (int64_t i = b; i < b + 32; ++i) y[i] = to_bf16(values[codes[i]] * s);
                }
            }
        }
    });
}

void engram_gate_cpu(const Kernels& k,
                     Stream& stream,
                     Tensor x,
                     const Tensor& kv,
                     const Tensor& q_weight,
                     const Tensor& k_weight,
                     const Tensor& dead,
                     float eps) {
    const int64_t hc = x.dim(1), d = x.dim(2);
    if (d % 16 != 0) return engram_gate_ref<float>(stream, x, kv, q_weight, k_weight, dead, eps);
    DI_CHECK(x.dtype == DType::kBF16 && kv.dtype == DType::kBF16 && q_weight.dtype == DType::kF32 &&
             k_weight.dtype == DType::kF32);
    DI_CHECK_EQ(kv.dim(1), (hc + 1) * d);
    const float inv_d = 1.0f / static_cast<float>(d),
                inv_sqrt_d = 1.0f / std::sqrt(static_cast<float>(d));
    parallel_for(stream, x.dim(0), row_grain(4 * hc * d), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const bool shut = dead && dead.ptr<uint8_t>()[t] != 0;
            for (int64_t s = 0; s < hc; ++s) {
                uint16_t* xs = mutable_bits(x, t) + s * d;
                float sums[3];
                k.mhc.engram_sums(xs,
                                  bits(kv, t) + s * d,
                                  q_weight.row<float>(s),
                                  k_weight.row<float>(s),
                                  d,
                                  sums);
                const float dot = sums[2] * (1.0f / std::sqrt(sums[0] * inv_d + eps)) *
                                  (1.0f / std::sqrt(sums[1] * inv_d + eps)) * inv_sqrt_d;
                // max() would drop a NaN, which has to stay visible in its row.
                const float root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot);
                const float gate = shut ? 0.0f : sigmoid(std::isnan(dot) ? dot : root);
                k.mhc.add_scaled(xs, bits(kv, t) + hc * d, gate, d);
            }
        }
    });
}

void embed_streams_cpu(
    const Kernels&, Stream& stream, const WeightMatrix& embed, const Tensor& ids, Tensor out) {
    if (embed.dtype != DType::kBF16) return embed_streams_ref(stream, embed, ids, out);
    const int64_t hc = out.dim(1), d = out.dim(2);
    DI_CHECK(ids.dtype == DType::kI32 && out.dtype == DType::kBF16);
    DI_CHECK_EQ(d, embed.k);
    parallel_for(stream, ids.dim(0), 8, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const int64_t id = ids.ptr<int32_t>()[t];
            DI_CHECK(id >= 0 && id < embed.n);
            const bf16* row = static_cast<const bf16*>(embed.weight) + id * d;
            for (int64_t s = 0; s < hc; ++s)
                std::memcpy(out.row<bf16>(t) + s * d, row, static_cast<size_t>(d) * sizeof(bf16));
        }
    });
}

}  // namespace deepinfer::cpu
