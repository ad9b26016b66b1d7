#include "support/host_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "base/check.h"

namespace deepinfer::testing {
namespace {

bool is_float(DType t) {
    return t == DType::kF32 || t == DType::kF64 || t == DType::kBF16;
}

template <typename T>
T load(const uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <typename T>
void store(uint8_t* p, T v) {
    std::memcpy(p, &v, sizeof v);
}

/// bf16 bits as an integer that grows with the value, so that neighbours differ by one.
int64_t ordered(uint64_t bits) {
    const int64_t magnitude = static_cast<int64_t>(bits & 0x7FFFu);
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

}  // namespace

HostTensor::HostTensor(DType dtype, std::vector<int64_t> dims, int64_t row_pad)
    : dtype_(dtype), dims_(std::move(dims)) {
    row_stride_ = row_numel() + row_pad;
    const int64_t element = dtype_bits(dtype_) / 8;
    const uint8_t fill = is_float(dtype_) ? 0xFF : 0x7B;
    memory_.assign(static_cast<size_t>(2 * kGuardBytes + dims_[0] * row_stride_ * element), fill);
}

HostTensor HostTensor::from(const GoldenTensor& g, DType dtype, int64_t row_pad) {
    HostTensor t(dtype, g.shape, row_pad);
    if (g.dtype == "F32" || g.dtype == "F64" || g.dtype == "BF16") {
        t.set_all(g.doubles());
    } else {
        const std::vector<int64_t> v = g.ints();
        for (size_t i = 0; i < v.size(); ++i) {
            if (dtype == DType::kI64)
                store(t.memory_.data() + t.offset(static_cast<int64_t>(i)), v[i]);
            else
                t.set(static_cast<int64_t>(i), static_cast<double>(v[i]));
        }
    }
    return t;
}

HostTensor HostTensor::from(DType dtype,
                            std::vector<int64_t> dims,
                            const std::vector<double>& values) {
    HostTensor t(dtype, std::move(dims));
    t.set_all(values);
    return t;
}

int64_t HostTensor::numel() const {
    return dims_[0] * row_numel();
}
int64_t HostTensor::row_numel() const {
    int64_t n = 1;
    for (size_t i = 1; i < dims_.size(); ++i) n *= dims_[i];
    return n;
}

Tensor HostTensor::view_at(uint8_t* base) const {
    Tensor t;
    t.data = base + kGuardBytes;
    t.dtype = dtype_;
    t.ndim = static_cast<int>(dims_.size());
    int64_t stride = 1;
    for (size_t i = dims_.size(); i-- > 0;) {
        t.shape[i] = dims_[i];
        t.stride[i] = i == 0 ? row_stride_ : stride;
        stride *= dims_[i];
    }
    return t;
}

size_t HostTensor::offset(int64_t i) const {
    const int64_t row = i / row_numel(), col = i % row_numel();
    return static_cast<size_t>(kGuardBytes + (row * row_stride_ + col) * (dtype_bits(dtype_) / 8));
}

double HostTensor::get(int64_t i) const {
    const uint8_t* p = memory_.data() + offset(i);
    switch (dtype_) {
        case DType::kF64:
            return load<double>(p);
        case DType::kF32:
            return load<float>(p);
        case DType::kBF16:
            return to_float(bf16{load<uint16_t>(p)});
        case DType::kI64:
            return static_cast<double>(load<int64_t>(p));
        case DType::kI32:
            return load<int32_t>(p);
        default:
            return *p;
    }
}

void HostTensor::set(int64_t i, double v) {
    uint8_t* p = memory_.data() + offset(i);
    switch (dtype_) {
        case DType::kF64:
            return store(p, v);
        case DType::kF32:
            return store(p, static_cast<float>(v));
        case DType::kBF16:
            return store(p, to_bf16(v).bits);
        case DType::kI64:
            return store(p, static_cast<int64_t>(v));
        case DType::kI32:
            return store(p, static_cast<int32_t>(v));
        default:
            return store(p, static_cast<uint8_t>(v));
    }
}

uint64_t HostTensor::bits(int64_t i) const {
    uint64_t v = 0;
    std::memcpy(&v, memory_.data() + offset(i), static_cast<size_t>(dtype_bits(dtype_) / 8));
    return v;
}

void HostTensor::set_all(const std::vector<double>& values) {
    DI_CHECK_EQ(static_cast<int64_t>(values.size()), numel());
    for (int64_t i = 0; i < numel(); ++i) set(i, values[static_cast<size_t>(i)]);
}

void HostTensor::fill_normal(SeededRandom& random, double scale) {
    for (int64_t i = 0; i < numel(); ++i) set(i, random.normal() * scale);
}

std::vector<uint8_t> HostTensor::row_bytes(int64_t i) const {
    const auto begin = memory_.begin() + static_cast<int64_t>(offset(i * row_numel()));
    return {begin, begin + row_numel() * (dtype_bits(dtype_) / 8)};
}

bool HostTensor::guards_intact() const {
    const uint8_t fill = is_float(dtype_) ? 0xFF : 0x7B;
    const int64_t element = dtype_bits(dtype_) / 8;
    const auto filled = [&](int64_t begin, int64_t end) {
        return std::all_of(
            memory_.begin() + begin, memory_.begin() + end, [=](uint8_t b) { return b == fill; });
    };
    const int64_t size = static_cast<int64_t>(memory_.size());
    if (!filled(0, kGuardBytes) || !filled(size - kGuardBytes, size)) return false;
    for (int64_t row = 0; row < dims_[0]; ++row) {
        const int64_t begin = kGuardBytes + row * row_stride_ * element;
        if (!filled(begin + row_numel() * element, begin + row_stride_ * element)) return false;
    }
    return true;
}

std::string HostTensor::coordinates(int64_t i) const {
    std::vector<int64_t> at(dims_.size());
    for (size_t d = dims_.size(); d-- > 0;) {
        at[d] = i % dims_[d];
        i /= dims_[d];
    }
    std::string s = "[";
    for (size_t d = 0; d < at.size(); ++d) s += (d > 0 ? ", " : "") + std::to_string(at[d]);
    return s + "]";
}

WeightMatrix HostWeight::view() const {
    WeightMatrix w;
    w.dtype = dtype;
    w.n = n;
    w.k = k;
    w.weight = weight.data();
    w.scale = scale.empty() ? nullptr : scale.data();
    return w;
}

HostWeight HostWeight::random(
    SeededRandom& random, DType dtype, int64_t n, int64_t k, double gain) {
    HostWeight w;
    w.dtype = dtype;
    w.n = n;
    w.k = k;
    w.weight.resize(static_cast<size_t>(n * k * dtype_bits(dtype) / 8));
    const double std_dev = gain / std::sqrt(static_cast<double>(k));
    const int exponent = static_cast<int>(std::floor(std::log2(std_dev)));
    const auto scale_byte = [&](int top_exponent) {
        return static_cast<uint8_t>(127 + exponent - top_exponent +
                                    static_cast<int>(random.below(3)) - 1);
    };
    if (dtype == DType::kFP8E4M3) {
        w.scale.resize(static_cast<size_t>(((n + 31) / 32) * ((k + 31) / 32)));
        for (uint8_t& s : w.scale) s = scale_byte(6);
        for (uint8_t& c : w.weight) c = float_to_e4m3(static_cast<float>(random.normal() * 64.0));
    } else if (dtype == DType::kFP4) {
        w.scale.resize(static_cast<size_t>(n * (k / 32)));
        for (uint8_t& s : w.scale) s = scale_byte(1);
        for (uint8_t& c : w.weight) c = static_cast<uint8_t>(random.bits());
    } else {
        for (int64_t i = 0; i < n * k; ++i) {
            const double v = random.normal() * std_dev;
            if (dtype == DType::kBF16)
                store(w.weight.data() + 2 * i, to_bf16(v).bits);
            else
                store(w.weight.data() + 4 * i, static_cast<float>(v));
        }
    }
    return w;
}

std::string difference(const HostTensor& got, const HostTensor& want, Tolerance tolerance) {
    std::ostringstream s;
    s.precision(9);
    if (got.dims() != want.dims()) return "shapes differ";
    const auto at = [&](const char* what, int64_t i) {
        s << what << " at " << got.coordinates(i) << ": " << got.get(i) << ", expected "
          << want.get(i);
        return s.str();
    };
    const int64_t n = got.numel();
    if (tolerance.kind == Tolerance::Kind::kSameBits) {
        if (got.dtype() != want.dtype()) return "dtypes differ";
        for (int64_t i = 0; i < n; ++i) {
            if (got.bits(i) != want.bits(i)) return at("other bits", i);
        }
        return "";
    }
    for (int64_t i = 0; i < n; ++i) {  // NaN and infinities first: they would drown everything else
        const double a = got.get(i), b = want.get(i);
        if (std::isnan(a) != std::isnan(b)) return at("NaN", i);
        if ((std::isinf(a) || std::isinf(b)) && a != b && !std::isnan(a)) return at("infinity", i);
        if (tolerance.kind == Tolerance::Kind::kEqual && a != b && !std::isnan(a))
            return at("not equal", i);
    }
    if (tolerance.kind == Tolerance::Kind::kEqual) return "";
    double error = 0, norm = 0, worst = -1;
    int64_t worst_at = 0, misses = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double a = got.get(i), b = want.get(i);
        if (!std::isfinite(a) || !std::isfinite(b)) continue;
        const double d = std::fabs(a - b);
        error += d * d;
        norm += b * b;
        if (d > worst) {
            worst = d;
            worst_at = i;
        }
        if (tolerance.kind == Tolerance::Kind::kBf16 &&
            std::abs(ordered(got.bits(i)) - ordered(want.bits(i))) > 1)
            ++misses;
    }
    const double rel = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    if (rel > tolerance.rel_l2) {
        s << "relative L2 " << rel << " above " << tolerance.rel_l2 << ", ";
        return at("worst", worst_at);
    }
    if (misses > std::max<int64_t>(1, n / 1000)) {
        s << misses << " of " << n << " elements more than one bf16 step away, ";
        return at("worst", worst_at);
    }
    return "";
}

}  // namespace deepinfer::testing
