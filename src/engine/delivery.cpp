#include "engine/delivery.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "base/check.h"

namespace deepinfer {

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::kNone:
            return "";
        case FinishReason::kStop:
            return "stop";
        case FinishReason::kLength:
            return "length";
        case FinishReason::kAbort:
            return "abort";
        case FinishReason::kEmptyMask:
            return "empty_mask";
        case FinishReason::kError:
            return "error";
    }
    return "";
}

void SubmittedRequest::set_number(uint64_t n) {
    number = n;
    for (SequenceSpec& spec : specs) spec.request = n;
}

SubmittedRequest make_submitted(Request request, RequestCallbacks callbacks, const Clock& clock) {
    SubmittedRequest r;
    r.id = std::move(request.id);
    r.sampling = std::make_shared<const SamplingParams>(std::move(request.sampling));
    r.prompt_tokens = static_cast<int64_t>(request.prompt_token_ids.size());
    r.submit_us = clock.now_us();
    r.callbacks = std::move(callbacks);
    uint64_t seed = 0;
    if (r.sampling->seq_seed) {
        seed = *r.sampling->seq_seed;
    } else {
        std::random_device device;
        seed = (static_cast<uint64_t>(device()) << 32) | device();
    }
    for (int i = 0; i < r.sampling->n; ++i) {
        SequenceSpec spec;
        spec.index = i;
        spec.prompt = request.prompt_token_ids;
        spec.sampling = r.sampling;
        spec.seed = seed;
        spec.priority = r.sampling->priority;
        spec.tenant = request.tenant;
        spec.cache_salt = request.cache_salt;
        r.specs.push_back(std::move(spec));
    }
    return r;
}

void Delivery::open(SubmittedRequest& request) {
    Open open;
    open.id = request.id;
    open.sampling = request.sampling;
    open.callbacks = std::move(request.callbacks);
    open.submit_us = request.submit_us;
    open.constraint_notes = std::move(request.constraint_notes);
    open.usage.prompt_tokens = request.prompt_tokens;
    for (size_t i = 0; i < request.specs.size(); ++i) {
        Part part;
        part.stream = std::make_unique<OutputStream>(tokenizer_, *request.sampling);
        open.parts.push_back(std::move(part));
    }
    if (request.sampling->prompt_logprobs) {
        open.prompt_logprobs.resize(static_cast<size_t>(request.prompt_tokens));
    }
    open_.emplace(request.number, std::move(open));
}

std::vector<uint64_t> Delivery::open_requests() const {
    std::vector<uint64_t> numbers;
    for (const auto& [number, open] : open_) numbers.push_back(number);
    return numbers;
}

Output Delivery::make_output(const Open& open, const Sequence& seq) const {
    Output o;
    o.request = seq.spec.request;
    o.id = open.id;
    o.index = seq.spec.index;
    o.seq_seed = seq.spec.seed;
    o.nan_logits = open.parts[static_cast<size_t>(seq.spec.index)].nan_logits;
    o.usage = open.usage;
    o.constraint_notes = open.constraint_notes;
    const int64_t now = clock_.now_us();
    const auto ms = [&](int64_t us) { return static_cast<double>(us - open.submit_us) / 1000.0; };
    o.timing.total_ms = ms(now);
    if (seq.first_scheduled_us >= 0) o.timing.queue_ms = ms(seq.first_scheduled_us);
    if (open.first_token_us >= 0) o.timing.first_token_ms = ms(open.first_token_us);
    return o;
}

bool Delivery::emit(Open& open, Output output) {
    const uint64_t number = output.request;
    if (output.finished()) {
        output.last = ++open.num_ended == open.parts.size();
        if (output.last) ++num_finished_;
    }
    const bool go_on = !open.callbacks.on_output || open.callbacks.on_output(output);
    if (output.last) open_.erase(number);
    return go_on;
}

void Delivery::refuse(uint64_t request, FinishReason reason, const Status& error) {
    const auto it = open_.find(request);
    DI_CHECK(it != open_.end());
    Open& open = it->second;
    const size_t parts = open.parts.size();
    for (size_t i = 0; i < parts; ++i) {  // the last one closes it
        Output o;
        o.request = request;
        o.id = open.id;
        o.index = static_cast<int>(i);
        o.usage = open.usage;
        o.timing.total_ms = static_cast<double>(clock_.now_us() - open.submit_us) / 1000.0;
        o.finish_reason = reason;
        o.error = error;
        emit(open, std::move(o));
    }
}

