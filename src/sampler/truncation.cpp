#include "sampler/truncation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/sampling/sampling_math.h"

namespace deepinfer {
namespace {

namespace sm = sampling_math;

constexpr float kLowestFinite = std::numeric_limits<float>::lowest();
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

/// Ascending keys are the token order: logit descending, then id ascending. -0 counts as +0.
uint64_t order_key(float logit, int32_t id) {
    const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
    const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(id);
}

int32_t key_id(uint64_t key) {
    return static_cast<int32_t>(static_cast<uint32_t>(key));
}

/// Largest float that is <= x.
float float_at_most(double x) {
    if (x < kLowestFinite) return kLowestFinite;
    const float f = static_cast<float>(x);
    return f <= x ? f : std::nextafter(f, kMinusInf);
}

void collect(const RowKernels& kernels,
             const float* row,
             int64_t n,
             float threshold,
             TruncationWorkspace& ws) {
    ws.ids.resize(static_cast<size_t>(n));
    ws.ids.resize(static_cast<size_t>(kernels.collect(row, n, threshold, ws.ids.data())));
}

void compute_weights(const RowKernels& kernels,
                     const float* row,
                     const RowScan& scan,
                     double inv_temperature,
                     TruncationWorkspace& ws) {
    ws.weights.resize(ws.ids.size());
    kernels.weights(row,
                    ws.ids.data(),
                    static_cast<int64_t>(ws.ids.size()),
                    scan.max,
                    inv_temperature,
                    ws.weights.data());
}

uint64_t sum_weights(const TruncationWorkspace& ws) {
    uint64_t sum = 0;
    for (const uint64_t w : ws.weights) sum += w;
    return sum;
}

/// A superset of the first k tokens, small when the row allows: the threshold is the matching
/// quantile of about a thousand evenly spaced logits. The result does not depend on the guess.
void collect_top(
    const RowKernels& kernels, const float* row, int64_t n, int64_t k, TruncationWorkspace& ws) {
    constexpr int64_t kSample = 1024;
    if (n >= 4 * kSample && k < n / 2) {
        const int64_t stride = n / kSample;
        ws.sample.clear();
        for (int64_t i = 0; i < n; i += stride) {
            if (row[i] > kMinusInf) ws.sample.push_back(row[i]);  // false for NaN too
        }
        const int64_t rank = k * 3 / (2 * stride) + 8;
        if (rank < static_cast<int64_t>(ws.sample.size())) {
            const auto nth = ws.sample.begin() + rank;
            std::nth_element(ws.sample.begin(), nth, ws.sample.end(), std::greater<float>());
            collect(kernels, row, n, *nth, ws);
            if (static_cast<int64_t>(ws.ids.size()) >= k) return;
        }
    }
    collect(kernels, row, n, kLowestFinite, ws);
}

/// min_p: a float threshold a little below, then the exact weights.
void keep_min_weight(const RowKernels& kernels,
                     const float* row,
                     int64_t n,
                     const RowScan& scan,
                     double inv_temperature,
                     uint64_t min_weight,
                     TruncationWorkspace& ws) {
    const double lowest = sm::log_weight_sum(min_weight) - 1e-6;
    collect(kernels, row, n, float_at_most(scan.max + lowest / inv_temperature), ws);
    compute_weights(kernels, row, scan, inv_temperature, ws);
    size_t kept = 0;
    for (size_t j = 0; j < ws.ids.size(); ++j) {
        ws.ids[kept] = ws.ids[j];
        ws.weights[kept] = ws.weights[j];
        kept += ws.weights[j] >= min_weight ? 1 : 0;
    }
    ws.ids.resize(kept);
    ws.weights.resize(kept);
}

/// Keeps the shortest prefix in token order whose weight reaches target; ws.weights belongs to
/// ws.ids and sums to at least target. Returns the kept weight. Tokens are first put into buckets
/// of 1/16 nat, which respect the order; only the bucket with the cut is sorted.
uint64_t keep_weight(const float* row,
                     const RowScan& scan,
                     double inv_temperature,
                     uint64_t target,
                     TruncationWorkspace& ws) {
    constexpr int kBuckets = 28 * 16 + 1;  // weights are 0 from 28 nats on
    const auto bucket_of = [&](int32_t id) {
        const double x = sm::scaled_logit(row[id], scan.max, inv_temperature);
        return x > -28 ? static_cast<size_t>(x * -16) : static_cast<size_t>(kBuckets - 1);
    };
    std::array<uint64_t, kBuckets> bucket_weight{};
    for (size_t j = 0; j < ws.ids.size(); ++j) bucket_weight[bucket_of(ws.ids[j])] += ws.weights[j];
    uint64_t before = 0;
    size_t cut = 0;
    while (before + bucket_weight[cut] < target) before += bucket_weight[cut++];

    ws.keys.clear();
    size_t kept = 0;
    for (size_t j = 0; j < ws.ids.size(); ++j) {
        const size_t b = bucket_of(ws.ids[j]);
        if (b == cut) ws.keys.push_back(order_key(row[ws.ids[j]], ws.ids[j]));
        ws.ids[kept] = ws.ids[j];
        kept += b < cut ? 1 : 0;
    }
    ws.ids.resize(kept);
    std::sort(ws.keys.begin(), ws.keys.end());
    for (const uint64_t key : ws.keys) {
        if (before >= target) break;
        const int32_t id = key_id(key);
        ws.ids.push_back(id);
        before += sm::weight40(sm::scaled_logit(row[id], scan.max, inv_temperature));
    }
    return before;
}

}  // namespace

uint64_t ceil_share(double p, uint64_t sum) {
    DI_CHECK(p > 0 && p < 1 && sum > 0);
    int exponent = 0;
    const double fraction = std::frexp(p, &exponent);  // p = fraction · 2^exponent, fraction >= 1/2
    const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
    const int shift = 53 - exponent;
    if (shift >= 120) return 1;  // the product is below 2^117
    const unsigned __int128 product = static_cast<unsigned __int128>(mantissa) * sum;
    const unsigned __int128 one = 1;
    return static_cast<uint64_t>((product + (one << shift) - 1) >> shift);
}

void keep_top(const float* row, int64_t k, bool sorted, TruncationWorkspace& ws) {
    const size_t keep = std::min(ws.ids.size(), static_cast<size_t>(k));
    ws.keys.clear();
    for (const int32_t id : ws.ids) ws.keys.push_back(order_key(row[id], id));
    const auto cut = ws.keys.begin() + static_cast<std::ptrdiff_t>(keep);
    if (keep < ws.keys.size()) std::nth_element(ws.keys.begin(), cut, ws.keys.end());
    if (sorted) std::sort(ws.keys.begin(), cut);
    ws.ids.resize(keep);
    for (size_t j = 0; j < keep; ++j) ws.ids[j] = key_id(ws.keys[j]);
}

std::vector<int32_t> top_ids(
    const RowKernels& kernels, const float* row, int64_t n, int64_t k, TruncationWorkspace& ws) {
    collect_top(kernels, row, n, std::min(k, n), ws);
    keep_top(row, k, true, ws);
    return ws.ids;
}

uint64_t truncate_row(const RowKernels& kernels,
                      const float* row,
                      int64_t n,
                      const RowScan& scan,
                      double inv_temperature,
                      const Truncation& t,
                      TruncationWorkspace& ws) {
    if (t.top_p <= 0) {
        ws.ids.assign(1, scan.argmax);
        return uint64_t{1} << sm::kWeightBits;
    }
    const bool has_top_k = t.top_k > 0 && t.top_k < n;
    if (!has_top_k && t.min_weight == 0) {  // top_p alone: its total is the whole row's
        const uint64_t sum = kernels.weight_sum(row, n, scan.max, inv_temperature);
        const uint64_t target = ceil_share(t.top_p, sum);
        for (const double reach : {8.0, 29.0}) {  // the second holds every token with a weight
            collect(kernels, row, n, float_at_most(scan.max - reach / inv_temperature), ws);
            compute_weights(kernels, row, scan, inv_temperature, ws);
            if (sum_weights(ws) >= target) break;
        }
        return keep_weight(row, scan, inv_temperature, target, ws);
    }
    if (t.min_weight > 0) {
        keep_min_weight(kernels, row, n, scan, inv_temperature, t.min_weight, ws);
    } else {
        collect_top(kernels, row, n, t.top_k, ws);
    }
    if (has_top_k && static_cast<int64_t>(ws.ids.size()) > t.top_k) {
        keep_top(row, t.top_k, false, ws);
    }
    compute_weights(kernels, row, scan, inv_temperature, ws);
    const uint64_t sum = sum_weights(ws);
    if (t.top_p >= 1) return sum;
    return keep_weight(row, scan, inv_temperature, ceil_share(t.top_p, sum), ws);
}

}  // namespace deepinfer
