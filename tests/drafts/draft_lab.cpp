#include "drafts/draft_lab.h"

#include <algorithm>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "support/seeded_random.h"

namespace deepinfer::testing {

DraftLab::DraftLab(const std::string& checkpoint,
                   const std::string& backend,
                   int64_t max_draft_seqs) {
    static const bool registered = [] {
        register_ref_backends();
        register_cpu_backend();
        return true;
    }();
    (void)registered;
    BackendOptions options;
    options.num_threads = 2;
    ModelLimits limits;
    limits.max_rows = limits.max_logit_rows = kMaxRows;
    limits.max_seqs = kSlots;
    limits.max_positions = kBlocksEach * limits.block_tokens;
    limits.max_draft_seqs = max_draft_seqs;
    Result<LoadedModel> loaded =
        load_model(DEEPINFER_BINARY_DIR "/checkpoints/" + checkpoint, backend, options, limits);
    DI_CHECK_MSG(loaded.ok(), loaded.status().message());
    loaded_ = std::move(loaded).value();
    Result<CacheMemory> cache = CacheMemory::allocate(this->backend().device(),
                                                      model().cache_geometry(),
                                                      this->backend().ops().acc,
                                                      kSlots * kBlocksEach,
                                                      kSlots);
    DI_CHECK_MSG(cache.ok(), cache.status().message());
    cache_ = std::make_unique<CacheMemory>(std::move(cache).value());
}

std::vector<double> DraftLab::append(int slot,
                                     int position,
                                     const std::vector<int32_t>& history,
                                     const std::vector<int32_t>& ids,
                                     int chunk,
                                     bool draft_windows) {
    std::vector<int32_t> all(history.begin(), history.begin() + position);
    all.insert(all.end(), ids.begin(), ids.end());
    std::vector<double> logits;
    for (int begin = position; begin < static_cast<int>(all.size()); begin += chunk) {
        const int end = std::min<int>(begin + chunk, static_cast<int>(all.size()));
        SequenceChunk c;
        c.slot = slot;
        c.start_pos = begin;
        c.num_tokens = end - begin;
        for (int b = 0; b < kBlocksEach; ++b) c.block_ids.push_back(slot * kBlocksEach + b);
        const int64_t back = std::min<int64_t>(
            begin, std::max<int64_t>(0, model().config().engram_max_ngram_size - 1));
        c.lookback.assign(all.begin() + begin - back, all.begin() + begin);
        Batch batch;
        batch.seqs.push_back(c);
        batch.draft_windows = draft_windows;
        batch.token_ids.assign(all.begin() + begin, all.begin() + end);
        batch.logit_rows = {end - begin - 1};
        logits = acc_to_host(backend(), model().forward(batch, cache()));
    }
    return logits;
}

std::vector<Drafts> DraftLab::draft(const std::vector<DraftSequence>& seqs, int block_size) {
    DraftBatch batch;
    batch.seqs = seqs;
    batch.block_size = block_size;
    const size_t n = seqs.size();
    std::vector<Drafts> out(n);
    const auto choose = [&](int, const Tensor& logits, Tensor tokens) {
        for (size_t r = 0; r < n; ++r) {
            const auto row = static_cast<int64_t>(r);
            out[r].logits.push_back(acc_to_host(backend(), logits.rows(row, row + 1)));
        }
        backend().ops().argmax_rows(backend().device().stream(), logits, tokens);
    };
    const DraftResult result = model().draft(batch, cache(), choose);
    const std::vector<uint8_t> tokens = to_host(backend(), result.tokens);
    const std::vector<double> confidence = acc_to_host(backend(), result.confidence);
    for (size_t k = 0; k < static_cast<size_t>(result.tokens.dim(0)); ++k) {
        for (size_t r = 0; r < n; ++r) {
            out[r].tokens.push_back(reinterpret_cast<const int32_t*>(tokens.data())[k * n + r]);
            out[r].confidence.push_back(confidence[k * n + r]);
        }
    }
    return out;
}

std::vector<uint8_t> DraftLab::cache_bytes() {
    std::vector<uint8_t> all;
    for (const CacheView::Layer& l : cache().layers) {
        for (const Tensor& t : {l.window_ring, l.kv_pool, l.key_pool, l.tail}) {
            if (!t) continue;
            const std::vector<uint8_t> bytes = to_host(backend(), t);
            all.insert(all.end(), bytes.begin(), bytes.end());
        }
    }
    return all;
}

std::vector<int32_t> random_ids(const std::string& seed, int n, int64_t vocab) {
    SeededRandom random(seed);
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random.below(vocab)));
    return ids;
}

}  // namespace deepinfer::testing
