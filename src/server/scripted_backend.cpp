// A stand-in for the engine: every request gets the same tokens, one a step. To measure and to test
// the server without a model.
#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "deepinfer/recipe.h"
#include "deepinfer/server.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

class ScriptedBackend final : public InferenceBackend {
  public:
    ScriptedBackend(Tokenizer tokenizer, const ScriptedBackendOptions& options)
        : tokenizer_(std::move(tokenizer)), options_(options) {
        config_.max_model_len = options.max_model_len;
        config_.max_num_seqs = options.max_num_seqs;
        config_.max_queue = options.max_queue;
        info_.vocab_size = tokenizer_.vocab_size();
        info_.max_position_embeddings = options.max_model_len;
        info_.bos_token_id = tokenizer_.bos_id();
        info_.eos_token_id = tokenizer_.eos_id();
        if (options.image_tokens) {
            info_.takes_images = true;
            info_.image_token_id = tokenizer_.id_of(std::string(recipe::kImageToken));
        }
        script_ = tokenizer_.encode(options.text);
        thread_ = std::thread([this] { run(); });
    }

    ~ScriptedBackend() override {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }

    Result<uint64_t> submit(Request request, RequestCallbacks callbacks) override {
        DI_RETURN_IF_ERROR(request.sampling.validate(info_.vocab_size));
        Result<std::vector<int32_t>> expanded = expand_prompt(request);
        if (!expanded.ok()) return expanded.status();
        request.prompt_token_ids = std::move(expanded).value();
        request.images.clear();
        const int64_t prompt = static_cast<int64_t>(request.prompt_token_ids.size());
        const int64_t most = request.sampling.max_tokens.value_or(1);
        if (prompt < 1 || prompt + most > options_.max_model_len)
            return Status(StatusCode::kOutOfRange, "the prompt and max_tokens exceed the context");
        const std::lock_guard<std::mutex> lock(mutex_);
        const int64_t waiting = static_cast<int64_t>(waiting_.size());
        if (options_.max_queue > 0 && waiting >= options_.max_queue)
            return Status(StatusCode::kQueueFull,
                          std::to_string(waiting) + " requests wait already");
        Open open;
        open.number = next_++;
        open.submitted = Clock::now();
        open.parts.resize(static_cast<size_t>(request.sampling.n), Part(tokenizer_));
        open.request = std::move(request);
        open.callbacks = std::move(callbacks);
        waiting_.push_back(std::move(open));
        wake_.notify_one();
        return next_ - 1;
    }

    void abort(uint64_t request) override {
        const std::lock_guard<std::mutex> lock(mutex_);
        aborted_.push_back(request);
        wake_.notify_one();
    }

    Result<std::vector<int32_t>> expand_prompt(const Request& request) const override {
        std::vector<int32_t> out;
        size_t next = 0;
        for (const int32_t id : request.prompt_token_ids) {
            int64_t times = 1;
            if (info_.takes_images && id == info_.image_token_id) {
                if (next >= request.images.size())
                    return Status(StatusCode::kInvalidArgument,
                                  "the prompt has more image tokens than there are images");
                const Result<int64_t> tokens = options_.image_tokens(request.images[next++]);
                if (!tokens.ok()) return tokens.status();
                times = tokens.value();
            }
            out.insert(out.end(), static_cast<size_t>(times), id);
        }
        if (next != request.images.size())
            return Status(StatusCode::kInvalidArgument,
                          "the prompt has fewer image tokens than there are images");
        return out;
    }

    const Tokenizer& tokenizer() const override { return tokenizer_; }
    const EngineConfig& config() const override { return config_; }
    const ModelInfo& model_info() const override { return info_; }
    Result<int64_t> flush_prefix_cache() override { return int64_t{0}; }  // it has none
    EngineStats stats() const override {
        const std::lock_guard<std::mutex> lock(mutex_);
        EngineStats out = stats_;
        out.waiting = static_cast<int64_t>(waiting_.size());
        return out;
    }

  private:
    struct Part {
        explicit Part(const Tokenizer& tokenizer) : decoder(tokenizer) {}
        StreamDecoder decoder;
        int64_t num_tokens = 0;
        size_t word_at = 0;  // in `word`
        std::vector<int32_t> word;
        int64_t num_words = 0;
        bool ended = false;
    };
    struct Open {
        uint64_t number = 0;
        Request request;
        RequestCallbacks callbacks;
        std::vector<Part> parts;
        Clock::time_point submitted;
        double queue_ms = 0;
        double first_token_ms = 0;
        int64_t completion_tokens = 0;
        bool started = false;
    };

    static double ms_since(Clock::time_point t) {
        return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
    }

    /// The part's next id; the end of sequence after the script, or words for ever.
    int32_t next_token(Part* part) {
        const size_t at = static_cast<size_t>(part->num_tokens);
        if (at < script_.size()) return script_[at];
        if (options_.finish_with_eos && !script_.empty()) return info_.eos_token_id;
        if (part->word_at == part->word.size()) {
            part->word = tokenizer_.encode("w" + std::to_string(part->num_words++) + " ");
            part->word_at = 0;
        }
        return part->word[part->word_at++];
    }