FinishReason Delivery::on_token(const Sequence& seq,
                                const SampledToken& sampled,
                                FinishReason reason) {
    const auto it = open_.find(seq.spec.request);
    DI_CHECK(it != open_.end());
    Open& open = it->second;
    Part& part = open.parts[static_cast<size_t>(seq.spec.index)];
    const int32_t token = seq.tokens.back();
    const bool stopped_by_id = reason == FinishReason::kStop;
    part.nan_logits = part.nan_logits || sampled.nan_logits;
    ++open.usage.completion_tokens;
    if (seq.spec.index == 0 && seq.cached_tokens > 0) open.usage.cached_tokens = seq.cached_tokens;
    if (open.first_token_us < 0) open.first_token_us = clock_.now_us();

    Output o = make_output(open, seq);
    o.token_ids.push_back(token);
    if (open.sampling->logprobs) o.logprobs.push_back(sampled.logprobs);
    open.constraint_notes.clear();  // told once
    if (seq.spec.index == 0) o.prompt_logprobs = std::exchange(open.prompt_logprobs, {});
    TokenConstraint* form = open.sampling->stop.empty() ? nullptr : seq.spec.constraint.get();
    o.text = part.stream->push(token, &reason, form == nullptr || form->complete());
    o.finish_reason = reason;
    o.stop_text = part.stream->stop_text();
    if (stopped_by_id) o.stop_token = token;
    if (emit(open, std::move(o)) || reason != FinishReason::kNone) return reason;

    // The consumer has seen enough.
    Output end = make_output(open, seq);
    end.finish_reason = FinishReason::kStop;
    emit(open, std::move(end));
    return FinishReason::kStop;
}

void Delivery::on_prefill(const Sequence& seq, const ChunkResult& result) {
    const auto it = open_.find(seq.spec.request);
    DI_CHECK(it != open_.end());
    Open& open = it->second;
    // Rows before the newest commit: the first of them tells about the token after it.
    const size_t count = result.prompt_logprobs.size();
    if (count > 0 && !open.prompt_logprobs.empty()) {
        const size_t rows_end = static_cast<size_t>(seq.computed) -
                                (!result.tokens.empty() || result.empty_mask ? 1 : 0);
        for (size_t i = 0; i < count; ++i) {
            open.prompt_logprobs[rows_end - count + i + 1] = result.prompt_logprobs[i];
        }
    }
    if (!open.callbacks.on_prefill) return;
    PrefillProgress progress;
    progress.request = seq.spec.request;
    progress.index = seq.spec.index;
    progress.rows_total = seq.prompt_len;
    progress.rows_done = std::min(seq.prompt_len, std::max(seq.computed, seq.write_from));
    open.callbacks.on_prefill(progress);
}

void Delivery::on_ended(const Sequence& seq, FinishReason reason) {
    close(seq, reason, {});
}

void Delivery::on_failed(const Sequence& seq, const Status& why) {
    close(seq, FinishReason::kError, why);
}

void Delivery::close(const Sequence& seq, FinishReason reason, Status error) {
    const auto it = open_.find(seq.spec.request);
    DI_CHECK(it != open_.end());
    Open& open = it->second;
    Output o = make_output(open, seq);
    o.text = open.parts[static_cast<size_t>(seq.spec.index)].stream->finish();
    o.finish_reason = reason;
    o.error = std::move(error);
    emit(open, std::move(o));
}

void join_output(const Output& o, Completion* completion) {
    CompletionChoice& choice = completion->choices[static_cast<size_t>(o.index)];
    choice.text += o.text;
    choice.token_ids.insert(choice.token_ids.end(), o.token_ids.begin(), o.token_ids.end());
    choice.logprobs.insert(choice.logprobs.end(), o.logprobs.begin(), o.logprobs.end());
    if (!o.prompt_logprobs.empty()) choice.prompt_logprobs = o.prompt_logprobs;
    choice.finish_reason = o.finish_reason;
    choice.stop_text = o.stop_text;
    choice.seq_seed = o.seq_seed;
    choice.nan_logits = choice.nan_logits || o.nan_logits;
    choice.error = o.error;
    completion->usage = o.usage;
    if (!o.constraint_notes.empty()) completion->constraint_notes = o.constraint_notes;
    completion->timing = o.timing;
}

CompletionCollector::CompletionCollector(int n, RequestCallbacks inner)
    : state_(std::make_shared<State>()) {
    state_->completion.choices.resize(static_cast<size_t>(n < 1 ? 1 : n));
    state_->inner = std::move(inner);
}

RequestCallbacks CompletionCollector::callbacks() {
    RequestCallbacks c;
    c.on_prefill = state_->inner.on_prefill;
    c.on_output = [state = state_](const Output& o) {
        const bool go_on = !state->inner.on_output || state->inner.on_output(o);
        const std::lock_guard<std::mutex> lock(state->mutex);
        join_output(o, &state->completion);
        if (o.last) {
            state->finished = true;
            state->done.notify_all();
        }
        return go_on;
    };
    return c;
}

bool CompletionCollector::wait_for_ms(int64_t ms) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    return state_->done.wait_for(
        lock, std::chrono::milliseconds(ms), [this] { return state_->finished; });
}

Completion CompletionCollector::take() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return std::move(state_->completion);
}

}  // namespace deepinfer
