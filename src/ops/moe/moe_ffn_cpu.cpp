// moe_ffn: rows grouped by expert, the shared expert as one more group of all rows.
//
//   1. quantize u once, gather the rows of every group
//   2. tasks (group, 32 columns of I, row block): gate and up panels, SwiGLU, q8 → hidden rows
//   3. tasks (group, 32 columns of D, row block): down panel → one output row per (token, expert)
//   4. per token: sum over its experts in ascending id, the shared expert, one rounding
//
// A hidden panel is one q8 block, so step 2 needs nothing from its neighbours. Every output row is
// computed from its own activations alone; the grouping decides only where it is computed.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/panel_gemm.h"

namespace deepinfer::cpu {
namespace {

struct Group {
    const PackedWeight *w1 = nullptr, *w3 = nullptr, *w2 = nullptr;
    int64_t first = 0;  // first gathered row
    int64_t rows = 0;
};

/// A task's cost in arbitrary units: widening a panel costs as much as a few rows.
int64_t task_cost(int64_t rows) {
    return 6 + rows;
}

/// Runs fn(task) for all tasks; every thread gets a contiguous run of about equal cost.
template <typename Cost, typename Fn>
void run_tasks(
    Stream& stream, int64_t num_tasks, int64_t min_tasks, const Cost& cost, const Fn& fn) {
    const int64_t threads = std::min<int64_t>(static_cast<CpuStream&>(stream).pool().num_threads(),
                                              std::max<int64_t>(1, num_tasks / min_tasks));
    if (threads <= 1) {
        for (int64_t i = 0; i < num_tasks; ++i) fn(i);
        return;
    }
    int64_t total = 0;
    for (int64_t i = 0; i < num_tasks; ++i) total += cost(i);
    parallel_for(stream, threads, 1, [&](int64_t begin, int64_t end) {
        const int64_t lo = total * begin / threads, hi = total * end / threads;
        int64_t at = 0;
        for (int64_t i = 0; i < num_tasks && at < hi; ++i) {
            if (at >= lo) fn(i);
            at += cost(i);
        }
    });
}

struct Task {
    int32_t group;
    int32_t panel;
    int64_t first;  // row of the group
    int64_t rows;
};

void make_tasks(const std::vector<Group>& groups, int64_t panels, std::vector<Task>* tasks) {
    tasks->clear();
    for (size_t g = 0; g < groups.size(); ++g) {
        for (int64_t first = 0; first < groups[g].rows; first += kRowBlock) {
            const int64_t rows = std::min(kRowBlock, groups[g].rows - first);
            for (int64_t p = 0; p < panels; ++p)
                tasks->push_back({static_cast<int32_t>(g), static_cast<int32_t>(p), first, rows});
        }
    }
}

}  // namespace

void moe_ffn_cpu(const Kernels& k,
                 Stream& stream,
                 const Tensor& u,
                 const Tensor& ids,
                 const Tensor& weights,
                 std::span<const ExpertWeights> experts,
                 const ExpertWeights& shared,
                 float limit,
                 Tensor out) {
    const int64_t num_rows = u.dim(0), d = u.dim(1), top = ids.dim(1), inter = shared.w1.n;
    if (num_rows == 0) return;
    DI_CHECK(u.dtype == DType::kBF16 && ids.dtype == DType::kI32 && weights.dtype == DType::kF32 &&
             out.dtype == DType::kBF16);
    DI_CHECK_EQ(out.dim(1), d);

    // Rows per expert, in token order inside an expert.
    std::vector<int64_t> count(experts.size() + 1, 0);
    for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t i = 0; i < top; ++i) {
            const int32_t e = ids.row<int32_t>(t)[i];
            DI_CHECK(e >= 0 && e < static_cast<int32_t>(experts.size()));
            ++count[static_cast<size_t>(e)];
        }
    }
    std::vector<Group> groups;
    std::vector<int64_t> next(experts.size(), 0);  // next gathered row of an expert
    const int64_t pairs = num_rows * top;
    int64_t first = 0;
    bool packed = d % kPanelRows == 0 && inter % kPanelRows == 0;
    const auto add_group = [&](const ExpertWeights& w, int64_t rows) {
        Group g{packed_weight(stream, w.w1),
                packed_weight(stream, w.w3),
                packed_weight(stream, w.w2),
                first,
                rows};
        packed = packed && g.w1 != nullptr && g.w3 != nullptr && g.w2 != nullptr &&
                 w.w1.n == inter && w.w1.dtype != DType::kF32;
        groups.push_back(g);
        first += rows;
    };
    for (size_t e = 0; e < experts.size() && packed; ++e) {
        next[e] = first;
        if (count[e] > 0) add_group(experts[e], count[e]);
    }
    if (packed) add_group(shared, num_rows);
    if (!packed) return moe_ffn_ref<float>(stream, u, ids, weights, experts, shared, limit, out);

    // Gathered, quantized rows: pairs, then all rows once for the shared expert.
    const bool as_bf16 = k.linear.reads_bf16;
    const int64_t total = pairs + num_rows;
    uint16_t* x = scratch<uint16_t>(Slot::kMoeGathered, total * d);
    int64_t* slot_of = scratch<int64_t>(Slot::kMoeRows, 2 * total);  // gathered row of (token, i)
    float* weight_of = reinterpret_cast<float*>(slot_of + total);    // weight of a gathered row
    for (int64_t t = 0; t < num_rows; ++t) {
        for (int64_t i = 0; i < top; ++i) {
            const int64_t slot = next[static_cast<size_t>(ids.row<int32_t>(t)[i])]++;
            slot_of[t * top + i] = slot;
            weight_of[slot] = weights.row<float>(t)[i];
        }
        weight_of[pairs + t] = 1.0f;
    }
    parallel_for(stream, num_rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            uint16_t* own = x + (pairs + t) * d;
            k.rows.quant_q8(&u.row<bf16>(t)->bits, d, own);
            for (int64_t i = 0; i < top; ++i)
                std::memcpy(x + slot_of[t * top + i] * d, own, static_cast<size_t>(d) * 2);
        }
    });

    std::vector<Task> tasks;
    const auto cost = [&](int64_t i) { return task_cost(tasks[static_cast<size_t>(i)].rows); };

    uint16_t* hidden = scratch<uint16_t>(Slot::kMoeHidden, total * inter);
    const Activations ax = activations(k, stream, x, d, total, d, as_bf16, Slot::kActivations);
    make_tasks(groups, inter / kPanelRows, &tasks);
    run_tasks(
        stream, static_cast<int64_t>(tasks.size()), panel_grain(2 * d, 1), cost, [&](int64_t i) {
            const Task& task = tasks[static_cast<size_t>(i)];
            const Group& g = groups[static_cast<size_t>(task.group)];
            float* gate = scratch<float>(Slot::kPanel, 2 * kRowBlock * kPanelRows);
            float* up = gate + kRowBlock * kPanelRows;
            const int64_t row0 = g.first + task.first;
            panel_gemm(k.linear, *g.w1, d, ax, row0, task.rows, 0, task.panel, gate);
            panel_gemm(k.linear, *g.w3, d, ax, row0, task.rows, 0, task.panel, up);
            for (int64_t r = 0; r < task.rows; ++r) {
                uint16_t* h = hidden + (row0 + r) * inter + task.panel * kPanelRows;
                k.rows.swiglu(gate + r * kPanelRows,
                              up + r * kPanelRows,
                              weight_of[row0 + r],
                              limit,
                              kPanelRows,
                              h);
                k.rows.quant_q8(h, kPanelRows, h);
            }
        });

    uint16_t* y = scratch<uint16_t>(Slot::kMoeOut, total * d);
    const Activations ah =
        activations(k, stream, hidden, inter, total, inter, as_bf16, Slot::kMoeHiddenWide);
    make_tasks(groups, d / kPanelRows, &tasks);
    run_tasks(
        stream, static_cast<int64_t>(tasks.size()), panel_grain(inter, 1), cost, [&](int64_t i) {
            const Task& task = tasks[static_cast<size_t>(i)];
            const Group& g = groups[static_cast<size_t>(task.group)];
            float* c = scratch<float>(Slot::kPanel, kRowBlock * kPanelRows);
            const int64_t row0 = g.first + task.first;
            panel_gemm(k.linear, *g.w2, inter, ah, row0, task.rows, 0, task.panel, c);
            for (int64_t r = 0; r < task.rows; ++r) {
                k.rows.narrow(
                    c + r * kPanelRows, kPanelRows, y + (row0 + r) * d + task.panel * kPanelRows);
            }
        });

    parallel_for(stream, num_rows, 8, [&](int64_t begin, int64_t end) {
        std::vector<const uint16_t*> terms(static_cast<size_t>(top) + 1);
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < top; ++i)
                terms[static_cast<size_t>(i)] = y + slot_of[t * top + i] * d;
            terms[static_cast<size_t>(top)] = y + (pairs + t) * d;
            k.mhc.sum_rows(terms.data(), top + 1, d, &out.row<bf16>(t)->bits);
        }
    });
}

}  // namespace deepinfer::cpu
