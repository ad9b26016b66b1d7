#include "vision/multimodal_processor.h"

#include <algorithm>
#include <string>
#include <utility>

namespace deepinfer {

/// Outlives the processor while leases do.
struct MultimodalProcessor::Shared {
    std::mutex mutex;
    std::condition_variable changed;  ///< bytes came back, work arrived, or it is time to stop
    int64_t used = 0;                 ///< bytes under lease
};

MultimodalProcessor::MultimodalProcessor(const Options& options)
    : options_(options), shared_(std::make_shared<Shared>()) {}

Result<std::unique_ptr<MultimodalProcessor>> MultimodalProcessor::start(const Options& options) {
    if (options.workers < 1 || options.max_bytes < 1 || options.timeout_ms < 1) {
        return Status(StatusCode::kInvalidArgument,
                      "picture workers, their bytes and their time must be at least 1");
    }
    std::unique_ptr<MultimodalProcessor> p(new MultimodalProcessor(options));
    if (options.processes) {
        Result<std::unique_ptr<WorkerZygote>> zygote = WorkerZygote::start(options.config);
        if (!zygote.ok()) return zygote.status();
        p->zygote_ = std::move(zygote).value();
    }
    const auto n = static_cast<size_t>(options.workers);
    p->workers_.resize(n);
    p->pids_.resize(n, 0);
    for (size_t i = 0; i < n; ++i) {
        // Processes are forked when there is a first picture for them.
        if (!options.processes) p->workers_[i] = make_thread_worker(options.config);
    }
    MultimodalProcessor* raw = p.get();
    for (size_t i = 0; i < n; ++i) p->threads_.emplace_back([raw, i] { raw->work(i); });
    return p;
}

MultimodalProcessor::~MultimodalProcessor() {
    // Requests end outside of the lock: their leases take it.
    std::deque<std::shared_ptr<Active>> queue;
    std::map<uint64_t, std::shared_ptr<Active>> active;
    {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        stopping_ = true;
        queue.swap(queue_);
        active.swap(active_);
        for (const auto& [request, a] : active) a->failed = true;
    }
    shared_->changed.notify_all();
    for (std::thread& t : threads_) t.join();
}

int64_t MultimodalProcessor::bytes_of(const std::vector<ImageInput>& images,
                                      const std::vector<ImagePlan>& plans) const {
    const int64_t p = options_.config.patch_size;
    int64_t bytes = 0;
    for (const ImageInput& i : images)
        bytes += static_cast<int64_t>(i.encoded.size() + i.rgb.size());
    for (const ImagePlan& plan : plans) bytes += plan.num_patches() * 3 * p * p;
    return bytes;
}

Status MultimodalProcessor::check_fits(const std::vector<ImageInput>& images,
                                       const std::vector<ImagePlan>& plans) const {
    const int64_t bytes = bytes_of(images, plans);
    if (bytes <= options_.max_bytes) return {};
    return Status(StatusCode::kOutOfRange,
                  "the pictures take " + std::to_string(bytes) + " bytes of memory, at most " +
                      std::to_string(options_.max_bytes) + " may be in flight");
}

void MultimodalProcessor::submit(Job job) {
    auto active = std::make_shared<Active>();
    active->bytes = bytes_of(job.images, job.plans);
    active->result.images.resize(job.images.size());
    active->job = std::move(job);
    {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        active_[active->job.request] = active;
        queue_.push_back(active);
        ++stats_.waiting;
    }
    shared_->changed.notify_all();
}

void MultimodalProcessor::cancel(uint64_t request) {
    std::shared_ptr<Active> gone;  // ends outside of the lock
    {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        const auto it = active_.find(request);
        if (it == active_.end()) return;
        gone = it->second;
        active_.erase(it);
        forget_locked(gone);
    }
    shared_->changed.notify_all();  // the next in line may fit
}

/// Nothing more of it is taken up, and nobody hears of it again.
void MultimodalProcessor::forget_locked(const std::shared_ptr<Active>& active) {
    active->failed = true;
    const auto at = std::find(queue_.begin(), queue_.end(), active);
    if (at == queue_.end()) return;
    if (active->next == 0) --stats_.waiting;
    queue_.erase(at);
}

std::shared_ptr<MultimodalProcessor::Active> MultimodalProcessor::next_locked(size_t* image) {
    if (queue_.empty()) return nullptr;
    const std::shared_ptr<Active> first = queue_.front();
    if (first->next == 0) {
        // Taken up as a whole: a request never waits for bytes that it holds itself.
        if (shared_->used + first->bytes > options_.max_bytes) return nullptr;
        shared_->used += first->bytes;
        first->result.lease =
            std::shared_ptr<void>(nullptr, [shared = shared_, bytes = first->bytes](void*) {
                {
                    const std::lock_guard<std::mutex> lock(shared->mutex);
                    shared->used -= bytes;
                }
                shared->changed.notify_all();
            });
        --stats_.waiting;
    }
    *image = first->next++;
    if (first->next == first->job.images.size()) queue_.pop_front();
    return first;
}

void MultimodalProcessor::work(size_t index) {
    yield_to_the_engine();
    for (;;) {
        std::shared_ptr<Active> active;
        size_t image = 0;
        {
            std::unique_lock<std::mutex> lock(shared_->mutex);
            shared_->changed.wait(lock, [&] {
                if (!stopping_) active = next_locked(&image);
                return stopping_ || active != nullptr;
            });
            if (stopping_) return;
        }
        finish(active, image, prepare(index, *active, image));
    }
}

/// A worker for this thread, if it has none or lost it.
Status MultimodalProcessor::refresh_worker(size_t index) {
    if (workers_[index] != nullptr && !workers_[index]->dead()) return {};
    Result<std::unique_ptr<PictureWorker>> fresh =
        make_process_worker(*zygote_, options_.config, options_.timeout_ms);
    if (!fresh.ok()) return fresh.status();
    workers_[index] = std::move(fresh).value();
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    pids_[index] = workers_[index]->pid();
    return {};
}

Result<PreparedImage> MultimodalProcessor::prepare(size_t index,
                                                   const Active& active,
                                                   size_t image) {
    PreparedImage out;
    out.plan = active.job.plans[image];
    DI_RETURN_IF_ERROR(refresh_worker(index));
    const Status status = workers_[index]->run(
        {&active.job.images[image], out.plan, active.job.max_side, &out.patches});
    if (workers_[index]->dead()) {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        ++stats_.crashes;
    }
    if (!status.ok()) {
        return Status(status.code(),
                      "picture " + std::to_string(image + 1) + ": " + status.message());
    }
    out.digest = image_digest(out.patches, out.plan, options_.config);
    return out;
}

void MultimodalProcessor::finish(const std::shared_ptr<Active>& active,
                                 size_t image,
                                 Result<PreparedImage> r) {
    std::function<void(Result<PreparedImages>)> done;
    Result<PreparedImages> answer = Status(StatusCode::kInternal, "cancelled");
    {
        const std::lock_guard<std::mutex> lock(shared_->mutex);
        ++active->finished;
        if (!active->failed) {
            // The bytes of the file are not needed again.
            ImageInput& input = active->job.images[image];
            input.encoded.clear();
            input.encoded.shrink_to_fit();
            input.rgb.clear();
            input.rgb.shrink_to_fit();
            if (r.ok()) {
                ++stats_.prepared;
                active->result.images[image] =
                    std::make_shared<const PreparedImage>(std::move(r).value());
                if (active->finished == active->job.images.size()) {
                    answer = std::move(active->result);
                    done = std::move(active->job.done);
                    active_.erase(active->job.request);
                }
            } else {
                ++stats_.failed;
                forget_locked(active);
                answer = r.status();
                done = std::move(active->job.done);
                active_.erase(active->job.request);
            }
        }
    }
    if (done) done(std::move(answer));
    shared_->changed.notify_all();
}

MultimodalProcessor::Stats MultimodalProcessor::stats() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    Stats s = stats_;
    s.bytes_in_flight = shared_->used;
    return s;
}

std::vector<pid_t> MultimodalProcessor::worker_pids() const {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    return pids_;
}

}  // namespace deepinfer