    /// One token of one part. False: the part has ended.
    bool step(Open& open, size_t index) {
        Part& part = open.parts[index];
        const SamplingParams& sampling = open.request.sampling;
        const int32_t id = next_token(&part);
        const bool is_end = id == info_.eos_token_id;
        ++part.num_tokens;
        ++open.completion_tokens;
        Output o = output_of(open, index);
        o.token_ids = {id};
        if (!is_end) o.text = part.decoder.push(id).value();
        if (sampling.logprobs) {
            TokenLogprobs t;
            t.token_id = id;
            t.logprob = -0.5;
            for (int k = 0; k < *sampling.logprobs; ++k) t.top.emplace_back(id, -0.5 - k);
            o.logprobs.push_back(std::move(t));
        }
        if (is_end) {
            o.finish_reason = FinishReason::kStop;
            o.stop_token = id;
        } else if (part.num_tokens >= sampling.max_tokens.value_or(1)) {
            o.finish_reason = FinishReason::kLength;
        }
        if (o.finished() && !is_end) o.text += part.decoder.finish();
        return emit(open, index, std::move(o));
    }

    Output output_of(Open& open, size_t index) {
        if (open.first_token_ms == 0) open.first_token_ms = ms_since(open.submitted);
        Output o;
        o.request = open.number;
        o.id = open.request.id;
        o.index = static_cast<int>(index);
        o.usage.prompt_tokens = static_cast<int64_t>(open.request.prompt_token_ids.size());
        o.usage.cached_tokens = std::min(options_.cached_tokens, o.usage.prompt_tokens);
        o.usage.completion_tokens = open.completion_tokens;
        o.timing = {open.queue_ms, open.first_token_ms, ms_since(open.submitted)};
        return o;
    }

    bool emit(Open& open, size_t index, Output o) {
        const bool ended = o.finished();
        if (ended) open.parts[index].ended = true;
        o.last = std::all_of(
            open.parts.begin(), open.parts.end(), [](const Part& p) { return p.ended; });
        const bool goes_on = !open.callbacks.on_output || open.callbacks.on_output(o);
        if (ended || goes_on) return !ended;
        Output stop = output_of(open, index);
        stop.finish_reason = FinishReason::kStop;
        return emit(open, index, std::move(stop));
    }

    void end(Open& open, FinishReason reason) {
        for (size_t i = 0; i < open.parts.size(); ++i) {
            if (open.parts[i].ended) continue;
            Output o = output_of(open, i);
            o.finish_reason = reason;
            emit(open, i, std::move(o));
        }
    }

    void run() {
        std::list<Open> running;
        for (;;) {
            std::list<Open> dropped;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                if (running.empty())
                    wake_.wait(lock, [this] {
                        return stopping_ || !waiting_.empty() || !aborted_.empty();
                    });
                const auto is_aborted = [this](const Open& open) {
                    return stopping_ || std::find(aborted_.begin(), aborted_.end(), open.number) !=
                                            aborted_.end();
                };
                for (std::list<Open>* list : {&waiting_, &running}) {
                    for (auto at = list->begin(); at != list->end();) {
                        const auto next = std::next(at);
                        if (is_aborted(*at)) dropped.splice(dropped.end(), *list, at);
                        at = next;
                    }
                }
                aborted_.clear();
                while (!waiting_.empty() &&
                       static_cast<int64_t>(running.size()) < options_.max_num_seqs)
                    running.splice(running.end(), waiting_, waiting_.begin());
                stats_.running = static_cast<int64_t>(running.size());
                if (stopping_ && running.empty() && dropped.empty()) return;
            }
            for (Open& open : dropped) end(open, FinishReason::kAbort);
            if (options_.step_us > 0 && !running.empty())
                std::this_thread::sleep_for(std::chrono::microseconds(options_.step_us));
            int64_t tokens = 0;
            for (auto open = running.begin(); open != running.end();) {
                if (!open->started) {
                    open->started = true;
                    open->queue_ms = ms_since(open->submitted);
                }
                bool any = false;
                for (size_t i = 0; i < open->parts.size(); ++i) {
                    if (open->parts[i].ended) continue;
                    ++tokens;
                    if (step(*open, i)) any = true;
                }
                open = any ? std::next(open) : running.erase(open);
            }
            const std::lock_guard<std::mutex> lock(mutex_);
            ++stats_.steps;
            stats_.output_tokens += tokens;
            stats_.running = static_cast<int64_t>(running.size());
        }
    }

    const Tokenizer tokenizer_;
    const ScriptedBackendOptions options_;
    EngineConfig config_;
    ModelInfo info_;
    std::vector<int32_t> script_;

    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::list<Open> waiting_;
    std::vector<uint64_t> aborted_;
    uint64_t next_ = 1;
    bool stopping_ = false;
    EngineStats stats_;
    std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<InferenceBackend>> scripted_backend(const ScriptedBackendOptions& options) {
    Result<Tokenizer> tokenizer = Tokenizer::load(options.tokenizer_dir);
    if (!tokenizer.ok()) return tokenizer.status();
    return std::unique_ptr<InferenceBackend>(
        std::make_unique<ScriptedBackend>(std::move(tokenizer).value(), options));
}

}  // namespace deepinfer
