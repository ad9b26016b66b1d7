// A slow second opinion on the sampler, for tests: sorting, long double, its own Philox. Written
// from the contract (engine spec 5.4, 6.2, 6.4) and sharing no code with the product.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deepinfer/sampling_params.h"

namespace deepinfer::testing {

/// Seed from the running test's name, so that a rerun repeats.
inline uint64_t test_seed() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    uint64_t h = 1469598103934665603ull;
    for (const char c : std::string(info->test_suite_name()) + "." + info->name()) {
        h = (h ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    }
    return h;
}

struct OracleRow {
    std::vector<float> logits;
    SamplingParams params;
    std::vector<int32_t> prompt, output, eos_ids;
    std::optional<std::vector<bool>> grammar_allows;
    uint32_t position = 0, sub_sequence = 0, stream = 0;
    uint64_t seed = 0;
};

struct OracleResult {
    int32_t token = -1;
    std::vector<int32_t> support;       ///< ascending
    std::vector<long double> logprobs;  ///< of every token, in the mode asked for
    std::vector<float> logits;          ///< that the log-probabilities are of
};

class Oracle {
  public:
    static OracleResult run(const OracleRow& row) {
        const SamplingParams& p = row.params;
        const size_t n = row.logits.size();
        const long double none = -std::numeric_limits<long double>::infinity();
        OracleResult result;

        std::vector<float> l = row.logits;
        for (float& x : l) {
            if (std::isnan(x)) x = -std::numeric_limits<float>::infinity();
        }
        if (p.logprob_mode == LogprobMode::kRaw) {
            result.logprobs = log_softmax(l, 1.0L, nullptr);
            result.logits = l;
        }
        const auto ban = [&](int32_t id) {
            l[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
        };
        for (size_t v = 0; v < n; ++v) {
            const int32_t id = static_cast<int32_t>(v);
            if (row.grammar_allows && !(*row.grammar_allows)[v]) ban(id);
            if (p.allowed_token_ids &&
                std::count(p.allowed_token_ids->begin(), p.allowed_token_ids->end(), id) == 0) {
                ban(id);
            }
        }
        for (const auto& word : p.bad_words) {
            std::vector<int32_t> tail = row.output;
            tail.push_back(word.back());
            if (tail.size() >= word.size() &&
                std::vector<int32_t>(tail.end() - static_cast<std::ptrdiff_t>(word.size()),
                                     tail.end()) == word) {
                ban(word.back());
            }
        }
        if (static_cast<int64_t>(row.output.size()) < p.min_tokens) {
            for (const int32_t id : row.eos_ids) ban(id);
            for (const int32_t id : p.stop_token_ids) ban(id);
        }
        for (const auto& [id, bias] : p.logit_bias) {
            float& x = l[static_cast<size_t>(id)];
            if (std::isfinite(x)) x = round_finite(static_cast<long double>(x) + bias);
        }
        for (size_t v = 0; v < n; ++v) {
            const auto id = static_cast<int32_t>(v);
            const auto in_output = std::count(row.output.begin(), row.output.end(), id);
            const bool seen = in_output > 0 || std::count(row.prompt.begin(), row.prompt.end(), id);
            if (!seen || !std::isfinite(l[v])) continue;
            long double x = l[v];
            x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
            x -= static_cast<long double>(p.frequency_penalty) * in_output;
            if (in_output > 0) x -= p.presence_penalty;
            l[v] = round_finite(x);
        }

        if (result.logits.empty()) result.logits = l;

        std::vector<size_t> order;
        for (size_t v = 0; v < n; ++v) {
            if (l[v] > -std::numeric_limits<float>::infinity()) order.push_back(v);
        }
        std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
            return l[a] != l[b] ? l[a] > l[b] : a < b;
        });
        if (order.empty()) {
            if (result.logprobs.empty()) result.logprobs.assign(n, none);
            return result;
        }
        const bool greedy = p.temperature < 1e-5;
        const long double tau = greedy ? 1.0L : p.temperature;
        const float m = l[order[0]];
        if (greedy || std::isinf(m)) {
            result.token = static_cast<int32_t>(order[0]);
            result.support = {result.token};
            if (result.logprobs.empty()) result.logprobs = log_softmax(l, tau, nullptr);
            return result;
        }
        const auto weight = [&](size_t v) {
            return std::floor(std::exp((static_cast<long double>(l[v]) - m) / tau) * 0x1p40L);
        };
        std::vector<size_t> kept;
        for (const size_t v : order) {
            if (p.min_p == 0 || weight(v) >= std::floor(p.min_p * 0x1p40L)) kept.push_back(v);
        }
        if (p.top_k > 0 && kept.size() > static_cast<size_t>(p.top_k)) {
            kept.resize(static_cast<size_t>(p.top_k));
        }
        if (p.top_p < 1) {
            long double total = 0;
            for (const size_t v : kept) total += weight(v);  // < 2^58: exact in long double
            long double sum = 0;
            size_t count = 0;
            while (count < kept.size() && (count == 0 || sum < p.top_p * total)) {
                sum += weight(kept[count++]);
            }
            kept.resize(count);
        }
        long double best = none;
        std::sort(kept.begin(), kept.end());
        for (const size_t v : kept) {
            const long double score =
                (static_cast<long double>(l[v]) - m) / tau + gumbel(row, static_cast<uint32_t>(v));
            if (score > best) {
                best = score;
                result.token = static_cast<int32_t>(v);
            }
            result.support.push_back(static_cast<int32_t>(v));
        }
        if (result.logprobs.empty()) result.logprobs = log_softmax(l, tau, &kept);
        return result;
    }

