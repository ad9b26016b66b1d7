// Bodies of the row kernels, included by one translation unit per instruction set. Loops run over
// fixed lane arrays so that the compiler vectorises them without being allowed to reorder fp sums.
// Everything here has internal linkage (see sampling_math.h for why).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/sampling/sampling_math.h"
#include "sampler/noise_lanes.h"
#include "sampler/row_kernels.h"

namespace deepinfer {
namespace {

namespace sm = sampling_math;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 64;

RowScan scan_impl(const float* row, int64_t n) {
    float best[kLanes];
    int32_t nans[kLanes];
    for (int j = 0; j < kLanes; ++j) {
        best[j] = kMinusInf;
        nans[j] = 0;
    }
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            const float l = row[i + j];
            best[j] = l > best[j] ? l : best[j];
            nans[j] += l != l ? 1 : 0;
        }
    }
    RowScan r{kMinusInf, -1, 0};
    for (int j = 0; j < kLanes; ++j) {
        r.max = best[j] > r.max ? best[j] : r.max;
        r.nan_count += nans[j];
    }
    for (; i < n; ++i) {
        r.max = row[i] > r.max ? row[i] : r.max;
        r.nan_count += row[i] != row[i] ? 1 : 0;
    }
    if (r.max == kMinusInf) return r;
    for (i = 0; i + kLanes <= n; i += kLanes) {
        int hit = 0;
        for (int j = 0; j < kLanes; ++j) hit |= row[i + j] == r.max ? 1 : 0;
        if (hit != 0) break;
    }
    while (row[i] != r.max) ++i;
    r.argmax = static_cast<int32_t>(i);
    return r;
}

uint64_t weight_sum_impl(const float* row, int64_t n, float max, double inv_temperature) {
    constexpr int kW = 32;
    uint64_t sums[kW] = {};
    const double m = max;
    int64_t i = 0;
    for (; i + kW <= n; i += kW) {
        for (int j = 0; j < kW; ++j) {
            sums[j] += sm::weight40(sm::scaled_logit(row[i + j], m, inv_temperature));
        }
    }
    uint64_t sum = 0;
    for (; i < n; ++i) sum += sm::weight40(sm::scaled_logit(row[i], m, inv_temperature));
    for (const uint64_t s : sums) sum += s;
    return sum;
}

int64_t collect_impl(const float* row, int64_t n, float threshold, int32_t* out) {
    int64_t count = 0;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        int hits = 0;
        for (int j = 0; j < kLanes; ++j) hits += row[i + j] >= threshold ? 1 : 0;
        if (hits == 0) continue;
        for (int j = 0; j < kLanes; ++j) {  // branch-free append; out has room for n
            out[count] = static_cast<int32_t>(i + j);
            count += row[i + j] >= threshold ? 1 : 0;
        }
    }
    for (; i < n; ++i) {
        if (row[i] >= threshold) out[count++] = static_cast<int32_t>(i);
    }
    return count;
}

/// Noise words of 64 consecutive tokens from `token` on (a multiple of 4): philox4x32_10 in vector
/// lanes (noise_lanes.h), or one block after the other where there are none.
void noise_words_64(const NoiseKey& key, uint32_t token, uint32_t* out) {
#if defined(DI_NOISE_LANES)
    noise_words_lanes<kLanes / 4>(key, token >> 2, out);
#else
    for (uint32_t j = 0; j < kLanes; ++j) out[j] = noise_word(key, token + j);
#endif
}

/// At least the score of a token with noise word x, cheaply: -log2 of x·2^-32 is at most the chord
/// through its exponent and mantissa, and the Gumbel noise -log(-log1p(-w)) is below -log(w).
DI_MATH float score_bound(float logit, float max, float inv_temperature, uint32_t x) {
    const float s = (logit - max) * inv_temperature;
    const float log2_low = static_cast<float>(static_cast<int32_t>(
                               __builtin_bit_cast(uint32_t, static_cast<float>(x)))) *
                           0x1p-23f;
    const float noise = (159.0f - log2_low) * 0.69314724f;  // 159 = bias 127 + 32; ln2 rounded up
    return s + noise + (1e-3f - s * 1e-6f);                 // room for the fp32 roundings
}

