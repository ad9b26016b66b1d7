// Time of one sampled row by vocabulary and parameters, one JSON line each.
//   sampler_bench [seconds per line, default 0.1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "sampler/sampler.h"

using namespace deepinfer;

namespace {

/// Logits as a trained model gives them: a wide bulk and a short list of strong candidates.
std::vector<float> logits_like_a_model(int64_t vocab, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> bulk(0.0f, 2.5f);
    std::vector<float> row(static_cast<size_t>(vocab));
    for (float& l : row) l = bulk(rng);
    for (int i = 0; i < 40; ++i) row[rng() % row.size()] = 8.0f + 2.0f * std::fabs(bulk(rng));
    return row;
}

double median_us(const Sampler& sampler, const SampleRow& base, double seconds) {
    using clock = std::chrono::steady_clock;
    SamplerWorkspace workspace;
    std::vector<double> times;
    const auto end = clock::now() + std::chrono::duration<double>(seconds);
    SampleRow row = base;
    while (times.size() < 20 || clock::now() < end) {
        ++row.position;
        const auto t0 = clock::now();
        const SampleResult r = sampler.sample(row, workspace);
        const auto t1 = clock::now();
        if (r.token < 0) std::abort();
        times.push_back(std::chrono::duration<double, std::micro>(t1 - t0).count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 0.1;
    struct Setting {
        const char* name;
        SamplingParams params;
    };
    std::vector<Setting> settings(9);
    settings[0] = {"greedy", {}};
    settings[0].params.temperature = 0;
    settings[1] = {"greedy logprobs 5", settings[0].params};
    settings[1].params.logprobs = 5;
    settings[2] = {"temperature 1", {}};
    settings[3] = {"temperature 0.7", {}};
    settings[3].params.temperature = 0.7;
    settings[4] = {"top_k 50", {}};
    settings[4].params.top_k = 50;
    settings[5] = {"top_p 0.95", {}};
    settings[5].params.top_p = 0.95;
    settings[6] = {"min_p 0.05", {}};
    settings[6].params.min_p = 0.05;
    settings[7] = {"top_k 50 top_p 0.9 penalties", settings[4].params};
    settings[7].params.top_p = 0.9;
    settings[7].params.repetition_penalty = 1.1;
    settings[7].params.frequency_penalty = 0.2;
    settings[8] = {"temperature 1 logprobs 5", {}};
    settings[8].params.logprobs = 5;

    for (const int64_t vocab : {4096, 32768, 129280}) {
        const std::vector<float> logits = logits_like_a_model(vocab, 1);
        TokenHistory history;
        std::vector<int32_t> prompt;
        for (int i = 0; i < 1000; ++i) prompt.push_back(static_cast<int32_t>((i * 7919) % vocab));
        history.set_prompt(prompt);
        for (int i = 0; i < 200; ++i) history.append(static_cast<int32_t>((i * 31) % vocab));
        for (const char* isa : {"baseline", "avx2", "avx512"}) {
            const RowKernels* kernels = row_kernels_by_name(isa);
            if (kernels == nullptr) continue;
            const Sampler sampler(vocab, {0}, *kernels);
            for (const Setting& s : settings) {
                const RowPlan plan(s.params);
                SampleRow row;
                row.logits = logits.data();
                row.plan = &plan;
                row.history = &history;
                row.seed = 7;
                std::printf(
                    "{\"op\":\"sample\",\"vocab\":%lld,\"isa\":\"%s\",\"params\":\"%s\",\"us\":%."
                    "1f}\n",
                    static_cast<long long>(vocab),
                    isa,
                    s.name,
                    median_us(sampler, row, seconds));
            }
        }
    }
    return 0;
}