    static long double gumbel(const OracleRow& row, uint32_t token) {
        const uint32_t x = word(row, row.stream, token);
        long double w = (static_cast<long double>(x) + 0.5L) * 0x1p-32L;
        if (x < 65536) {
            const uint32_t y = word(row, row.stream + 8, token);
            w = (static_cast<long double>(x) * 0x1p32L + static_cast<long double>(y) + 0.5L) *
                0x1p-64L;
        }
        return -std::log(-std::log1p(-w));
    }

  private:
    static float round_finite(long double x) {
        const long double limit = std::numeric_limits<float>::max();
        return static_cast<float>(std::clamp(x, -limit, limit));
    }

    static uint32_t word(const OracleRow& row, uint32_t stream, uint32_t token) {
        std::array<uint64_t, 4> c{row.position, stream, token / 4, row.sub_sequence};
        uint64_t k0 = row.seed % 0x100000000ull, k1 = row.seed / 0x100000000ull;
        for (int round = 0; round < 10; ++round) {
            const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
            c = {(b / 0x100000000ull) ^ c[1] ^ k0,
                 b % 0x100000000ull,
                 (a / 0x100000000ull) ^ c[3] ^ k1,
                 a % 0x100000000ull};
            k0 = (k0 + 0x9E3779B9ull) % 0x100000000ull;
            k1 = (k1 + 0xBB67AE85ull) % 0x100000000ull;
        }
        return static_cast<uint32_t>(c[token % 4]);
    }

    static std::vector<long double> log_softmax(const std::vector<float>& l,
                                                long double tau,
                                                const std::vector<size_t>* kept) {
        const long double none = -std::numeric_limits<long double>::infinity();
        std::vector<long double> x(l.size(), none);
        for (size_t v = 0; v < l.size(); ++v) {
            if (kept == nullptr || std::count(kept->begin(), kept->end(), v) != 0) x[v] = l[v];
        }
        const long double m = *std::max_element(x.begin(), x.end());
        if (m == none) return x;
        long double sum = 0;
        for (long double& y : x) {
            y = std::isinf(m) ? (y == m ? 0 : none) : (y - m) / tau;
            sum += std::exp(y);
        }
        for (long double& y : x) y -= std::log(sum);
        return x;
    }
};

}  // namespace deepinfer::testing
