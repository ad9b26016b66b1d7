#include "kvcache/cache_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "device/host_device.h"

namespace deepinfer {
namespace {

CacheGeometry small_geometry() {
    CacheGeometry g;
    g.block_tokens = 8;
    g.ring_len = 20;
    g.tail_len = 4;
    g.layers.resize(4);
    for (auto& l : g.layers) l.window_row_bytes = 66;
    g.layers[1] = {2, true, 66, 36, 17, 2 * 16 * 4};
    g.layers[2] = {1, true, 66, 36, 17, 0};
    return g;
}

/// A host device whose n-th allocation fails.
class FailingDevice final : public Device {
  public:
    explicit FailingDevice(int fail_at) : host_(1), fail_at_(fail_at) {}
    std::string name() const override { return "failing"; }
    bool host_accessible() const override { return true; }
    Stream& stream() override { return host_.stream(); }
    void copy_to_device(Stream& s, void* d, const void* p, size_t n) override {
        host_.copy_to_device(s, d, p, n);
    }
    void copy_to_host(Stream& s, void* d, const void* p, size_t n) override {
        host_.copy_to_host(s, d, p, n);
    }
    void fill_zero(Stream& s, void* d, size_t n) override { host_.fill_zero(s, d, n); }
    size_t free_bytes() const override { return free_; }
    size_t free_ = size_t{1} << 40;
    void* raw_allocate(size_t n) override {
        if (count_++ == fail_at_) return nullptr;
        void* p = host_.raw_allocate(n);
        live_.insert(p);
        return p;
    }
    void raw_free(void* p) override {
        live_.erase(p);
        host_.raw_free(p);
    }
    size_t live() const { return live_.size(); }

  private:
    HostDevice host_;
    int fail_at_;
    int count_ = 0;
    std::set<void*> live_;
};

TEST(CacheMemory, ShapesFollowTheGeometry) {
    HostDevice device(1);
    auto memory = CacheMemory::allocate(device, small_geometry(), DType::kF32, 5, 3);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    const CacheView& v = memory.value().view();
    EXPECT_EQ(v.num_blocks, 5);
    EXPECT_EQ(v.num_slots, 3);
    EXPECT_EQ(v.layers[0].window_ring.to_string(), "u8[3, 20, 66]");
    EXPECT_FALSE(v.layers[0].kv_pool);
    EXPECT_EQ(v.layers[1].entries_per_block, 4);
    EXPECT_EQ(v.layers[1].kv_pool.to_string(), "u8[20, 36]");
    EXPECT_EQ(v.layers[1].key_pool.to_string(), "u8[20, 17]");
    EXPECT_EQ(v.layers[1].tail.to_string(), "f32[3, 4, 2, 16]");
    EXPECT_EQ(v.layers[2].kv_pool.to_string(), "u8[40, 36]");
    EXPECT_FALSE(v.layers[2].tail);
    for (const auto& l : v.layers) {  // all of it is ours, and zero
        for (const Tensor& t : {l.window_ring, l.kv_pool, l.key_pool, l.tail}) {
            if (!t) continue;
            const auto* p = t.ptr<uint8_t>();
            for (int64_t i = 0; i < t.bytes(); ++i) ASSERT_EQ(p[i], 0);
            std::memset(t.data, 0xff, static_cast<size_t>(t.bytes()));
        }
    }
}

TEST(CacheMemory, BlocksForIsTheLargestThatFits) {
    const CacheGeometry g = small_geometry();
    for (int64_t budget = 0; budget < 60000; budget += 377) {
        const int64_t n = CacheMemory::blocks_for(budget, g, 3);
        if (n > 0) {
            EXPECT_LE(CacheMemory::bytes(g, n, 3), budget);
        }
        if (budget >= CacheMemory::bytes(g, 0, 3)) {
            EXPECT_GT(CacheMemory::bytes(g, n + 1, 3), budget);
        }
    }
}

TEST(CacheMemory, MoreThanIsFreeIsRefusedBeforeAnythingIsTaken) {
    FailingDevice device(-1);
    device.free_ = 1000;
    const Result<CacheMemory> memory =
        CacheMemory::allocate(device, small_geometry(), DType::kF32, 4, 2);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(memory.status().message().find("1000"), std::string::npos);
    EXPECT_EQ(device.live(), 0u);
}

TEST(CacheMemory, AFailedAllocationLeavesNothingBehind) {
    for (int fail_at = 0; fail_at < 9; ++fail_at) {
        FailingDevice device(fail_at);
        const auto memory = CacheMemory::allocate(device, small_geometry(), DType::kF32, 5, 3);
        ASSERT_FALSE(memory.ok());
        EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
        EXPECT_NE(memory.status().message().find("5 blocks"), std::string::npos);
        EXPECT_EQ(device.live(), 0u);
    }
    FailingDevice device(9);
    EXPECT_TRUE(CacheMemory::allocate(device, small_geometry(), DType::kF32, 5, 3).ok());
    EXPECT_EQ(device.live(), 0u);
}

}  // namespace
}  // namespace deepinfer
