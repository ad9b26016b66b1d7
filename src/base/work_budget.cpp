#include "base/work_budget.h"

#include <time.h>

namespace deepinfer {
namespace {

int64_t thread_ns() {
    timespec t{};
    constexpr int64_t kNsPerS = 1'000'000'000;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? t.tv_sec * kNsPerS + t.tv_nsec : 0;
}

}  // namespace

WorkBudget::Scope::Scope(WorkBudget* budget) : before_(mine_.budget) {
    charge();
    mine_.budget = budget;
    mine_.since_ns = thread_ns();
}

WorkBudget::Scope::~Scope() {
    charge();
    mine_.budget = before_;
    mine_.since_ns = thread_ns();
}

void WorkBudget::charge() {
    if (mine_.budget == nullptr) return;
    const int64_t now = thread_ns();
    mine_.budget->spent_ns_ += now - mine_.since_ns;
    mine_.since_ns = now;
}

void WorkBudget::look() {
    charge();
    if (mine_.budget != nullptr && mine_.budget->over())
        throw WorkBudgetExceeded(WorkBudgetExceeded::What::kTime);
}

void WorkBudget::take_bytes(int64_t bytes) {
    WorkBudget* const b = mine_.budget;
    if (b == nullptr) return;
    const int64_t sum = b->bytes_ += bytes;
    if (b->most_bytes_ > 0 && sum > b->most_bytes_)
        throw WorkBudgetExceeded(WorkBudgetExceeded::What::kMemory);
}

}  // namespace deepinfer
