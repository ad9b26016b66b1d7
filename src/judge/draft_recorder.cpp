#include "judge/draft_recorder.h"

#include <algorithm>
#include <cstring>

namespace deepinfer {

DraftRecorder::DraftRecorder(LoneSequence& sequence,
                             int64_t num_steps,
                             std::vector<int32_t> logit_steps,
                             const NamedTensor* forced)
    : sequence_(sequence),
      num_steps_(num_steps),
      block_(sequence.model().config().dspark_block_size),
      logit_steps_(std::move(logit_steps)),
      forced_(forced) {}

void DraftRecorder::step(int64_t i, int32_t anchor) {
    Backend& backend = sequence_.model().backend();
    const bool keep = std::binary_search(logit_steps_.begin(), logit_steps_.end(), i);
    tokens_.push_back(anchor);
    const auto choose = [&](int k, const Tensor& logits, Tensor tokens) {
        const std::vector<double> row = acc_to_host(backend, logits);
        const auto own = static_cast<int32_t>(std::max_element(row.begin(), row.end()) -
                                              row.begin());  // the first maximum: smallest id
        tokens_.push_back(own);
        if (keep) logits_.insert(logits_.end(), row.begin(), row.end());
        int32_t next = own;
        if (forced_ != nullptr) {
            const int64_t at = i * (1 + block_) + 1 + k;
            std::memcpy(&next, forced_->bytes.data() + at * 4, sizeof next);
        }
        Stream& stream = backend.device().stream();
        backend.device().copy_to_device(stream, tokens.data, &next, sizeof next);
        stream.synchronize();
    };
    const DraftResult result = sequence_.draft(anchor, choose);
    for (double c : acc_to_host(backend, result.confidence)) {
        confidence_.push_back(static_cast<float>(c));
    }
}

void DraftRecorder::finish(TensorMap& out) const {
    out["draft.tokens"] = i32_tensor({num_steps_, 1 + block_}, tokens_);
    out["draft.confidence"] = f32_tensor({num_steps_, block_}, confidence_);
    const auto kept = static_cast<int64_t>(logit_steps_.size());
    if (kept == 0) return;
    out["draft.logit_steps"] = i32_tensor({kept}, logit_steps_);
    out["draft.logits"] =
        f32_tensor({kept, block_, sequence_.model().config().vocab_size}, logits_);
}

}  // namespace deepinfer
