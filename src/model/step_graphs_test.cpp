#include "model/step_graphs.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace deepinfer {
namespace {

/// Counts what a device would do: calls made for real, recordings, replays.
class CountingDevice final : public Device {
  public:
    struct Graph final : DeviceGraph {
        explicit Graph(CountingDevice* d) : device(d), made_at(d->generation) {}
        bool stale(const Stream&) const override { return device->generation != made_at; }
        void launch(Stream&) override { ++device->replays; }
        CountingDevice* device;
        int made_at;
    };
    std::string name() const override { return "counting"; }
    bool host_accessible() const override { return true; }
    Stream& stream() override { return stream_; }
    void copy_to_device(Stream&, void*, const void*, size_t) override {}
    void copy_to_host(Stream&, void*, const void*, size_t) override {}
    void fill_zero(Stream&, void*, size_t) override {}
    size_t free_bytes() const override { return 0; }
    void* raw_allocate(size_t) override { return nullptr; }
    void raw_free(void*) override {}
    bool records_graphs() const override { return true; }
    std::unique_ptr<DeviceGraph> capture(Stream&, const std::function<void()>& queue) override {
        recording = true;
        queue();
        recording = false;
        ++records;
        return std::make_unique<Graph>(this);
    }
    void call() {
        if (!recording) ++calls;
    }

    bool recording = false;
    int calls = 0, records = 0, replays = 0, generation = 0;

  private:
    CpuStream stream_{nullptr};
};

TEST(StepGraphs, RunsThenRecordsThenReplays) {
    CountingDevice d;
    StepGraphs g;
    const auto step = [&] { d.call(); };
    for (int i = 0; i < 5; ++i) g.run(d, {4, 1024}, step);
    EXPECT_EQ(d.calls, 1);
    EXPECT_EQ(d.records, 1);
    EXPECT_EQ(d.replays, 4) << "a recording is launched at once";
    EXPECT_EQ(g.num_recorded(), 1);
    EXPECT_EQ(g.num_replayed(), 3);
    g.run(d, {5, 1024}, step);
    EXPECT_EQ(d.calls, 2) << "another shape starts anew";
}

TEST(StepGraphs, MemoryThatMovedIsRecordedAnew) {
    CountingDevice d;
    StepGraphs g;
    const auto step = [&] { d.call(); };
    for (int i = 0; i < 3; ++i) g.run(d, {1}, step);
    ++d.generation;
    g.run(d, {1}, step);
    EXPECT_EQ(d.calls, 2) << "a stale recording must not run";
    EXPECT_EQ(d.replays, 2);
    g.run(d, {1}, step);
    EXPECT_EQ(d.records, 2);
    EXPECT_EQ(d.replays, 3);
}

TEST(StepGraphs, ShapesSeenOnceMakeRoomFirst) {
    CountingDevice d;
    StepGraphs g(2);
    const auto step = [&] { d.call(); };
    g.run(d, {1}, step);
    g.run(d, {1}, step);  // recorded
    for (int64_t k = 10; k < 20; ++k) g.run(d, {k}, step);
    g.run(d, {1}, step);
    EXPECT_EQ(d.records, 1);
    EXPECT_EQ(g.num_replayed(), 1) << "the recording has stayed";
}

}  // namespace
}  // namespace deepinfer
