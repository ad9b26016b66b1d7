// run_batch: reads lines, keeps the engine busy, writes answers as they come.
//
// The engine's thread only hands finished requests over; reading, rendering, parsing of JSON,
// formatting and the disk stay on the caller's thread.
#include "engine/batch_runner.h"

#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "deepinfer/json_guard.h"
#include "engine/batch_file.h"
#include "engine/delivery.h"

namespace deepinfer {
namespace {

/// One request on its way. Shared with the callbacks, which may outlive a cancelled run.
struct Running {
    BatchJob job;
    int64_t repeat_line = 0;  // input line of a repeated id, else 0
    Completion completion;
    std::vector<std::unique_ptr<OutputParser>> parsers;
    const BatchReader* reader = nullptr;  // of a foreign line form
};

/// What the engine's thread and the runner share.
struct Shared {
    std::mutex mutex;
    std::condition_variable ready;
    std::vector<std::shared_ptr<Running>> finished;
    int64_t completion_tokens = 0;
};

class Runner {
  public:
    Runner(Engine& engine, const BatchOptions& options) : engine_(engine), options_(options) {}

    Result<BatchProgress> run(const std::string& in_path, const std::string& out_path);

  private:
    bool cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
    const BatchReader* reader_of(const std::string& line, std::string* id) const;
    void take_line(const std::string& line);
    void submit(BatchJob job, const BatchReader* reader, int64_t repeat_line);
    void refuse(const std::string& id,
                const Status& error,
                const BatchReader* reader,
                int64_t repeat_line);
    Status collect(int64_t most_in_flight, bool stop_on_cancel);
    void report(bool force);

