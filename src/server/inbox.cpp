#include "server/inbox.h"

namespace deepinfer::server {
namespace {

/// Appends `next` to `last`: text, ids and log-probabilities joined, the state of the later one.
void join(Output* last, const Output& next) {
    // What grows is moved out and back: a copy each time would cost the square of a long answer.
    std::string text = std::move(last->text);
    std::vector<int32_t> token_ids = std::move(last->token_ids);
    std::vector<TokenLogprobs> logprobs = std::move(last->logprobs);
    std::vector<TokenLogprobs> prompt_logprobs = std::move(last->prompt_logprobs);
    std::vector<std::string> notes = std::move(last->constraint_notes);
    const bool nan_logits = last->nan_logits || next.nan_logits;
    text += next.text;
    token_ids.insert(token_ids.end(), next.token_ids.begin(), next.token_ids.end());
    logprobs.insert(logprobs.end(), next.logprobs.begin(), next.logprobs.end());
    *last = next;
    last->text = std::move(text);
    last->token_ids = std::move(token_ids);
    last->logprobs = std::move(logprobs);
    if (!prompt_logprobs.empty()) last->prompt_logprobs = std::move(prompt_logprobs);
    if (!notes.empty()) last->constraint_notes = std::move(notes);
    last->nan_logits = nan_logits;
}

}  // namespace

bool Inbox::push(int choice, const Output& output) {
    begun_ = true;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        Item* last = nullptr;
        if (items_.size() >= kMaxItems) {
            for (Item& item : items_)
                if (item.choice == choice) last = &item;
        }
        if (last != nullptr) {
            join(&last->output, output);
        } else {
            items_.push_back({choice, output});
        }
    }
    notify();
    return !unwanted_[static_cast<size_t>(choice)];
}

void Inbox::begin() {
    if (!begun_.exchange(true)) notify();
}

std::deque<Inbox::Item> Inbox::take() {
    woken_ = false;
    std::deque<Item> out;
    const std::lock_guard<std::mutex> lock(mutex_);
    out.swap(items_);
    return out;
}

}  // namespace deepinfer::server
