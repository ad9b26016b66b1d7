// FakeExecutor: carries out plans on simulated memory and checks every read.
//
// Blocks, window rings and slots hold hashes of the prefix that wrote them. A row at position p
// must find, for every earlier position, the right hash in its blocks, and for every position of
// its window the right hash in its slot's ring. Whatever was freed keeps its stale bytes, as real
// memory does.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/step_executor.h"
#include "sim/sim_model.h"

namespace deepinfer::sim {

struct FakeMemoryShape {
    int64_t num_blocks = 0;
    int block_tokens = 16;
    int64_t num_slots = 0;
    int window = 8;
    int ring_len = 12;
    int lookback = 3;
    double accept_share = 0.6;  ///< of the drafts are right, given that those before them are
};

class FakeExecutor final : public StepExecutor {
  public:
    explicit FakeExecutor(const FakeMemoryShape& shape);

    void launch(std::shared_ptr<const StepPlan> plan) override;
    std::vector<ChunkDrafts> drafts() override;
    void launch_sampling(std::vector<RowMask> masks) override;
    StepResult collect() override;

    /// Plans seen so far, for replaying (kept only when asked).
    bool keep_plans = false;
    std::vector<std::shared_ptr<const StepPlan>> plans;
    /// The first broken expectation, or "".
    std::string fault;
    int64_t rows_run = 0;
    int64_t drafts_accepted = 0;

  private:
    struct Slot {
        uint32_t epoch = 0;
        SlotStart start;
        std::vector<int32_t> tokens;
        std::vector<uint64_t> prefix;  ///< prefix[p] = hash of tokens[0..p]
    };
    struct RingRow {
        int64_t position = -1;
        uint64_t prefix = 0;
    };

    void fail(const std::string& what);
    void run_chunk(size_t i);
    void propose(const ChunkPlan& c, const Slot& slot, std::vector<int32_t>* drafts) const;
    void run_row(const ChunkPlan& c, int64_t start, Slot& slot, int64_t p);
    void sample(size_t i, const RowMask* mask);
    void append(Slot& slot, int32_t token);

    FakeMemoryShape shape_;
    std::vector<uint64_t> blocks_;
    std::vector<RingRow> rings_;
    std::vector<Slot> slots_;
    std::shared_ptr<const StepPlan> plan_;
    StepResult result_;
    std::vector<std::vector<int32_t>> drafts_;  ///< per chunk
    int64_t budget_left_ = 0;
    std::deque<StepResult> done_;
};

}  // namespace deepinfer::sim
