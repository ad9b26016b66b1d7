#include "engine/output_stream.h"

namespace deepinfer {

OutputStream::OutputStream(const Tokenizer& tokenizer, const SamplingParams& sampling)
    : stops_(sampling.stop),
      min_tokens_(sampling.min_tokens),
      decoder_(tokenizer),
      matcher_(sampling.stop, sampling.include_stop_str) {}

std::string OutputStream::push(int32_t token, FinishReason* reason, bool may_stop) {
    std::string text;
    ++num_tokens_;
    if (*reason != FinishReason::kStop) {
        // An id that the model has and the tokenizer lacks (padding of the vocabulary) is no text.
        const Result<std::string> piece = decoder_.push(token);
        if (piece.ok()) text = matcher_.push(piece.value(), may_stop && enough());
        if (matcher_.stopped()) {
            stop_text_ = stops_[static_cast<size_t>(matcher_.matched_stop())];
            *reason = FinishReason::kStop;
            return text;
        }
    }
    if (*reason != FinishReason::kNone) text += finish();
    return text;
}

std::string OutputStream::finish() {
    std::string text = matcher_.push(decoder_.finish(), enough());
    if (!matcher_.stopped()) text += matcher_.flush();
    return text;
}

}  // namespace deepinfer
