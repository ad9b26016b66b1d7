#include "server/inbox.h"

namespace deepinfer::server {
namespace {

/// Appends `next` to `last`: text, ids and log-probabilities joined, the state of the later one.
void join(Output* last, const Output& next) {
    Output joined = next;
    joined.text = last->text + next.text;
    joined.token_ids = std::move(last->token_ids);
    joined.token_ids.insert(joined.token_ids.end(), next.token_ids.begin(), next.token_ids.end());
    joined.logprobs = std::move(last->logprobs);
    joined.logprobs.insert(joined.logprobs.end(), next.logprobs.begin(), next.logprobs.end());
    if (!last->prompt_logprobs.empty()) joined.prompt_logprobs = std::move(last->prompt_logprobs);
    if (!last->constraint_notes.empty())
        joined.constraint_notes = std::move(last->constraint_notes);
    joined.nan_logits = joined.nan_logits || last->nan_logits;
    *last = std::move(joined);
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