    Engine& engine_;
    const BatchOptions& options_;
    std::unique_ptr<BatchFile> file_;
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
    std::map<const Running*, uint64_t> in_flight_;
    std::vector<std::string> pending_;  ///< answer lines to write
    BatchProgress progress_;
    int64_t line_number_ = 0;
    std::set<std::string> seen_ids_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    double last_report_s_ = -1;
};

/// Why a request as a whole has no answer: an error of the engine in any of its sub-sequences.
Status failure_of(const Completion& completion) {
    for (const CompletionChoice& c : completion.choices) {
        if (c.finish_reason == FinishReason::kError) return c.error;
        if (c.finish_reason == FinishReason::kEmptyMask && c.nan_logits) {
            return {StatusCode::kInternal, "the logits are not finite: the weights hold NaN"};
        }
    }
    return {};
}

std::string answer_of(const Running& r) {
    std::vector<ParsedOutput> parsed;
    for (size_t i = 0; i < r.completion.choices.size(); ++i) {
        const CompletionChoice& choice = r.completion.choices[i];
        ParsedOutput p;
        if (i < r.parsers.size()) {
            p = r.parsers[i]->finish(choice.finish_reason);
        } else {
            p.text = choice.text;
        }
        if (p.finish_reason.empty()) p.finish_reason = finish_reason_name(choice.finish_reason);
        parsed.push_back(std::move(p));
    }
    return r.job.format(r.completion, parsed);
}

const BatchReader* Runner::reader_of(const std::string& line, std::string* id) const {
    if (options_.readers.empty()) return nullptr;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object()) return nullptr;
    for (const BatchReader& reader : options_.readers) {
        if (!object.contains(reader.id_member)) continue;
        if (object[reader.id_member].is_string()) *id = object[reader.id_member].get<std::string>();
        return &reader;
    }
    return nullptr;
}

/// An answer to a repeated id also says which line it answers: answers come in order of completion,
/// so their count alone would not tell a resumed run which of the lines is left.
std::string with_line(std::string answer, int64_t repeat_line) {
    if (repeat_line == 0) return answer;
    answer.pop_back();
    return answer + ",\"line\":" + std::to_string(repeat_line) + "}";
}

void Runner::refuse(const std::string& id,
                    const Status& error,
                    const BatchReader* reader,
                    int64_t repeat_line) {
    pending_.push_back(with_line(reader != nullptr && reader->format_error
                                     ? reader->format_error(id, error)
                                     : format_native_error(id, error),
                                 repeat_line));
    ++progress_.lines_failed;
    ++progress_.lines_done;
}

void Runner::submit(BatchJob job, const BatchReader* reader, int64_t repeat_line) {
    auto running = std::make_shared<Running>();
    running->job = std::move(job);
    running->repeat_line = repeat_line;
    running->reader = reader;
    const int n = running->job.request.sampling.n;
    running->completion.choices.resize(static_cast<size_t>(n < 1 ? 1 : n));
    if (running->job.make_parser) {
        for (int i = 0; i < n; ++i) running->parsers.push_back(running->job.make_parser());
    }
    RequestCallbacks callbacks;
    callbacks.on_output = [running, shared = shared_](const Output& o) {
        const bool go_on = running->parsers.empty() || o.text.empty() ||
                           running->parsers[static_cast<size_t>(o.index)]->feed(o.text);
        join_output(o, &running->completion);
        const std::lock_guard<std::mutex> lock(shared->mutex);
        shared->completion_tokens += static_cast<int64_t>(o.token_ids.size());
        if (o.last) {
            shared->finished.push_back(running);
            shared->ready.notify_one();
        }
        return go_on;
    };
    const std::string id = running->job.id;
    for (;;) {
        const Result<uint64_t> number = engine_.submit(running->job.request, callbacks);
        if (number.ok()) {
            in_flight_[running.get()] = number.value();
            return;
        }
        if (number.status().code() != StatusCode::kQueueFull || in_flight_.empty()) {
            refuse(id, number.status(), reader, repeat_line);
            return;
        }
        const Status status = collect(static_cast<int64_t>(in_flight_.size()) - 1, true);
        if (!status.ok() || cancelled()) return;  // the caller looks at both again
    }
}

void Runner::take_line(const std::string& line) {
    ++line_number_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) return;
    std::string id = "line-" + std::to_string(line_number_);
    if (json_nests_deeper(line)) {
        const int64_t repeated = seen_ids_.insert(id).second ? 0 : line_number_;
        if (file_->has_answer(id, repeated)) return;
        refuse(id,
               Status(StatusCode::kInvalidArgument,
                      "the line nests deeper than " + std::to_string(kMaxJsonDepth)),
               nullptr,
               repeated);
        return;
    }
    const BatchReader* reader = reader_of(line, &id);
    // An earlier answer is recognised by the id alone, before anything is rendered.
    if (reader == nullptr) {
        const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
        const bool named = object.is_object() && object.contains("id") && object["id"].is_string();
        if (named) id = object["id"].get<std::string>();
    }
    const int64_t repeat_line = seen_ids_.insert(id).second ? 0 : line_number_;
    if (file_->has_answer(id, repeat_line)) return;
    Result<BatchJob> job = reader != nullptr
                               ? reader->read(line)
                               : read_native_line(engine_, line, id, options_.render, &id);
    if (!job.ok()) {
        refuse(id, job.status(), reader, repeat_line);
        return;
    }
    submit(std::move(job).value(), reader, repeat_line);
}

