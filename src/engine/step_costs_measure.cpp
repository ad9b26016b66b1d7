#include "engine/step_costs_measure.h"

#include <algorithm>
#include <functional>

namespace deepinfer {
namespace {

constexpr int kRepeats = 5;
constexpr int64_t kTimeUs = 2'000'000;

using Points = std::vector<std::pair<int64_t, double>>;

/// Medians of run(size) over the sizes, until the time is up. The first call of all warms up.
Points measure(const std::vector<int64_t>& sizes,
               const Clock& clock,
               int64_t end_us,
               const std::function<void(int64_t)>& run) {
    Points points;
    run(sizes[0]);
    for (const int64_t size : sizes) {
        std::vector<double> us;
        for (int i = 0; i < kRepeats; ++i) {
            const int64_t begin = clock.now_us();
            run(size);
            us.push_back(static_cast<double>(std::max<int64_t>(1, clock.now_us() - begin)));
        }
        std::nth_element(us.begin(), us.begin() + kRepeats / 2, us.end());
        points.emplace_back(size, us[kRepeats / 2]);
        if (clock.now_us() > end_us && points.size() > 1) break;
    }
    return points;
}

/// `rows` rows spread over as many slots as there are, like the decodes and drafts of a step.
Batch make_batch(int64_t rows, const CacheView& cache, const ModelLimits& limits) {
    Batch batch;
    const int64_t most = std::min({cache.num_slots, cache.num_blocks, limits.max_seqs});
    const int64_t each = std::max<int64_t>(6, (rows + most - 1) / most);
    for (int64_t at = 0; at < rows; at += each) {
        SequenceChunk c;
        c.slot = static_cast<int32_t>(batch.seqs.size());
        c.num_tokens = static_cast<int32_t>(std::min(each, rows - at));
        for (int64_t end = 0; end < c.num_tokens; end += limits.block_tokens) {
            c.block_ids.push_back(c.slot);
        }
        for (int32_t i = 0; i < c.num_tokens; ++i) {
            batch.token_ids.push_back(static_cast<int32_t>((at + i) % 97));
        }
        const auto first = static_cast<int32_t>(at);
        for (int32_t i = 0; i < c.num_tokens; ++i) {
            if (static_cast<int64_t>(batch.logit_rows.size()) < limits.max_logit_rows) {
                batch.logit_rows.push_back(first + i);
            }
        }
        batch.seqs.push_back(std::move(c));
    }
    return batch;
}

}  // namespace

void measure_step_costs(DeepseekV41& model,
                        const CacheView& cache,
                        const Clock& clock,
                        StepCosts* costs) {
    const ModelLimits& limits = model.limits();
    Device& device = model.backend().device();
    const int64_t now = clock.now_us();
    const Points verify = measure(StepCosts::sizes(std::min<int64_t>(limits.max_rows, 512)),
                                  clock,
                                  now + kTimeUs * 2 / 3,
                                  [&](int64_t rows) {
                                      model.forward(make_batch(rows, cache, limits), cache);
                                      device.stream().synchronize();
                                  });
    // Shorter blocks of one sequence, then whole blocks of several.
    const int64_t nextn = limits.ring_extra / 2 - 1;
    std::vector<int64_t> drafted;
    for (int64_t rows = 1; rows < nextn; ++rows) drafted.push_back(rows);
    for (const int64_t sequences : StepCosts::sizes(limits.max_draft_seqs)) {
        drafted.push_back(sequences * nextn);
    }
    const Points draft = measure(drafted, clock, now + kTimeUs, [&](int64_t rows) {
        DraftBatch batch;
        batch.block_size = static_cast<int>(std::min(rows, nextn));
        for (int64_t i = 0; i * nextn < rows; ++i) {
            batch.seqs.push_back({static_cast<int32_t>(i), 1, 0, 0});
        }
        model.draft(batch, cache);
        device.stream().synchronize();
    });
    for (const CacheView::Layer& layer : cache.layers) {
        for (const Tensor* t : {&layer.window_ring, &layer.kv_pool, &layer.key_pool, &layer.tail}) {
            if (*t) device.fill_zero(device.stream(), t->data, static_cast<size_t>(t->bytes()));
        }
    }
    device.stream().synchronize();
    costs->set(verify, draft);
}

}  // namespace deepinfer