DI_MATH void consider(const float* row,
                      int64_t i,
                      double max,
                      double inv_temperature,
                      const NoiseKey& key,
                      RowChoice* best) {
    if (!(row[i] > kMinusInf)) return;
    const double score = sm::gumbel_score(
        row[i], max, inv_temperature, sm::gumbel_noise(key, static_cast<uint32_t>(i)));
    const int32_t id = static_cast<int32_t>(i);
    if (best->token < 0 || score > best->score || (score == best->score && id < best->token)) {
        *best = {id, score};
    }
}

/// A token whose score_bound is below this cannot win.
DI_MATH float score_to_beat(const RowChoice& best) {
    const float s = static_cast<float>(best.score);
    return s - 1e-3f - (s < 0 ? -s : s) * 1e-6f;  // room for the rounding to fp32
}

RowChoice gumbel_argmax_impl(const float* row,
                             int64_t n,
                             float max,
                             double inv_temperature,
                             const NoiseKey& key,
                             int32_t first) {
    RowChoice best;
    const double m = max;
    const float inv = static_cast<float>(inv_temperature);
    consider(row, first, m, inv_temperature, key, &best);
    int64_t i = 0;
    uint32_t words[kLanes];
    for (; i + kLanes <= n; i += kLanes) {
        const float need = score_to_beat(best);
        float top[kLanes / 4];
        for (int j = 0; j < kLanes / 4; ++j) top[j] = kMinusInf;
        for (int k = 0; k < 4; ++k) {
            for (int j = 0; j < kLanes / 4; ++j) {
                const float l = row[i + k * (kLanes / 4) + j];
                top[j] = l > top[j] ? l : top[j];
            }
        }
        float block_max = kMinusInf;
        for (int j = 0; j < kLanes / 4; ++j) block_max = top[j] > block_max ? top[j] : block_max;
        const float s_max = (block_max - max) * inv;
        if (s_max + static_cast<float>(sm::kGumbelMax) - s_max * 1e-6f < need) continue;

        noise_words_64(key, static_cast<uint32_t>(i), words);
        int any = 0;
        for (int j = 0; j < kLanes; ++j) {
            any |= score_bound(row[i + j], max, inv, words[j]) >= need ? 1 : 0;
        }
        if (any == 0) continue;
        for (int j = 0; j < kLanes; ++j) {
            if (score_bound(row[i + j], max, inv, words[j]) >= need) {
                consider(row, i + j, m, inv_temperature, key, &best);
            }
        }
    }
    for (; i < n; ++i) consider(row, i, m, inv_temperature, key, &best);
    return best;
}

void weights_impl(const float* row,
                  const int32_t* ids,
                  int64_t count,
                  float max,
                  double inv_temperature,
                  uint64_t* out) {
    const double m = max;
    for (int64_t j = 0; j < count; ++j) {
        out[j] = sm::weight40(sm::scaled_logit(row[ids[j]], m, inv_temperature));
    }
}

RowChoice gumbel_argmax_ids_impl(const float* row,
                                 const int32_t* ids,
                                 int64_t count,
                                 float max,
                                 double inv_temperature,
                                 const NoiseKey& key) {
    RowChoice best;
    const float inv = static_cast<float>(inv_temperature);
    float need = kMinusInf;
    for (int64_t j = 0; j < count; ++j) {
        const int32_t id = ids[j];
        const uint32_t x = noise_word(key, static_cast<uint32_t>(id));
        if (!(score_bound(row[id], max, inv, x) >= need)) continue;
        consider(row, id, max, inv_temperature, key, &best);
        need = score_to_beat(best);
    }
    return best;
}

constexpr RowKernels make_row_kernels(const char* name) {
    return {name,
            scan_impl,
            weight_sum_impl,
            collect_impl,
            weights_impl,
            gumbel_argmax_impl,
            gumbel_argmax_ids_impl};
}

}  // namespace
}  // namespace deepinfer
