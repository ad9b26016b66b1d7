#include "opbench/bench_context.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "checkpoint/synthetic.h"

namespace deepinfer {
namespace {

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double quantile(std::vector<double> v, double share) {
    std::sort(v.begin(), v.end());
    const size_t at = static_cast<size_t>(share * static_cast<double>(v.size() - 1) + 0.5);
    return v[std::min(at, v.size() - 1)];
}

/// Threads fill parts of a generated tensor.
void fill(Stream& stream, const ExpectedTensor& t, uint64_t seed, uint8_t* out) {
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    const int64_t width = synthetic_bytes(t) / elements;
    constexpr int64_t kPart = 64 * kSyntheticBlock;
    parallel_for(stream, (elements + kPart - 1) / kPart, 16, [&](int64_t begin, int64_t end) {
        fill_synthetic(t,
                       seed,
                       4,
                       begin * kPart,
                       std::min(elements, end * kPart),
                       out + begin * kPart * width);
    });
}

}  // namespace

const char* weight_name(DType dtype) {
    switch (dtype) {
        case DType::kFP4:
            return "fp4";
        case DType::kFP8E4M3:
            return "fp8";
        case DType::kBF16:
            return "bf16";
        default:
            return "fp32";
    }
}

BenchContext::BenchContext(Backend& backend,
                           const ModelConfig& config,
                           const OpBenchOptions& options,
                           std::function<bool(const OpMeasurement&)> on_result)
    : backend_(backend),
      config_(config),
      options_(options),
      on_result_(std::move(on_result)),
      rows_(options.rows) {
    if (rows_.empty()) rows_ = {1, 2, 4, 8, 16, 64, 512};
    std::sort(rows_.begin(), rows_.end());
}

bool BenchContext::wants(const char* op) const {
    if (stopped_) return false;
    return options_.ops.empty() ||
           std::find(options_.ops.begin(), options_.ops.end(), op) != options_.ops.end();
}

std::vector<int64_t> BenchContext::some_rows() const {
    if (!options_.rows.empty()) return rows_;
    return {1, 16, 512};
}

Tensor BenchContext::tensor(DType dtype, const std::vector<int64_t>& dims, double sigma) {
    Tensor t(nullptr, dtype, {1});
    t.ndim = static_cast<int>(dims.size());
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; --i) {
        const size_t at = static_cast<size_t>(i);
        t.shape[at] = dims[at];
        t.stride[at] = stride;
        stride *= dims[at];
    }
    memory_.emplace_back(static_cast<size_t>(t.bytes()) + 64);
    uint8_t* data = memory_.back().data();
    data += (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64;
    t.data = data;
    if (dtype == DType::kBF16 || dtype == DType::kF32) {
        // N(0, 1) of the generator, scaled.
        const int64_t n = t.numel();
        std::vector<uint8_t> wide(static_cast<size_t>(n) * 2);
        fill(stream(),
             {"bench." + std::to_string(next_weight_++), WeightKind::kPlain, {n, 1}, "", false},
             options_.seed,
             wide.data());
        for (int64_t i = 0; i < n; ++i) {
            bf16 v;
            std::memcpy(&v.bits, &wide[static_cast<size_t>(2 * i)], 2);
            const float x = static_cast<float>(sigma) * to_float(v);
            if (dtype == DType::kBF16) {
                t.ptr<bf16>()[i] = to_bf16(x);
            } else {
                t.ptr<float>()[i] = x;
            }
        }
    }
    return t;
}

Tensor BenchContext::bytes(int64_t rows, int64_t row_bytes) {
    return tensor(DType::kU8, {rows, row_bytes});
}

WeightMatrix BenchContext::weight(DType dtype, int64_t n, int64_t k) {
    WeightMatrix m;
    m.dtype = dtype;
    m.n = n;
    m.k = k;
    const std::string name = "bench." + std::to_string(next_weight_++);
    const auto make = [&](WeightKind kind, std::vector<int64_t> shape) {
        const ExpectedTensor t{name, kind, std::move(shape), "", false};
        memory_.emplace_back(static_cast<size_t>(synthetic_bytes(t)));
        fill(stream(), t, options_.seed, memory_.back().data());
        return memory_.back().data();
    };
    if (dtype == DType::kFP4) {
        m.weight = make(WeightKind::kFp4, {n, k / 2});
        m.scale = make(WeightKind::kFp4Scale, {n, k / 32});
    } else if (dtype == DType::kFP8E4M3) {
        m.weight = make(WeightKind::kFp8, {n, k});
        m.scale = make(WeightKind::kFp8Scale, {(n + 31) / 32, k / 32});
    } else {
        DI_CHECK(dtype == DType::kBF16);
        m.weight = make(WeightKind::kPlain, {n, k});
    }
    const Status s = backend_.prepare(m);
    if (!s.ok()) {
        status_ = s;
        stopped_ = true;
    }
    if (!backend_.reads_stored(m)) {
        // The copy is made; two of everything would be too much for a small machine.
        for (int i = 0; i < (m.scale != nullptr ? 2 : 1); ++i) memory_.pop_back();
    }
    return m;
}

std::vector<WeightMatrix> BenchContext::weights(DType dtype, int64_t n, int64_t k) {
    constexpr int64_t kBeyondCache = int64_t{128} << 20;
    constexpr int64_t kMostCopies = 8;
    WeightMatrix size;
    size.dtype = dtype;
    size.n = n;
    size.k = k;
    const int64_t copies =
        std::clamp<int64_t>((kBeyondCache + size.bytes() - 1) / size.bytes(), 2, kMostCopies);
    std::vector<WeightMatrix> out;
    for (int64_t i = 0; i < copies && !stopped_; ++i) out.push_back(weight(dtype, n, k));
    return out;
}

void BenchContext::reset() {
    memory_.clear();
}

void BenchContext::measure(const OpCost& cost, const std::function<void(int64_t)>& run) {
    if (stopped_) return;
    const double least = options_.window_ms / 1000;
    int64_t i = 0;
    const auto timed = [&](int64_t times) {
        const double begin = now_s();
        for (int64_t n = 0; n < times; ++n) run(i++);
        return now_s() - begin;
    };
    timed(1);  // touches the memory
    int64_t times = 1;
    for (double t = timed(1); t < least && times < (1 << 24);) {
        times = std::max(
            times + 1,
            static_cast<int64_t>(1.2 * least / std::max(t, 1e-7) * static_cast<double>(times)));
        t = timed(times);
    }
    // Which roof is the slower one is asked once; then it is measured beside every window.
    const double read = backend_.measure_roof(Roof::kRead), dot = backend_.measure_roof(Roof::kDot);
    const bool by_dot = cost.flops / dot > cost.bytes / read;
    std::vector<double> calls, roofs;
    for (int w = 0; w < options_.windows; ++w) {
        roofs.push_back(backend_.measure_roof(by_dot ? Roof::kDot : Roof::kRead));
        calls.push_back(timed(times) / static_cast<double>(times));
    }
    OpMeasurement m;
    m.op = cost.op;
    m.shape = cost.shape;
    m.dtype = cost.dtype;
    m.rows = cost.rows;
    m.min_us = quantile(calls, 0) * 1e6;
    m.med_us = quantile(calls, 0.5) * 1e6;
    m.p90_us = quantile(calls, 0.9) * 1e6;
    m.bytes = cost.bytes;
    m.flops = cost.flops;
    m.roof = by_dot ? "dot" : "read";
    const double roof = quantile(roofs, 0.5);
    m.roof_value = roof / 1e9;
    m.share = (by_dot ? cost.flops : cost.bytes) / roof / quantile(calls, 0.5);
    m.backend_line = backend_.description();
    stopped_ = !on_result_(m);
}

}  // namespace deepinfer
