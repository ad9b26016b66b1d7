#include <vector>

#include "ops/engram/engram.h"
#include "ops/twin_math.h"

namespace deepinfer {
namespace {

int64_t int_at(const Tensor& t, int64_t i) {
    DI_CHECK(t.dtype == DType::kI64 || t.dtype == DType::kI32);
    return t.dtype == DType::kI64 ? t.ptr<int64_t>()[i] : t.ptr<int32_t>()[i];
}

}  // namespace

namespace {

/// Below 2^63 for ids of the vocabulary; for any others it wraps as 64-bit hardware does, instead
/// of being undefined.
int64_t product(int32_t id, int64_t multiplier) {
    return static_cast<int64_t>(static_cast<uint64_t>(id) * static_cast<uint64_t>(multiplier));
}

}  // namespace

void engram_hash_ref(Stream& stream,
                     const Tensor& ngrams,
                     const Tensor& multipliers,
                     const Tensor& primes,
                     const Tensor& offsets,
                     Tensor ids) {
    const int64_t max_ngram = ngrams.dim(1), cols = ids.dim(1), heads = cols / (max_ngram - 1);
    DI_CHECK(ngrams.dtype == DType::kI32 && ids.dtype == DType::kI32 &&
             multipliers.dtype == DType::kI64);
    DI_CHECK_EQ(ids.dim(0), ngrams.dim(0));
    DI_CHECK_EQ(multipliers.dim(0), max_ngram);
    DI_CHECK_EQ(heads * (max_ngram - 1), cols);
    DI_CHECK_EQ(primes.dim(0), cols);
    DI_CHECK_EQ(offsets.dim(0), cols);
    parallel_for(stream, ngrams.dim(0), 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            int64_t r = product(ngrams.row<int32_t>(t)[0], int_at(multipliers, 0));
            for (int64_t i = 1; i < max_ngram; ++i) {
                r ^= product(ngrams.row<int32_t>(t)[i], int_at(multipliers, i));
                for (int64_t c = (i - 1) * heads; c < i * heads; ++c) {
                    ids.row<int32_t>(t)[c] =
                        static_cast<int32_t>(r % int_at(primes, c) + int_at(offsets, c));
                }
            }
        }
    });
}

void engram_lookup_ref(Stream& stream, const WeightMatrix& table, const Tensor& ids, Tensor out) {
    const int64_t ed = table.k, cols = ids.dim(1);
    DI_CHECK(table.dtype == DType::kFP8E4M3 && ids.dtype == DType::kI32 &&
             out.dtype == DType::kBF16);
    DI_CHECK_EQ(ed % 32, 0);
    DI_CHECK_EQ(out.dim(0), ids.dim(0));
    DI_CHECK_EQ(out.dim(1), cols * ed);
    parallel_for(stream, ids.dim(0), 4, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t c = 0; c < cols; ++c) {
                const int64_t row = ids.row<int32_t>(t)[c];
                DI_CHECK(row >= 0 && row < table.n);
                const uint8_t* codes = static_cast<const uint8_t*>(table.weight) + row * ed;
                const uint8_t* scales = table.scale + row * (ed / 32);
                bf16* y = out.row<bf16>(t) + c * ed;
                for (int64_t i = 0; i < ed; ++i)
                    y[i] = to_bf16(e4m3_to_float(codes[i]) * ue8m0_to_float(scales[i / 32]));
            }
        }
    });
}

template <typename Acc>
void engram_gate_ref(Stream& stream,
                     Tensor x,
                     const Tensor& kv,
                     const Tensor& q_weight,
                     const Tensor& k_weight,
                     const Tensor& dead,
                     float eps) {
    const int64_t hc = x.dim(1), d = x.dim(2);
    DI_CHECK(x.dtype == DType::kBF16 && kv.dtype == DType::kBF16 && twin::rows_dense(x));
    DI_CHECK(q_weight.dtype == DType::kF32 && k_weight.dtype == DType::kF32);
    DI_CHECK_EQ(kv.dim(0), x.dim(0));
    DI_CHECK_EQ(kv.dim(1), (hc + 1) * d);
    const Acc inv_sqrt_d = Acc(1) / std::sqrt(static_cast<Acc>(d));
    parallel_for(stream, x.dim(0), 1, [&](int64_t begin, int64_t end) {
        std::vector<Acc> xs(static_cast<size_t>(d)), key(xs), value(xs), weighted(xs);
        const auto inverse_rms = [&](const std::vector<Acc>& v) {
            return Acc(1) / std::sqrt(twin::dot(v.data(), v.data(), d) / static_cast<Acc>(d) +
                                      static_cast<Acc>(eps));
        };
        for (int64_t t = begin; t < end; ++t) {
            const bf16* row = kv.row<bf16>(t);
            twin::widen(row + hc * d, d, value.data());
            const bool shut = dead && dead.ptr<uint8_t>()[t] != 0;
            for (int64_t s = 0; s < hc; ++s) {
                bf16* stream_s = x.row<bf16>(t) + s * d;
                twin::widen(stream_s, d, xs.data());
                twin::widen(row + s * d, d, key.data());
                for (size_t i = 0; i < xs.size(); ++i) {
                    const Acc qk = static_cast<Acc>(q_weight.row<float>(s)[i]) *
                                   static_cast<Acc>(k_weight.row<float>(s)[i]);
                    weighted[i] = xs[i] * qk;
                }
                const Acc dot = twin::dot(weighted.data(), key.data(), d) * inverse_rms(xs) *
                                inverse_rms(key) * inv_sqrt_d;
                const Acc root =
                    std::copysign(std::sqrt(std::max(std::fabs(dot), static_cast<Acc>(1e-6))), dot);
                // max() above would drop a NaN, which has to stay visible in its row.
                const Acc gate = shut ? Acc(0) : twin::sigmoid(std::isnan(dot) ? dot : root);
                for (size_t i = 0; i < xs.size(); ++i)
                    stream_s[i] = to_bf16(xs[i] + gate * value[i]);
            }
        }
    });
}

template void engram_gate_ref<float>(
    Stream&, Tensor, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float);
template void engram_gate_ref<double>(
    Stream&, Tensor, const Tensor&, const Tensor&, const Tensor&, const Tensor&, float);

}  // namespace deepinfer
