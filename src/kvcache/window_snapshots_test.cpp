#include "kvcache/window_snapshots.h"

#include <gtest/gtest.h>

#include <set>

namespace deepinfer {
namespace {

CacheKey key_of(int n) {
    CacheKey k{};
    k[0] = static_cast<uint8_t>(n);
    k[1] = 7;
    return k;
}

TEST(WindowSnapshots, TheLeastRecentlyUsedGivesWay) {
    WindowSnapshots s(10, 3);
    std::set<int32_t> slots;
    for (int i = 0; i < 3; ++i) slots.insert(s.store(key_of(i), true));
    EXPECT_EQ(slots, (std::set<int32_t>{10, 11, 12}));
    s.use(key_of(0));
    const int32_t freed = s.find(key_of(1))->slot;
    EXPECT_EQ(s.store(key_of(3), true), freed);
    EXPECT_EQ(s.find(key_of(1)), nullptr);
    EXPECT_NE(s.find(key_of(0)), nullptr);
    EXPECT_EQ(s.num_evictions(), 1);
    EXPECT_EQ(s.size(), 3);
    s.check();
}

TEST(WindowSnapshots, ACompleteOneReplacesAPartialOneInPlace) {
    WindowSnapshots s(0, 2);
    const int32_t slot = s.store(key_of(1), false);
    EXPECT_EQ(s.store(key_of(1), false), -1);
    EXPECT_FALSE(s.find(key_of(1))->complete);
    EXPECT_EQ(s.store(key_of(1), true), slot);
    EXPECT_TRUE(s.find(key_of(1))->complete);
    EXPECT_EQ(s.store(key_of(1), false), -1)
        << "a partial one is never written over a complete one";
    EXPECT_EQ(s.size(), 1);
    s.check();
}

TEST(WindowSnapshots, ABlockTakesItsSnapshotAlong) {
    WindowSnapshots s(4, 2);
    const int32_t slot = s.store(key_of(1), true);
    s.drop(key_of(1));
    s.drop(key_of(9));
    EXPECT_EQ(s.find(key_of(1)), nullptr);
    EXPECT_EQ(s.size(), 0);
    EXPECT_EQ(s.store(key_of(2), true), slot);
    EXPECT_EQ(s.num_evictions(), 0);
    s.check();
}

TEST(WindowSnapshots, NoSlotsStoreNothing) {
    WindowSnapshots s(4, 0);
    EXPECT_EQ(s.store(key_of(1), true), -1);
    s.check();
}

}  // namespace
}  // namespace deepinfer
