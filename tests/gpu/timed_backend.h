// A backend whose ops are timed one by one with device events: where a step's time goes. Events
// stand between kernels that would else overlap, so the sum is more than a step takes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_stream.h"
#include "ops/backend.h"

namespace deepinfer {

class OpTimes {
  public:
    static OpTimes& get() {
        static OpTimes t;
        return t;
    }
    cudaEvent_t mark(Stream& s) {
        cudaEvent_t e = nullptr;
        cudaEventCreate(&e);
        cudaEventRecord(e, cuda::cuda_stream(s).get());
        return e;
    }
    void add(const char* op, cudaEvent_t begin, cudaEvent_t end) {
        spans_.push_back({op, {begin, end}});
    }
    /// Milliseconds and calls by op since the last call; the device must be idle.
    std::map<std::string, std::pair<double, int>> take() {
        std::map<std::string, std::pair<double, int>> sums;
        for (auto& [op, span] : spans_) {
            float ms = 0;
            cudaEventElapsedTime(&ms, span.first, span.second);
            sums[op].first += static_cast<double>(ms);
            ++sums[op].second;
            cudaEventDestroy(span.first);
            cudaEventDestroy(span.second);
        }
        spans_.clear();
        return sums;
    }
    bool on = false;

  private:
    std::vector<std::pair<const char*, std::pair<cudaEvent_t, cudaEvent_t>>> spans_;
};

template <int Id, typename... A>
struct TimedOp {
    static inline void (*op)(Stream&, A...) = nullptr;
    static inline const char* name = "";
    static void call(Stream& s, A... a) {
        if (!OpTimes::get().on) return op(s, a...);
        const cudaEvent_t begin = OpTimes::get().mark(s);
        op(s, a...);
        OpTimes::get().add(name, begin, OpTimes::get().mark(s));
    }
};
template <int Id, typename... A>
void time_op(const char* name, void (*&op)(Stream&, A...)) {
    if (op == nullptr) return;
    TimedOp<Id, A...>::op = op;
    TimedOp<Id, A...>::name = name;
    op = &TimedOp<Id, A...>::call;
}

class TimedBackend final : public Backend {
  public:
    explicit TimedBackend(Backend& inner) : inner_(inner), ops_(inner.ops()) {
#define DI_TIME(op) time_op<__COUNTER__>(#op, ops_.op)
        DI_TIME(rms_norm);
        DI_TIME(linear);
        DI_TIME(grouped_o_proj);
        DI_TIME(quant_q8);
        DI_TIME(quant_q4m);
        DI_TIME(scale_bf16);
        DI_TIME(rope_table);
        DI_TIME(rope);
        DI_TIME(mhc_mixes);
        DI_TIME(mhc_collapse);
        DI_TIME(mhc_expand);
        DI_TIME(mhc_step);
        DI_TIME(rms_norm_q8);
        DI_TIME(engram_hash);
        DI_TIME(engram_lookup);
        DI_TIME(engram_gate);
        DI_TIME(embed_streams);
        DI_TIME(gather_rows);
        DI_TIME(window_pack);
        DI_TIME(window_store);
        DI_TIME(kv_entry_store);
        DI_TIME(index_key_store);
        DI_TIME(compress_pool);
        DI_TIME(compress_tail_store);
        DI_TIME(index_scores);
        DI_TIME(candidate_blocks);
        DI_TIME(topk_select);
        DI_TIME(sparse_attention);
        DI_TIME(router_scores);
        DI_TIME(router_topk);
        DI_TIME(router_weights);
        DI_TIME(moe_ffn);
#undef DI_TIME
    }
    std::string name() const override {
        return inner_.name();
    }
    std::string description() const override {
        return inner_.description();
    }
    Device& device() override {
        return inner_.device();
    }
    const OpTable& ops() const override {
        return ops_;
    }
    Status prepare(WeightMatrix& w) override {
        return inner_.prepare(w);
    }
    Status prepare(Tensor& t) override {
        return inner_.prepare(t);
    }

    bool reads_stored(const WeightMatrix& w) const override {
        return inner_.reads_stored(w);
    }

  private:
    Backend& inner_;
    OpTable ops_;
};

}  // namespace deepinfer
