// Mailbox: where the engine's thread leaves outputs and Python picks them up.
//
//   Mailbox box(handle, /*notify=*/false);
//   box.submit(7, request, nullptr, /*stream=*/true);
//   for (Letter& letter : box.wait(0.05)) …          // deltas of key 7, in order
//
// With notify the mailbox has a file descriptor that is readable while letters lie in it, so that
// an asyncio loop can watch many requests without a thread for each.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/recipe.h"
#include "engine_handle.h"

namespace deepinfer::python {

/// A whole or partial answer of one sub-sequence, its text split by the recipe's parser where the
/// request came from a conversation.
struct Part {
    int index = 0;
    std::string text;
    std::string reasoning;
    std::vector<recipe::Delta> calls;  ///< kCall and kArguments
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    std::string finish_reason;  ///< "" while it goes on
    std::string stop_text;
    int32_t stop_token = -1;
    std::string error;
    uint64_t seq_seed = 0;
};

struct Letter {
    int64_t key = 0;
    std::vector<Part> parts;  ///< stream: the one that changed; whole: all n
    bool last = false;
    Usage usage;
    Timing timing;
    std::vector<std::string> constraint_notes;  ///< with the first delta, or the whole answer
};

class Mailbox {
  public:
    Mailbox(std::shared_ptr<EngineHandle> engine, bool notify);
    ~Mailbox();
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    /// Queues a request under the caller's own key (unused among the open ones). `stream`: a letter
    /// a delta, else one letter at the end. `parsing`: read the text as an answer to a
    /// conversation; then stop strings are the parser's, which does not search them in reasoning.
    Status submit(int64_t key, Request request, const recipe::ParsingOptions* parsing, bool stream);
    void abort(int64_t key);
    void abort_all();

    /// All letters there are; waits up to `timeout_s` for the first one.
    std::vector<Letter> wait(double timeout_s);

    int num_open() const;
    int64_t num_tokens() const;  ///< generated so far, by all requests
    int fileno() const;          ///< −1 without notify

  private:
    struct State;
    struct Reader;
    std::shared_ptr<EngineHandle> engine_;
    std::shared_ptr<State> state_;
};

}  // namespace deepinfer::python
