#include "base/work_budget.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace deepinfer {
namespace {

using What = WorkBudgetExceeded::What;

/// Ticks until the budget is spent; false if it takes more than a minute.
bool ticks_until_spent() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    try {
        while (std::chrono::steady_clock::now() < end) WorkBudget::tick();
    } catch (const WorkBudgetExceeded& e) {
        return e.which() == What::kTime;
    }
    return false;
}

TEST(WorkBudget, TicksWithoutABudgetAreFree) {
    EXPECT_EQ(WorkBudget::current(), nullptr);
    for (int i = 0; i < 10'000; ++i) WorkBudget::tick();
    WorkBudget::look();
    WorkBudget::take_bytes(1 << 30);
}

TEST(WorkBudget, EndsWorkAfterItsTime) {
    WorkBudget budget(20'000'000);
    const WorkBudget::Scope scope(&budget);
    EXPECT_TRUE(ticks_until_spent());
    EXPECT_GE(budget.spent_ns(), 20'000'000);
    EXPECT_LT(budget.spent_ns(), 200'000'000);
    EXPECT_TRUE(budget.over());
    EXPECT_THROW(WorkBudget::look(), WorkBudgetExceeded);
}

TEST(WorkBudget, ThreadsShareIt) {
    WorkBudget budget(40'000'000);
    std::vector<std::thread> threads;
    std::atomic<int> spent{0};
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
            const WorkBudget::Scope scope(&budget);
            spent += ticks_until_spent();
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(spent, 2);
    EXPECT_LT(budget.spent_ns(), 200'000'000);
}

TEST(WorkBudget, ScopesNestAndAThreadWithoutOneIsNotCharged) {
    WorkBudget outer(0), inner(1);
    {
        const WorkBudget::Scope a(&outer);
        {
            const WorkBudget::Scope b(&inner);
            EXPECT_EQ(WorkBudget::current(), &inner);
            EXPECT_TRUE(ticks_until_spent());
        }
        EXPECT_EQ(WorkBudget::current(), &outer);
        WorkBudget::look();  // no bound
        const int64_t before = outer.spent_ns();
        {
            const WorkBudget::Scope none(nullptr);
            EXPECT_EQ(WorkBudget::current(), nullptr);
            const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
            while (std::chrono::steady_clock::now() < end) {
            }
        }
        WorkBudget::look();
        EXPECT_LT(outer.spent_ns() - before, 30'000'000);
    }
    EXPECT_EQ(WorkBudget::current(), nullptr);
}

TEST(WorkBudget, CountsMemory) {
    WorkBudget budget(0, 100);
    const WorkBudget::Scope scope(&budget);
    WorkBudget::take_bytes(100);
    try {
        WorkBudget::take_bytes(1);
        ADD_FAILURE() << "one byte more than there is";
    } catch (const WorkBudgetExceeded& e) {
        EXPECT_EQ(e.which(), What::kMemory);
    }
}

}  // namespace
}  // namespace deepinfer
