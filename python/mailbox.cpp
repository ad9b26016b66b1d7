#include "mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace deepinfer::python {

/// Outlives the mailbox as long as the engine holds a callback.
struct Mailbox::State {
    mutable std::mutex mutex;
    std::condition_variable arrived;
    std::deque<Letter> letters;
    std::map<int64_t, uint64_t> open;  ///< key → the engine's number, 0 until submit() knows it
    int64_t num_tokens = 0;
    int fd = -1;

    ~State() {
        if (fd >= 0) ::close(fd);
    }
    /// With the mutex held.
    void put(Letter letter) {
        letters.push_back(std::move(letter));
        arrived.notify_all();
        if (fd < 0) return;
        const uint64_t one = 1;
        // Fails only when the counter is full: then the descriptor is readable already.
        [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
    }
};

/// One request's callback. Runs on the engine's thread alone.
struct Mailbox::Reader {
    std::shared_ptr<State> state;
    int64_t key = 0;
    bool stream = false;
    std::vector<recipe::StreamParser> parsers;  ///< one per sub-sequence, or none
    std::vector<Part> whole;
    std::vector<std::string> constraint_notes;

    bool take(const Output& o);

  private:
    /// Returns false when the parser has seen the end of the answer.
    bool parse(const Output& o, Part* part);
};

bool Mailbox::Reader::parse(const Output& o, Part* part) {
    recipe::StreamParser& parser = parsers[static_cast<size_t>(o.index)];
    std::vector<recipe::Delta> deltas;
    parser.push(o.text, &deltas);
    if (o.finished()) {
        const bool length = o.finish_reason == FinishReason::kLength;
        parser.finish(length ? recipe::FinishReason::kLength : recipe::FinishReason::kStop,
                      &deltas);
        if (length || o.finish_reason == FinishReason::kStop) {
            part->finish_reason = recipe::finish_reason_name(parser.finish_reason());
            if (parser.stop_sequence()) part->stop_text = *parser.stop_sequence();
        }
    }
    part->text.clear();
    for (recipe::Delta& d : deltas) {
        switch (d.kind) {
            case recipe::Delta::Kind::kReasoning:
                part->reasoning += d.text;
                break;
            case recipe::Delta::Kind::kContent:
                part->text += d.text;
                break;
            case recipe::Delta::Kind::kCall:
            case recipe::Delta::Kind::kArguments:
                part->calls.push_back(std::move(d));
                break;
        }
    }
    return !parser.finished();
}

namespace {

template <typename T>
void append(std::vector<T>* to, const std::vector<T>& from) {
    to->insert(to->end(), from.begin(), from.end());
}

Part to_part(const Output& o) {
    Part p;
    p.index = o.index;
    p.text = o.text;
    p.token_ids = o.token_ids;
    p.logprobs = o.logprobs;
    p.prompt_logprobs = o.prompt_logprobs;
    p.finish_reason = finish_reason_name(o.finish_reason);
    p.stop_text = o.stop_text;
    p.stop_token = o.stop_token;
    p.error = o.error.message();
    p.seq_seed = o.seq_seed;
    return p;
}

void join(Part* to, Part&& from) {
    to->index = from.index;
    to->text += from.text;
    to->reasoning += from.reasoning;
    append(&to->calls, from.calls);
    append(&to->token_ids, from.token_ids);
    append(&to->logprobs, from.logprobs);
    if (!from.prompt_logprobs.empty()) to->prompt_logprobs = std::move(from.prompt_logprobs);
    to->finish_reason = std::move(from.finish_reason);
    to->stop_text = std::move(from.stop_text);
    to->stop_token = from.stop_token;
    to->error = std::move(from.error);
    to->seq_seed = from.seq_seed;
}

}  // namespace

bool Mailbox::Reader::take(const Output& o) {
    Part part = to_part(o);
    const bool go_on = parsers.empty() || parse(o, &part);
    const auto new_tokens = static_cast<int64_t>(part.token_ids.size());
    Letter letter;
    letter.key = key;
    letter.last = o.last;
    letter.usage = o.usage;
    letter.timing = o.timing;
    if (!o.constraint_notes.empty()) constraint_notes = o.constraint_notes;
    if (stream) {
        letter.parts.push_back(std::move(part));
        letter.constraint_notes = o.constraint_notes;
    } else {
        join(&whole[static_cast<size_t>(o.index)], std::move(part));
        if (o.last) letter.parts = std::move(whole);
        letter.constraint_notes = constraint_notes;
    }
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->num_tokens += new_tokens;
    if (o.last) state->open.erase(key);
    if (stream || o.last) state->put(std::move(letter));
    return go_on;
}

Mailbox::Mailbox(std::shared_ptr<EngineHandle> engine, bool notify)
    : engine_(std::move(engine)), state_(std::make_shared<State>()) {
    if (notify) state_->fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

Mailbox::~Mailbox() {
    abort_all();
}

Status Mailbox::submit(int64_t key,
                       Request request,
                       const recipe::ParsingOptions* parsing,
                       bool stream) {
    const std::shared_ptr<Engine> engine = engine_->get_or_null();
    if (!engine) return {StatusCode::kUnavailable, "the engine was closed"};
    auto reader = std::make_shared<Reader>();
    reader->state = state_;
    reader->key = key;
    reader->stream = stream;
    const int n = request.sampling.n < 1 ? 1 : request.sampling.n;
    reader->whole.resize(static_cast<size_t>(n));
    if (parsing != nullptr) {
        recipe::ParsingOptions options = *parsing;
        append(&options.stop, request.sampling.stop);
        request.sampling.stop.clear();
        for (int i = 0; i < n; ++i) reader->parsers.emplace_back(options);
    }
    {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        if (!state_->open.emplace(key, 0).second) {
            return {StatusCode::kInvalidArgument, "key " + std::to_string(key) + " is in use"};
        }
    }
    RequestCallbacks callbacks;
    callbacks.on_output = [reader](const Output& o) { return reader->take(o); };
    const Result<uint64_t> number = engine->submit(std::move(request), std::move(callbacks));
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto it = state_->open.find(key);
    if (!number.ok()) {
        if (it != state_->open.end()) state_->open.erase(it);
        return number.status();
    }
    if (it != state_->open.end()) it->second = number.value();  // else it has ended already
    return {};
}

void Mailbox::abort(int64_t key) {
    uint64_t number = 0;
    {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        const auto it = state_->open.find(key);
        if (it != state_->open.end()) number = it->second;
    }
    const std::shared_ptr<Engine> engine = engine_->get_or_null();
    if (number != 0 && engine) engine->abort(number);
}

void Mailbox::abort_all() {
    std::map<int64_t, uint64_t> open;
    {
        const std::lock_guard<std::mutex> lock(state_->mutex);
        open = state_->open;
    }
    const std::shared_ptr<Engine> engine = engine_->get_or_null();
    for (const auto& [key, number] : open) {
        if (number != 0 && engine) engine->abort(number);
    }
}

std::vector<Letter> Mailbox::wait(double timeout_s) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->arrived.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] {
        return !state_->letters.empty();
    });
    std::vector<Letter> letters(std::make_move_iterator(state_->letters.begin()),
                                std::make_move_iterator(state_->letters.end()));
    state_->letters.clear();
    if (state_->fd >= 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(state_->fd, &count, sizeof count);
    }
    return letters;
}

int Mailbox::num_open() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return static_cast<int>(state_->open.size());
}

int64_t Mailbox::num_tokens() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->num_tokens;
}

int Mailbox::fileno() const {
    return state_->fd;
}

}  // namespace deepinfer::python
