// The arithmetic against long double, and every instruction-set variant against the baseline, bit
// by bit.
#include "sampler/row_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/sampling/sampling_math.h"
#include "sampler/sampler_oracle.h"
#include "sampler/truncation.h"

namespace deepinfer {
namespace {

namespace sm = sampling_math;
using testing::test_seed;

TEST(SamplingMath, WeightIsTheFloorOfExp) {
    std::mt19937_64 rng(test_seed());
    std::uniform_real_distribution<double> uniform(-30, 0);
    EXPECT_EQ(sm::weight40(0), uint64_t{1} << 40);
    EXPECT_EQ(sm::weight40(-std::numeric_limits<double>::infinity()), 0u);
    EXPECT_EQ(sm::weight40(std::numeric_limits<double>::quiet_NaN()), 0u);
    EXPECT_EQ(sm::weight40(-27.8), 0u);
    EXPECT_EQ(sm::weight40(-27.7), 1u);
    int off_by_one = 0;
    for (int i = 0; i < 300000; ++i) {
        const double x = uniform(rng);
        const auto want =
            static_cast<uint64_t>(std::floor(std::exp(static_cast<long double>(x)) * 0x1p40L));
        const uint64_t got = sm::weight40(x);
        ASSERT_LE(got > want ? got - want : want - got, 1u) << x;
        off_by_one += got != want ? 1 : 0;
    }
    EXPECT_LT(off_by_one, 30);  // one ulp of fp64 seldom crosses an integer
}

TEST(SamplingMath, LogIsWithinTwoUlp) {
    std::mt19937_64 rng(test_seed());
    for (int i = 0; i < 300000; ++i) {
        const double x = std::ldexp(1.0 + static_cast<double>(rng() >> 11) * 0x1p-53,
                                    static_cast<int>(rng() % 140) - 70);
        const long double want = std::log(static_cast<long double>(x));
        const double ulp = std::ldexp(1.0, std::ilogb(static_cast<double>(want)) - 52);
        ASSERT_LE(std::fabs(sm::log_positive(x) - want), 2 * ulp) << x;
    }
    EXPECT_EQ(sm::log_positive(1.0), 0.0);
}

TEST(SamplingMath, GumbelIsExactInBothTails) {
    std::mt19937_64 rng(test_seed());
    const auto check = [](uint32_t x, uint32_t y) {
        const long double w =
            x < 65536 ? (x * 0x1p32L + y + 0.5L) * 0x1p-64L : (x + 0.5L) * 0x1p-32L;
        const long double want = -std::log(-std::log1p(-w));
        ASSERT_NEAR(sm::gumbel_from_words(x, y),
                    static_cast<double>(want),
                    4e-16 * (1 + std::fabs(static_cast<double>(want))))
            << x << " " << y;
    };
    for (const uint32_t x : {0u,
                             1u,
                             65535u,
                             65536u,
                             65537u,
                             1u << 30,
                             (1u << 30) - 1,
                             0x7fffffffu,
                             0x80000000u,
                             0xfffffffeu,
                             0xffffffffu}) {
        for (const uint32_t y : {0u, 1u, 0x80000000u, 0xffffffffu}) check(x, y);
    }
    for (int i = 0; i < 200000; ++i) {
        check(static_cast<uint32_t>(rng()) >> (rng() % 32), static_cast<uint32_t>(rng()));
    }
    EXPECT_LT(sm::gumbel_from_words(0, 0), sm::kGumbelMax);
    EXPECT_GT(sm::gumbel_from_words(0, 0), 45.05);
}

TEST(SamplingMath, RareTokensGetTheirShare) {
    // P(g > t) = w_t is decided on a grid of 2^-64 below w = 2^-16: count grid points instead of
    // drawing. With 32-bit words alone a token of probability 1e-11 would never win.
    for (const double p : {1e-6, 1e-9, 1e-10, 1e-11, 1e-13}) {
        const double t = -std::log(-std::log1p(-p));
        uint64_t low = 0, high = uint64_t{1} << 48;  // number of (x, y) with noise above t
        while (low < high) {
            const uint64_t mid = low + (high - low) / 2;
            const double g =
                sm::gumbel_from_words(static_cast<uint32_t>(mid >> 32), static_cast<uint32_t>(mid));
            if (g > t) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        EXPECT_NEAR(std::ldexp(static_cast<double>(low), -64) / p, 1.0, 1e-6) << p;
    }
}

TEST(SamplingMath, RefinedNoiseIsTheContracts) {  // the words of stream + 8, which few draws reach
    testing::OracleRow row;
    row.seed = 0x0123456789abcdefull;
    row.position = 77;
    row.sub_sequence = 2;
    const NoiseKey key{row.seed, row.position, row.stream, row.sub_sequence};
    int refined = 0;
    for (uint32_t v = 0; v < 2000000; ++v) {
        if (noise_word(key, v) >= 0x10000u) continue;
        ++refined;
        EXPECT_NEAR(
            sm::gumbel_noise(key, v), static_cast<double>(testing::Oracle::gumbel(row, v)), 1e-14);
    }
    EXPECT_GT(refined, 10);
    for (uint32_t v = 0; v < 1000; ++v) {
        EXPECT_NEAR(
            sm::gumbel_noise(key, v), static_cast<double>(testing::Oracle::gumbel(row, v)), 1e-14);
    }
}

TEST(CeilShare, IsExact) {
    EXPECT_EQ(ceil_share(0.5, 10), 5u);
    EXPECT_EQ(ceil_share(0.5, 11), 6u);
    EXPECT_EQ(ceil_share(0.1, 10), 2u);  // the double 0.1 is a little above 1/10
    EXPECT_EQ(ceil_share(0.3, 10), 3u);  // the double 0.3 is a little below 3/10
    EXPECT_EQ(ceil_share(1e-300, uint64_t{1} << 57), 1u);
    EXPECT_EQ(ceil_share(5e-324, 1), 1u);
    const uint64_t big = (uint64_t{1} << 57) + 1;
    EXPECT_EQ(ceil_share(std::nextafter(1.0, 0.0), big), big - 16);  // big · 2^-53 is 16 and a bit
}

class RowKernelsVariant : public ::testing::TestWithParam<const char*> {};

std::vector<float> hard_row(std::mt19937_64& rng, size_t n) {
    std::normal_distribution<float> normal(0, rng() % 2 == 0 ? 3.0f : 40.0f);
    std::vector<float> row(n);
    for (float& l : row) l = normal(rng);
    for (size_t i = 0; i < n; ++i) {
        if (rng() % 50 == 0) row[i] = -std::numeric_limits<float>::infinity();
        if (rng() % 200 == 0) row[i] = std::numeric_limits<float>::quiet_NaN();
        if (rng() % 50 == 0 && i > 0) row[i] = row[rng() % i];
    }
    return row;
}

TEST_P(RowKernelsVariant, EqualsTheBaselineBitForBit) {
    const RowKernels* fast = row_kernels_by_name(GetParam());
    if (fast == nullptr) GTEST_SKIP() << "this CPU lacks " << GetParam();
    const RowKernels& slow = *row_kernels_baseline();
    std::mt19937_64 rng(test_seed());
    const size_t sizes[] = {1, 2, 3, 4, 5, 31, 63, 64, 65, 127, 128, 129, 1000, 4096, 5001};
    for (int round = 0; round < 40; ++round) {
        for (const size_t size : sizes) {
            const std::vector<float> row = hard_row(rng, size);
            const auto n = static_cast<int64_t>(size);
            const RowScan a = slow.scan(row.data(), n), b = fast->scan(row.data(), n);
            EXPECT_EQ(a.max, b.max);
            EXPECT_EQ(a.argmax, b.argmax);
            EXPECT_EQ(a.nan_count, b.nan_count);
            if (a.argmax < 0) continue;
            const double inv = 1 / std::ldexp(1.0, static_cast<int>(rng() % 12) - 10);
            EXPECT_EQ(slow.weight_sum(row.data(), n, a.max, inv),
                      fast->weight_sum(row.data(), n, a.max, inv));
            std::vector<int32_t> ids(size), other(size);
            const float threshold = a.max - static_cast<float>(rng() % 8);
            ids.resize(static_cast<size_t>(slow.collect(row.data(), n, threshold, ids.data())));
            other.resize(
                static_cast<size_t>(fast->collect(row.data(), n, threshold, other.data())));
            EXPECT_EQ(ids, other);
            const NoiseKey key{rng(), static_cast<uint32_t>(rng()), 0, 1};
            const RowChoice c = slow.gumbel_argmax(row.data(), n, a.max, inv, key, a.argmax);
            const RowChoice d = fast->gumbel_argmax(row.data(), n, a.max, inv, key, a.argmax);
            EXPECT_EQ(c.token, d.token);
            EXPECT_EQ(std::bit_cast<uint64_t>(c.score), std::bit_cast<uint64_t>(d.score));
            const auto count = static_cast<int64_t>(ids.size());
            std::vector<uint64_t> w(ids.size()), v(ids.size());
            slow.weights(row.data(), ids.data(), count, a.max, inv, w.data());
            fast->weights(row.data(), ids.data(), count, a.max, inv, v.data());
            EXPECT_EQ(w, v);
            const RowChoice e =
                slow.gumbel_argmax_ids(row.data(), ids.data(), count, a.max, inv, key);
            const RowChoice f =
                fast->gumbel_argmax_ids(row.data(), ids.data(), count, a.max, inv, key);
            EXPECT_EQ(e.token, f.token);
            EXPECT_EQ(std::bit_cast<uint64_t>(e.score), std::bit_cast<uint64_t>(f.score));
        }
    }
}

TEST_P(RowKernelsVariant, SkippedTokensCannotWin) {  // the cheap bound against all exact scores
    const RowKernels* kernels = row_kernels_by_name(GetParam());
    if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks " << GetParam();
    std::mt19937_64 rng(test_seed());
    for (int round = 0; round < 300; ++round) {
        const std::vector<float> row = hard_row(rng, 777);
        const RowScan scan = kernels->scan(row.data(), 777);
        const double inv = round % 3 == 0 ? 0.5 : round % 3 == 1 ? 1.0 : 50.0;
        const NoiseKey key{rng(), static_cast<uint32_t>(round), 0, 0};
        RowChoice want;
        for (int32_t v = 0; v < 777; ++v) {
            const float l = row[static_cast<size_t>(v)];
            if (!(l > -std::numeric_limits<float>::infinity())) continue;
            const double s =
                sm::gumbel_score(l, scan.max, inv, sm::gumbel_noise(key, static_cast<uint32_t>(v)));
            if (want.token < 0 || s > want.score) want = {v, s};
        }
        const RowChoice got =
            kernels->gumbel_argmax(row.data(), 777, scan.max, inv, key, scan.argmax);
        EXPECT_EQ(got.token, want.token);
        EXPECT_EQ(got.score, want.score);
    }
}

INSTANTIATE_TEST_SUITE_P(Isa,
                         RowKernelsVariant,
                         ::testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace deepinfer
