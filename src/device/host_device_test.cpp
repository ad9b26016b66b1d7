#include "device/host_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

namespace deepinfer {
namespace {

TEST(HostDevice, AllocatesAlignedMemory) {
    HostDevice device(1);
    EXPECT_TRUE(device.host_accessible());
    for (size_t bytes : {0u, 1u, 255u, 256u, 257u, 100000u}) {
        Result<Buffer> b = device.allocate(bytes);
        ASSERT_TRUE(b.ok());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 256, 0u);
        EXPECT_EQ(b->bytes(), bytes);
        std::memset(b->data(), 1, bytes);
    }
}

TEST(HostDevice, SaysWhatDidNotFit) {
    HostDevice device(1);
    const size_t too_much = std::numeric_limits<size_t>::max() / 4;
    const Result<Buffer> b = device.allocate(too_much);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(b.status().message().find(std::to_string(too_much)), std::string::npos)
        << b.status().message();
}

TEST(HostDevice, CopiesAndFills) {
    HostDevice device(2);
    Buffer b = std::move(device.allocate(16)).value();
    const char text[17] = "0123456789abcdef";
    char back[17] = {};
    device.copy_to_device(device.stream(), b.data(), text, 16);
    device.copy_to_host(device.stream(), back, b.data(), 16);
    EXPECT_STREQ(back, text);
    device.fill_zero(device.stream(), b.data(), 8);
    device.copy_to_host(device.stream(), back, b.data(), 16);
    EXPECT_EQ(back[7], 0);
    EXPECT_EQ(back[8], '8');
    device.copy_to_host(device.stream(), nullptr, b.data(), 0);  // nothing to copy, nothing touched
    device.stream().synchronize();
}

TEST(Buffer, MovesItsMemory) {
    HostDevice device(1);
    Buffer a = std::move(device.allocate(10)).value();
    void* p = a.data();
    Buffer b = std::move(a);
    EXPECT_EQ(b.data(), p);
    EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): moved-from buffers are empty
    Buffer c;
    c = std::move(b);
    EXPECT_EQ(c.data(), p);
    EXPECT_EQ(c.bytes(), 10u);
}

TEST(Arena, TakesAlignedTensorsAndRewinds) {
    HostDevice device(1);
    Arena arena(std::move(device.allocate(2048)).value());
    const Tensor a = arena.take(DType::kF32, {3}), b = arena.take(DType::kBF16, {2, 100});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % 256, 0u);
    EXPECT_EQ(static_cast<uint8_t*>(b.data) - static_cast<uint8_t*>(a.data), 256);
    const size_t mark = arena.used();
    EXPECT_EQ(mark, 256u + 512u);
    const Tensor c = arena.take(DType::kU8, {1000});
    arena.rewind(mark);
    EXPECT_EQ(arena.take(DType::kU8, {1}).data, c.data);
    EXPECT_EQ(arena.peak(), 256u + 512u + 1024u);
    EXPECT_EQ(arena.capacity(), 2048u);
    EXPECT_EQ(arena.take(DType::kI32, {0, 5}).numel(), 0);
}

TEST(ArenaDeathTest, MoreThanReservedIsABug) {
    HostDevice device(1);
    Arena arena(std::move(device.allocate(512)).value());
    arena.take(DType::kU8, {257});
    EXPECT_DEATH(arena.take(DType::kU8, {1}), "768 against 512");
}

TEST(ParallelFor, RunsOnTheStreamsPool) {
    HostDevice device(2);
    std::atomic<int64_t> sum{0};
    parallel_for(device.stream(), 100, 1, [&](int64_t b, int64_t e) {
        for (int64_t i = b; i < e; ++i) sum += i;
    });
    EXPECT_EQ(sum.load(), 4950);
}

}  // namespace
}  // namespace deepinfer