/// Writes what has finished; waits until at most `most_in_flight` requests run.
Status Runner::collect(int64_t most_in_flight, bool stop_on_cancel) {
    for (;;) {
        std::vector<std::shared_ptr<Running>> finished;
        {
            std::unique_lock<std::mutex> lock(shared_->mutex);
            const bool full = static_cast<int64_t>(in_flight_.size()) > most_in_flight;
            if (full && shared_->finished.empty()) {
                shared_->ready.wait_for(lock, std::chrono::milliseconds(50));
            }
            finished.swap(shared_->finished);
            progress_.completion_tokens = shared_->completion_tokens;
        }
        for (const std::shared_ptr<Running>& r : finished) {
            in_flight_.erase(r.get());
            bool aborted = false;
            for (const CompletionChoice& c : r->completion.choices) {
                aborted = aborted || c.finish_reason == FinishReason::kAbort;
            }
            if (aborted) continue;  // not answered: the next run does it
            const Status failure = failure_of(r->completion);
            if (!failure.ok()) {
                refuse(r->job.id, failure, r->reader, r->repeat_line);
                continue;
            }
            pending_.push_back(with_line(answer_of(*r), r->repeat_line));
            progress_.prompt_tokens += r->completion.usage.prompt_tokens;
            ++progress_.lines_done;
        }
        if (!pending_.empty()) {
            DI_RETURN_IF_ERROR(file_->append(pending_));
            pending_.clear();
        }
        report(false);
        if (static_cast<int64_t>(in_flight_.size()) <= most_in_flight) return {};
        if (stop_on_cancel && cancelled()) return {};
    }
}

void Runner::report(bool force) {
    progress_.elapsed_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    if (!options_.on_progress || (!force && progress_.elapsed_s < last_report_s_ + 0.1)) return;
    last_report_s_ = progress_.elapsed_s;
    options_.on_progress(progress_);
}

Result<BatchProgress> Runner::run(const std::string& in_path, const std::string& out_path) {
    // stat before open: opening a FIFO without a writer would wait for ever.
    struct stat in_stat {};
    if (::stat(in_path.c_str(), &in_stat) != 0) {
        return Status(StatusCode::kNotFound, in_path + ": cannot be read");
    }
    if (!S_ISREG(in_stat.st_mode)) {
        return Status(
            StatusCode::kInvalidFile,
            in_path + " is no regular file; a batch is read twice, and again after a crash");
    }
    std::ifstream in(in_path, std::ios::binary);
    if (!in) return Status(StatusCode::kNotFound, in_path + ": cannot be read");
    struct stat out_stat {};
    if (::stat(out_path.c_str(), &out_stat) == 0 && in_stat.st_ino == out_stat.st_ino &&
        in_stat.st_dev == out_stat.st_dev) {
        return Status(StatusCode::kInvalidArgument, out_path + ": input and output are one file");
    }
    std::vector<std::string> id_members = {"id"};
    for (const BatchReader& r : options_.readers)
        id_members.insert(id_members.begin(), r.id_member);
    auto file = BatchFile::open(out_path, id_members);
    if (!file.ok()) return file.status();
    file_ = std::move(file).value();
    progress_.lines_resumed = progress_.lines_done = file_->num_answers();

    std::string line;
    while (std::getline(in, line)) {
        if (line.find_first_not_of(" \t\r") != std::string::npos) ++progress_.lines_total;
    }
    in.clear();
    in.seekg(0);
    report(true);

    const int64_t most =
        options_.max_in_flight > 0 ? options_.max_in_flight : 4 * engine_.config().max_num_seqs;
    Status status;
    while (status.ok() && !cancelled() && std::getline(in, line)) {
        take_line(line);
        status = collect(most - 1, true);
    }
    if (status.ok() && !cancelled()) status = collect(0, true);
    if (!status.ok() || cancelled()) {
        for (const auto& [running, number] : in_flight_) engine_.abort(number);
        const Status rest = collect(0, false);  // the last Outputs come, nothing is left behind
        if (status.ok()) status = rest;
    }
    report(true);
    if (!status.ok()) return status;
    if (cancelled() && progress_.lines_done < progress_.lines_total) {
        return Status(StatusCode::kCancelled,
                      "cancelled after " + std::to_string(progress_.lines_done) + " of " +
                          std::to_string(progress_.lines_total) + " lines");
    }
    return progress_;
}

}  // namespace

Result<BatchProgress> run_batch(Engine& engine,
                                const std::string& in_path,
                                const std::string& out_path,
                                const BatchOptions& options) {
    return Runner(engine, options).run(in_path, out_path);
}

}  // namespace deepinfer
