// WorkBudget: processor time that a piece of work may take, over all threads that share in it.
//
//     WorkBudget budget(5'000'000'000);
//     const WorkBudget::Scope scope(&budget);   // in every thread that works for it
//     for (…) { WorkBudget::tick(); … }         // throws WorkBudgetExceeded once it is spent
//
// For work whose length follows from hostile input, where neither sizes nor a kill switch can bound
// it well: the loops that can be long tick. A tick without a budget costs a test. Processor time,
// because a busy machine is not the input's fault: the same input has the same fate. Standard
// library only and C++17: deps/xgrammar.patch ticks in the library's loops too.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace deepinfer {

class WorkBudgetExceeded : public std::exception {
  public:
    enum class What : uint8_t { kTime, kMemory };
    explicit WorkBudgetExceeded(What what) : what_(what) {}
    What which() const { return what_; }
    const char* what() const noexcept override {
        return what_ == What::kTime ? "the work took more processor time than it may"
                                    : "the work took more memory than it may";
    }

  private:
    What what_;
};

class WorkBudget {
  public:
    /// Zero: no bound.
    explicit WorkBudget(int64_t most_ns, int64_t most_bytes = 0)
        : most_ns_(most_ns), most_bytes_(most_bytes) {}
    WorkBudget(const WorkBudget&) = delete;
    WorkBudget& operator=(const WorkBudget&) = delete;

    int64_t spent_ns() const { return spent_ns_.load(); }
    /// Whether the time is spent: for threads that must not throw.
    bool over() const { return most_ns_ > 0 && spent_ns() > most_ns_; }

    /// The thread works for `budget` (may be null: for none) until the end of the scope.
    class Scope {
      public:
        explicit Scope(WorkBudget* budget);
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        WorkBudget* const before_;
    };

    static WorkBudget* current() { return mine_.budget; }
    /// Asks the clock now and then.
    static void tick() {
        constexpr uint32_t kTicksPerGlance = 256;
        if (mine_.budget != nullptr && ++mine_.ticks % kTicksPerGlance == 0) look();
    }
    /// Asks the clock.
    static void look();
    /// Memory that the work keeps.
    static void take_bytes(int64_t bytes);

  private:
    struct Mine {  // of a thread
        WorkBudget* budget;
        int64_t since_ns;  ///< its clock up to which the budget is charged
        uint32_t ticks;
    };
    static void charge();
    static inline thread_local Mine mine_ = {nullptr, 0, 0};

    const int64_t most_ns_, most_bytes_;
    std::atomic<int64_t> spent_ns_{0}, bytes_{0};
};

}  // namespace deepinfer
