#include "vision/multimodal_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <thread>

#include "support/golden_file.h"
#include "support/vision_geometry.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

const auto nano = testing::nano_vision;

ImageInput file(const std::string& name) {
    std::ifstream f(testing::data_path("pictures/" + name), std::ios::binary);
    ImageInput input;
    input.encoded.assign(std::istreambuf_iterator<char>(f), {});
    return input;
}
ImageInput pixels(int64_t w, int64_t h) {
    ImageInput input;
    input.width = w;
    input.height = h;
    for (int64_t i = 0; i < w * h * 3; ++i) input.rgb.push_back(static_cast<uint8_t>(i * 7));
    return input;
}

MultimodalProcessor::Options options(int workers, bool processes, int64_t max_bytes = 1 << 30) {
    MultimodalProcessor::Options o;
    o.config = nano();
    o.workers = workers;
    o.processes = processes;
    o.max_bytes = max_bytes;
    return o;
}

/// A processor and the answers of its requests.
class Pool {
  public:
    explicit Pool(const MultimodalProcessor::Options& o) {
        Result<std::unique_ptr<MultimodalProcessor>> p = MultimodalProcessor::start(o);
        if (!p.ok()) std::abort();
        processor_ = std::move(p).value();
    }
    void submit(uint64_t request, std::vector<ImageInput> images) {
        MultimodalProcessor::Job job;
        job.request = request;
        job.max_side = 8192;
        for (const ImageInput& i : images) job.plans.push_back(plan_input(i, nano(), 8192).value());
        job.images = std::move(images);
        job.done = [this, request](Result<PreparedImages> r) {
            const std::lock_guard<std::mutex> lock(mutex_);
            answers_.emplace(request, std::move(r));
            changed_.notify_all();
        };
        processor_->submit(std::move(job));
    }
    /// Waits for `count` answers in all.
    bool wait(size_t count) {
        std::unique_lock<std::mutex> lock(mutex_);
        return changed_.wait_for(
            lock, std::chrono::seconds(60), [&] { return answers_.size() >= count; });
    }
    Result<PreparedImages> take(uint64_t request) {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto node = answers_.extract(request);
        return std::move(node.mapped());
    }
    bool has(uint64_t request) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return answers_.count(request) > 0;
    }
    MultimodalProcessor& operator*() { return *processor_; }
    MultimodalProcessor* operator->() { return processor_.get(); }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint64_t, Result<PreparedImages>> answers_;
    std::unique_ptr<MultimodalProcessor> processor_;  // ends first: its threads answer
};

TEST(MultimodalProcessor, ProcessesAndThreadsGiveThePicturesOfOneThread) {
    for (const bool processes : {true, false}) {
        Pool pool(options(2, processes));
        const std::vector<ImageInput> inputs = {
            file("rgba.png"), file("photo_420.jpg"), pixels(40, 70), file("moving.webp")};
        pool.submit(1, inputs);
        ASSERT_TRUE(pool.wait(1));
        const Result<PreparedImages> got = pool.take(1);
        ASSERT_TRUE(got.ok()) << got.status().message();
        for (size_t i = 0; i < inputs.size(); ++i) {
            const Result<PreparedImage> want = preprocess_image(inputs[i], nano(), 8192);
            EXPECT_EQ(got->images[i]->patches, want->patches);
            EXPECT_EQ(got->images[i]->digest, want->digest);
        }
        EXPECT_EQ(pool->stats().prepared, 4);
        // A worker that found nothing left to do may not have started its process.
        const std::vector<pid_t> pids = pool->worker_pids();
        EXPECT_EQ(std::any_of(pids.begin(), pids.end(), [](pid_t pid) { return pid > 0; }),
                  processes);
    }
}

TEST(MultimodalProcessor, BrokenPicturesFailTheirRequestAlone) {
    for (const bool processes : {true, false}) {
#if defined(__SANITIZE_ADDRESS__)
        // The decoder leaves by longjmp; AddressSanitizer then reads /proc, for which the sandbox
        // rightly ends the process. Threads run the same decoder under it.
        if (processes) continue;
#endif
        Pool pool(options(1, processes));
        ImageInput cut = file("photo_420.jpg");
        cut.encoded.resize(cut.encoded.size() - 40);
        pool.submit(1, {file("rgb.png"), cut, file("rgb.png")});
        pool.submit(2, {file("rgb.png")});
        ASSERT_TRUE(pool.wait(2));
        const Result<PreparedImages> bad = pool.take(1);
        ASSERT_FALSE(bad.ok());
        EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(bad.status().message(), HasSubstr("picture 2: JPEG"));
        EXPECT_TRUE(pool.take(2).ok());
        EXPECT_EQ(pool->stats().crashes, 0);
    }
}

TEST(MultimodalProcessor, BytesComeBackWithTheLastUser) {
    const ImageInput one = pixels(60, 60);
    const std::vector<ImagePlan> plans(1, plan_input(one, nano(), 8192).value());
    const int64_t all = 60 * 60 * 3 + plans[0].num_patches() * 588;
    Pool tight(options(1, true, all));
    tight.submit(1, {one});
    tight.submit(2, {one});
    ASSERT_TRUE(tight.wait(1));
    Result<PreparedImages> first = tight.take(1);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(tight->stats().bytes_in_flight, all);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(tight.has(2)) << "no bytes are free while the first is in use";
    EXPECT_EQ(tight->stats().waiting, 1);
    first = Status(StatusCode::kInternal, "dropped");
    ASSERT_TRUE(tight.wait(1));
    EXPECT_TRUE(tight.take(2).ok());
    // What can never fit is refused with both numbers.
    Pool small(options(1, true, all - 1));
    const Status s = small->check_fits({one}, plans);
    EXPECT_EQ(s.code(), StatusCode::kOutOfRange);
    EXPECT_THAT(s.message(), HasSubstr(std::to_string(all - 1)));
    EXPECT_TRUE(tight->check_fits({one}, plans).ok());
}

