// The resize loops with AVX2: two pixels (columns) or eight bytes (rows) a product. The functions
// name their instruction set, so the rest of the file builds for any x86-64.
#include "vision/image_resample.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace deepinfer {
namespace {

#define DI_AVX2 __attribute__((target("avx2")))

constexpr int32_t kHalf = 1 << (kTapFractionBits - 1);

/// Eight sums as bytes in the low half.
DI_AVX2 inline __m128i to_bytes(__m256i sums) {
    const __m256i v = _mm256_srai_epi32(sums, kTapFractionBits);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm_packus_epi16(words, words);  // both saturate: the clamp
}

/// Weights for two taps of four channels at a time: an even number, the odd one out is zero.
std::vector<int32_t> paired(const Taps& taps, int64_t stride) {
    std::vector<int32_t> w(static_cast<size_t>(taps.outputs() * stride), 0);
    for (int64_t o = 0; o < taps.outputs(); ++o) {
        for (int64_t j = 0; j < taps.count[static_cast<size_t>(o)]; ++j) {
            for (int64_t c = 0; c < 4; ++c)
                w[static_cast<size_t>(o * stride + 4 * j + c)] = taps.of(o)[j];
        }
    }
    return w;
}

DI_AVX2 void columns(const RgbImage& in, const Taps& taps, RgbImage& out) {
    const int64_t stride = 4 * (taps.width + taps.width % 2);
    const std::vector<int32_t> weights = paired(taps, stride);
    // The row as pixels of four bytes; one more for the tap that weighs nothing.
    std::vector<uint8_t> wide(static_cast<size_t>(4 * (in.width + 1)));
    for (int64_t y = 0; y < in.height; ++y) {
        const uint8_t* src = in.row(y);
        for (int64_t x = 0; x < in.width; ++x) std::memcpy(&wide[4 * x], src + 3 * x, 3);
        uint8_t* dst = out.row(y);
        for (int64_t o = 0; o < taps.outputs(); ++o) {
            const int32_t* k = weights.data() + o * stride;
            const uint8_t* p = wide.data() + 4 * taps.first[static_cast<size_t>(o)];
            __m256i sum = _mm256_setzero_si256();
            for (int32_t j = 0; j < taps.count[static_cast<size_t>(o)]; j += 2) {
                const __m256i pixels = _mm256_cvtepu8_epi32(
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 4 * j)));
                const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + 4 * j));
                sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(pixels, w));
            }
            const __m128i both = _mm_add_epi32(
                _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)),
                _mm_set1_epi32(kHalf));
            const int32_t bytes = _mm_cvtsi128_si32(to_bytes(_mm256_castsi128_si256(both)));
            std::memcpy(dst + 3 * o, &bytes, 3);
        }
    }
}

DI_AVX2 void rows(const RgbImage& in, const Taps& taps, RgbImage& out) {
    constexpr int64_t kRegisters = 8, kBlock = 8 * kRegisters;
    const int64_t n = 3 * in.width;
    for (int64_t o = 0; o < taps.outputs(); ++o) {
        const int32_t* k = taps.of(o);
        const int32_t count = taps.count[static_cast<size_t>(o)];
        const uint8_t* src = in.row(taps.first[static_cast<size_t>(o)]);
        uint8_t* dst = out.row(o);
        int64_t begin = 0;
        for (; begin + kBlock <= n; begin += kBlock) {
            __m256i sums[kRegisters];
#pragma GCC unroll 8
            for (int64_t i = 0; i < kRegisters; ++i) sums[i] = _mm256_set1_epi32(kHalf);
            for (int32_t j = 0; j < count; ++j) {
                const __m256i w = _mm256_set1_epi32(k[j]);
                const uint8_t* p = src + j * n + begin;
#pragma GCC unroll 8
                for (int64_t i = 0; i < kRegisters; ++i) {
                    const __m256i bytes = _mm256_cvtepu8_epi32(
                        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i)));
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_mullo_epi32(bytes, w));
                }
            }
#pragma GCC unroll 8
            for (int64_t i = 0; i < kRegisters; ++i) {
                _mm_storel_epi64(reinterpret_cast<__m128i*>(dst + begin + 8 * i),
                                 to_bytes(sums[i]));
            }
        }
        for (; begin < n; ++begin) {
            int32_t sum = kHalf;
            for (int32_t j = 0; j < count; ++j) sum += k[j] * src[j * n + begin];
            const int32_t byte = sum >> kTapFractionBits;
            dst[begin] = static_cast<uint8_t>(byte < 0 ? 0 : byte > 255 ? 255 : byte);
        }
    }
}

constexpr ResampleKernels kAvx2 = {columns, rows};

}  // namespace

const ResampleKernels* avx2_resample() {
    return __builtin_cpu_supports("avx2") != 0 ? &kAvx2 : nullptr;
}

}  // namespace deepinfer

#else

namespace deepinfer {

const ResampleKernels* avx2_resample() {
    return nullptr;
}

}  // namespace deepinfer

#endif
