// OutputStream: the tokens of one sub-sequence become text: characters are never cut, text that may
// begin a stop string waits, a stop string ends the sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "deepinfer/request.h"
#include "deepinfer/tokenizer.h"
#include "sampler/stop_matcher.h"

namespace deepinfer {

/// One thread at a time.
class OutputStream {
  public:
    OutputStream(const Tokenizer& tokenizer, const SamplingParams& sampling);

    /// Text that the token settled. `reason` is why the token ends the sequence, if it does; a stop
    /// string found here makes it kStop. A token that is itself the stop (end of sequence, stop id)
    /// adds no text. With an end everything held is released.
    /// may_stop false: stop strings are ordinary text here (the form of the output is incomplete).
    std::string push(int32_t token, FinishReason* reason, bool may_stop = true);

    /// The sequence ends without a token: releases what is held.
    std::string finish();

    /// The stop string that ended it, or "".
    const std::string& stop_text() const { return stop_text_; }

  private:
    bool enough() const { return num_tokens_ >= min_tokens_; }

    std::vector<std::string> stops_;
    int64_t min_tokens_;  ///< no stop string ends the text before this many
    int64_t num_tokens_ = 0;
    StreamDecoder decoder_;
    StopMatcher matcher_;
    std::string stop_text_;
};

}  // namespace deepinfer