TEST(MultimodalProcessor, CancelledRequestsGiveTheirBytesBack) {
    Pool pool(options(1, false));
    for (uint64_t r = 1; r <= 20; ++r) pool.submit(r, {pixels(900, 900), pixels(800, 900)});
    for (uint64_t r = 2; r <= 20; ++r) pool->cancel(r);
    ASSERT_TRUE(pool.wait(1));
    pool.submit(21, {pixels(10, 10)});
    while (!pool.has(21)) ASSERT_TRUE(pool.wait(1));
    EXPECT_EQ(pool->stats().waiting, 0);
    for (uint64_t r = 1; r <= 21; ++r) {
        if (!pool.has(r)) continue;
        EXPECT_TRUE(pool.take(r).ok());
    }
    EXPECT_EQ(pool->stats().bytes_in_flight, 0);
    pool->cancel(99);  // unknown: ignored
}

/// Whether the process runs no more; its parent may not have taken notice yet.
bool ended(pid_t pid) {
    std::ifstream f("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat((std::istreambuf_iterator<char>(f)), {});
    const size_t close = stat.rfind(')');
    return close == std::string::npos || stat.compare(close, 3, ") Z") == 0;
}

TEST(MultimodalProcessor, AWorkerThatDiedIdleFailsNobody) {
    Pool pool(options(1, true));
    for (uint64_t r = 0; r < 5; ++r) {
        pool.submit(r, {pixels(50, 60)});
        ASSERT_TRUE(pool.wait(1));
        EXPECT_TRUE(pool.take(r).ok()) << "after " << r << " workers died";
        const pid_t pid = pool->worker_pids().at(0);
        ASSERT_GT(pid, 0);
        ASSERT_EQ(kill(pid, SIGKILL), 0);
        for (int i = 0; i < 1000 && !ended(pid); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ASSERT_TRUE(ended(pid));
    }
}

TEST(MultimodalProcessor, AKilledWorkerFailsAtMostTheRequestInHand) {
    Pool pool(options(2, true));
    pool.submit(1000, {pixels(50, 50), pixels(60, 60), pixels(70, 70)});
    ASSERT_TRUE(pool.wait(1));
    constexpr uint64_t kRequests = 120;
    std::atomic<bool> stop{false};
    int kills = 0;
    std::thread killer([&] {
        while (!stop) {
            for (const pid_t pid : pool->worker_pids()) {
                if (pid > 0 && kill(pid, SIGKILL) == 0) ++kills;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
        }
    });
    for (uint64_t r = 0; r < kRequests; ++r) pool.submit(r, {pixels(300, 200 + 10 * (r % 7))});
    const bool all = pool.wait(kRequests + 1);
    stop = true;
    killer.join();
    ASSERT_TRUE(all) << "every request got an answer";
    int failed = 0;
    for (uint64_t r = 0; r < kRequests; ++r) {
        const Result<PreparedImages> answer = pool.take(r);
        if (!answer.ok()) {
            ++failed;
            EXPECT_EQ(answer.status().code(), StatusCode::kInternal) << answer.status().message();
            continue;
        }
        const Result<PreparedImage> want =
            preprocess_image(pixels(300, 200 + 10 * (r % 7)), nano(), 8192);
        ASSERT_EQ(answer->images[0]->digest, want->digest);
    }
    EXPECT_GT(kills, 0);
    EXPECT_LE(failed, pool->stats().crashes);
    // And the pool is whole again, once the last victims have been noticed: one request each.
    bool whole = false;
    for (uint64_t r = 2000; r <= 2002 && !whole; ++r) {
        pool.submit(r, {file("rgb.png")});
        ASSERT_TRUE(pool.wait(2));
        whole = pool.take(r).ok();
    }
    EXPECT_TRUE(whole);
}

TEST(MultimodalProcessor, OptionsOutsideTheirRangeAreRefused) {
    MultimodalProcessor::Options late = options(1, false);
    late.timeout_ms = 0;
    for (const MultimodalProcessor::Options& o : {options(0, false), options(1, false, 0), late}) {
        EXPECT_EQ(MultimodalProcessor::start(o).status().code(), StatusCode::kInvalidArgument);
    }
}

TEST(PictureSandbox, FilesAndNetworkAreOutOfReach) {
    // In a child of this test: entering is for good.
    for (const char* forbidden : {"open", "socket", "fork"}) {
        const pid_t pid = fork();
        if (pid == 0) {
            if (!enter_picture_sandbox().ok()) _exit(9);
            const std::string what = forbidden;
            if (what == "open") std::fopen("/etc/hostname", "r");
            if (what == "socket") socket(AF_INET, SOCK_STREAM, 0);
            if (what == "fork") fork();
            _exit(0);
        }
        int status = 0;
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << forbidden;
    }
}

}  // namespace
}  // namespace deepinfer
