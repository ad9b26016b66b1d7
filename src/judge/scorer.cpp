// Scorer: teacher-forced log-probabilities of token sequences.
#include <algorithm>
#include <cmath>

#include "deepinfer/judge.h"
#include "judge/sequence.h"

namespace deepinfer {

struct Scorer::Impl {
    Options options;
    LoadedModel loaded;
    std::unique_ptr<LoneSequence> sequence;
    int64_t capacity = 0;  // tokens that its caches hold
};

Scorer::Scorer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scorer::~Scorer() = default;
Scorer::Scorer(Scorer&&) noexcept = default;
Scorer& Scorer::operator=(Scorer&&) noexcept = default;

Result<Scorer> Scorer::create(const Options& options) {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    BackendOptions backend;
    backend.num_threads = options.threads;
    backend.isa = options.isa;
    ModelLimits limits;
    limits.max_rows = options.decode_path ? 1 : options.chunk;
    limits.max_logit_rows = limits.max_rows;
    limits.max_seqs = 1;
    Result<LoadedModel> loaded = load_model(options.model_dir, options.backend, backend, limits);
    if (!loaded.ok()) return loaded.status();
    impl->loaded = std::move(loaded).value();
    return Scorer(std::move(impl));
}

Result<std::vector<double>> Scorer::log_probs(const std::vector<int32_t>& ids) {
    DeepseekV41& model = *impl_->loaded.model;
    const int64_t vocab = model.config().vocab_size, context = model.limits().max_positions;
    if (static_cast<int64_t>(ids.size()) > context) {
        return Status(StatusCode::kOutOfRange,
                      "the sample has " + std::to_string(ids.size()) +
                          " tokens, the model's context is " + std::to_string(context));
    }
    for (int32_t id : ids) {
        if (id < 0 || id >= vocab)
            return Status(StatusCode::kInvalidArgument,
                          "token id " + std::to_string(id) + " is outside the vocabulary of " +
                              std::to_string(vocab));
    }
    std::vector<double> out;
    const auto length = static_cast<int64_t>(ids.size());
    if (impl_->sequence == nullptr || length > impl_->capacity) {
        // Caches grow with the longest sample seen, in doublings: a context of a million tokens is
        // not allocated for a file of short lines.
        const int64_t capacity = std::min(context, std::max<int64_t>(1024, 2 * length));
        impl_->sequence.reset();
        Result<std::unique_ptr<LoneSequence>> sequence = LoneSequence::create(model, capacity);
        if (!sequence.ok()) return sequence.status();
        impl_->sequence = std::move(sequence).value();
        impl_->capacity = capacity;
    }
    impl_->sequence->reset();
    const size_t chunk = static_cast<size_t>(model.limits().max_rows);
    // The last token is only predicted, never fed.
    for (size_t begin = 0; begin + 1 < ids.size(); begin += chunk) {
        const size_t end = std::min(ids.size() - 1, begin + chunk);
        std::vector<int32_t> rows(end - begin);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
        const Tensor logits = impl_->sequence->append(
            {ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(end)},
            rows);
        const std::vector<double> all = acc_to_host(model.backend(), logits);
        for (size_t i = 0; i < rows.size(); ++i) {
            const double* row = all.data() + i * static_cast<size_t>(vocab);
            const double best = *std::max_element(row, row + vocab);
            double sum = 0;
            for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - best);
            const double logprob = row[ids[begin + i + 1]] - best - std::log(sum);
            if (std::isnan(logprob)) {
                return Status(
                    StatusCode::kInternal,
                    "the logits at position " + std::to_string(begin + i) + " are not finite");
            }
            out.push_back(logprob);
        }
    }
    return out;
}

}  // namespace deepinfer
