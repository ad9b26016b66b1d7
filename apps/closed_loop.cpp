#include "closed_loop.h"

#include "command.h"

namespace deepinfer::cli {

PromptMaker::PromptMaker(const Engine& engine, uint64_t seed)
    : bos_(engine.model_info().bos_token_id), random_(seed) {
    const Tokenizer& tokenizer = engine.tokenizer();
    for (int32_t id = 0; id < tokenizer.vocab_size() && id < engine.model_info().vocab_size; ++id) {
        if (!tokenizer.is_added(id)) ids_.push_back(id);
    }
}

std::vector<int32_t> PromptMaker::make(int64_t len) {
    std::vector<int32_t> prompt{bos_};
    extend(&prompt, len);
    return prompt;
}

void PromptMaker::extend(std::vector<int32_t>* prompt, int64_t len) {
    // Not uniform_int_distribution: its numbers differ between standard libraries.
    while (static_cast<int64_t>(prompt->size()) < len)
        prompt->push_back(ids_[random_() % ids_.size()]);
}

Tally ClosedLoop::run(std::vector<std::vector<int32_t>> prompts) {
    tally_ = Tally{};
    tally_.begin = tally_.end = now();
    for (std::vector<int32_t>& prompt : prompts) {
        if (!wait_until_below(batch_) || !submit(std::move(prompt))) break;
    }
    wait_until_below(1);
    const std::lock_guard<std::mutex> lock(mutex_);
    return tally_;
}

bool ClosedLoop::submit(std::vector<int32_t> prompt) {
    Request request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling = sampling_;
    auto one = std::make_shared<One>();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++in_flight_;
    }
    one->submitted = now();
    RequestCallbacks callbacks;
    callbacks.on_output = [this, one](const Output& o) { return on_output(one.get(), o); };
    const Result<uint64_t> number = engine_.submit(std::move(request), std::move(callbacks));
    if (number.ok()) return true;
    const std::lock_guard<std::mutex> lock(mutex_);
    --in_flight_;
    tally_.error = number.status();
    return false;
}

bool ClosedLoop::on_output(One* one, const Output& o) {
    const SteadyTime at = now();
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t count = o.token_ids.size();
    if (count > 0) {
        if (!one->any) tally_.ttft_ms.add(ms_between(one->submitted, at));
        // Tokens that one step commits share its time.
        for (size_t i = 0; one->any && i < count; ++i)
            tally_.itl_ms.add(ms_between(one->last, at) / static_cast<double>(count));
        one->any = true;
        one->last = at;
    }
    if (!o.error.ok()) tally_.error = o.error;
    if (o.last) {
        tally_.e2e_ms.add(ms_between(one->submitted, at));
        tally_.prompt_tokens += o.usage.prompt_tokens;
        tally_.cached_tokens += o.usage.cached_tokens;
        tally_.output_tokens += o.usage.completion_tokens;
        tally_.end = at;
        --in_flight_;
        changed_.notify_all();
    }
    return !interrupted;
}

bool ClosedLoop::wait_until_below(int64_t limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (in_flight_ >= limit) changed_.wait_for(lock, std::chrono::milliseconds(50));
    return !interrupted && tally_.error.ok();
}

}  // namespace deepinfer::cli
