#include "gpu/gpu_support.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/cuda_stream.h"
#include "tensor/quant_block.h"

namespace deepinfer::gpu_test {
namespace {

constexpr size_t kGuard = 256;
constexpr uint8_t kGuardByte = 0xA5;

bool is_float(DType t) {
    return t == DType::kF32 || t == DType::kF64 || t == DType::kBF16;
}

/// Marker of outputs: NaN for every float format, and no value an op writes for integers.
uint8_t poison(DType t) {
    return is_float(t) ? 0xFF : 0x5B;
}

Tensor tensor_over(void* data, DType t, const std::vector<int64_t>& dims, int64_t row_pad) {
    Tensor v;
    v.data = data;
    v.dtype = t;
    v.ndim = static_cast<int>(dims.size());
    int64_t s = 1;
    for (size_t i = dims.size(); i-- > 0;) {
        v.shape[i] = dims[i];
        v.stride[i] = s;
        s *= dims[i];
        if (i == 1) s += row_pad;
    }
    return v;
}

size_t memory_bytes(const Tensor& t) {
    const int64_t elements = t.ndim == 0 ? 0 : t.dim(0) * t.stride[0];
    return static_cast<size_t>(elements * dtype_bits(t.dtype) / 8);
}

/// Calls f(index) for every element.
template <typename F>
void each(const Tensor& t, F&& f) {
    if (t.numel() == 0) return;
    std::vector<int64_t> index(static_cast<size_t>(t.ndim), 0);
    for (;;) {
        f(index);
        int d = t.ndim - 1;
        while (d >= 0 && ++index[static_cast<size_t>(d)] == t.dim(d))
            index[static_cast<size_t>(d--)] = 0;
        if (d < 0) return;
    }
}

int64_t offset_of(const Tensor& t, const std::vector<int64_t>& index) {
    int64_t o = 0;
    for (size_t d = 0; d < index.size(); ++d) o += index[d] * t.stride[d];
    return o;
}

std::string place(const std::vector<int64_t>& index) {
    std::string s = "[";
    for (size_t d = 0; d < index.size(); ++d) s += (d == 0 ? "" : ", ") + std::to_string(index[d]);
    return s + "]";
}

}  // namespace

double value_at(const Tensor& t, const std::vector<int64_t>& index) {
    const int64_t o = offset_of(t, index);
    switch (t.dtype) {
        case DType::kF32:
            return static_cast<double>(t.ptr<float>()[o]);
        case DType::kF64:
            return t.ptr<double>()[o];
        case DType::kBF16:
            return static_cast<double>(to_float(t.ptr<bf16>()[o]));
        case DType::kI32:
            return t.ptr<int32_t>()[o];
        case DType::kI64:
            return static_cast<double>(t.ptr<int64_t>()[o]);
        default:
            return t.ptr<uint8_t>()[o];
    }
}

std::vector<uint8_t> row_bytes(const HostTensor& t, int64_t row) {
    const int64_t size = dtype_bits(t.view.dtype) / 8,
                  n = t.view.numel() / std::max<int64_t>(1, t.view.dim(0));
    const uint8_t* p = t.memory.data() + row * t.view.stride[0] * size;
    return std::vector<uint8_t>(p, p + n * size);
}

HostDevice& host() {
    static HostDevice device(ThreadPool::available_threads());
    return device;
}

Backend* cuda_backend(std::string* why) {
    static std::string reason;
    static std::unique_ptr<Backend> backend = [] {
        register_cuda_backend();
        Result<std::unique_ptr<Backend>> b = create_backend("cuda", BackendOptions{});
        if (b.ok()) return std::move(b).value();
        reason = b.status().to_string();
        return std::unique_ptr<Backend>();
    }();
    *why = reason;
    return backend.get();
}

void GpuTest::SetUp() {
    std::string why;
    if (cuda_backend(&why) == nullptr) GTEST_SKIP() << why;
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(info->test_suite_name()) + "." + info->name();
    std::seed_seq seed(name.begin(), name.end());
    rng.seed(seed);
}

void GpuTest::TearDown() {
    std::string why;
    Backend* b = cuda_backend(&why);
    if (b == nullptr) return;
    auto& s = cuda::cuda_stream(b->device().stream());
    s.synchronize();
    ASSERT_TRUE(s.status().ok()) << s.status().to_string();
}

HostTensor make_tensor(DType t, std::vector<int64_t> dims, int64_t row_pad) {
    HostTensor h;
    h.view = tensor_over(nullptr, t, dims, row_pad);
    h.memory.assign(memory_bytes(h.view) + 8, poison(t));
    h.view.data = h.memory.data();
    return h;
}

HostTensor normal_bf16(std::mt19937_64& rng,
                       std::vector<int64_t> dims,
                       float scale,
                       int64_t row_pad) {
    HostTensor h = make_tensor(DType::kBF16, std::move(dims), row_pad);
    std::normal_distribution<float> d;
    each(h.view, [&](const std::vector<int64_t>& i) {
        h.view.ptr<bf16>()[offset_of(h.view, i)] = to_bf16(d(rng) * scale);
    });
    return h;
}

HostTensor normal_f32(std::mt19937_64& rng, std::vector<int64_t> dims, float scale) {
    HostTensor h = make_tensor(DType::kF32, std::move(dims));
    std::normal_distribution<float> d;
    for (int64_t i = 0; i < h.view.numel(); ++i) h.view.ptr<float>()[i] = d(rng) * scale;
    return h;
}

HostTensor ints(std::vector<int32_t> values, std::vector<int64_t> dims) {
    HostTensor h = make_tensor(DType::kI32, std::move(dims));
    std::memcpy(h.memory.data(), values.data(), values.size() * 4);
    return h;
}
HostTensor longs(std::vector<int64_t> values, std::vector<int64_t> dims) {
    HostTensor h = make_tensor(DType::kI64, std::move(dims));
    std::memcpy(h.memory.data(), values.data(), values.size() * 8);
    return h;
}
HostTensor bytes_of(std::vector<uint8_t> values, std::vector<int64_t> dims) {
    HostTensor h = make_tensor(DType::kU8, std::move(dims));
    std::memcpy(h.memory.data(), values.data(), values.size());
    return h;
}

HostWeight random_weight(std::mt19937_64& rng, DType t, int64_t n, int64_t k) {
    HostWeight w;
    w.view.dtype = t;
    w.view.n = n;
    w.view.k = k;
    const int64_t bytes = n * k * dtype_bits(t) / 8;
    w.codes.resize(static_cast<size_t>(bytes));
    std::normal_distribution<float> d;
    std::uniform_int_distribution<int> byte(0, 255), wobble(-3, 3);
    const int center =
        127 - static_cast<int>(std::lround(std::log2(16.0 * std::sqrt(static_cast<double>(k)))));
    if (t == DType::kFP8E4M3) {
        for (auto& c : w.codes) {
            c = static_cast<uint8_t>(byte(rng));  // all codes, subnormals too
            if ((c & 0x7F) == 0x7F) c = 0;
        }
        w.scales.resize(static_cast<size_t>((n + 31) / 32 * ((k + 31) / 32)));
        for (auto& s : w.scales) s = static_cast<uint8_t>(center - 2 + wobble(rng));
    } else if (t == DType::kFP4) {
        for (auto& c : w.codes) c = static_cast<uint8_t>(byte(rng));
        w.scales.resize(static_cast<size_t>(n * (k / 32)));
        for (auto& s : w.scales) s = static_cast<uint8_t>(center + 2 + wobble(rng));
    } else {
        const float scale = 1.0f / std::sqrt(static_cast<float>(k));
        for (int64_t i = 0; i < n * k; ++i) {
            if (t == DType::kBF16)
                reinterpret_cast<bf16*>(w.codes.data())[i] = to_bf16(d(rng) * scale);
            else
                reinterpret_cast<float*>(w.codes.data())[i] = d(rng) * scale;
        }
    }
    w.view.weight = w.codes.data();
    w.view.scale = w.scales.empty() ? nullptr : w.scales.data();
    return w;
}

WeightMatrix on_device(const HostWeight& w) {
    std::string why;
    WeightMatrix m = w.view;
    m.weight = w.codes.data();
    m.scale = w.scales.empty() ? nullptr : w.scales.data();
    const Status s = cuda_backend(&why)->prepare(m);
    EXPECT_TRUE(s.ok()) << s.to_string();
    return m;
}

struct Case::Impl {
    std::vector<Buffer> buffers;
};

Case::Case() : impl_(std::make_unique<Impl>()) {}
Case::~Case() = default;

Arg Case::add(const HostTensor& t, bool changes) {
    host_.push_back(t);
    host_.back().view.data = host_.back().memory.data();
    changes_.push_back(changes);
    return host_.size() - 1;
}

Arg Case::output(DType t, std::vector<int64_t> dims, int64_t row_pad) {
    return add(make_tensor(t, std::move(dims), row_pad), true);
}

Arg Case::none() {
    host_.emplace_back();
    changes_.push_back(false);
    return host_.size() - 1;
}

void Case::run(const Call& on_host, const Call& on_gpu) {
    // The device first: it starts from the untouched inputs, as the twin does.
    run_gpu(on_gpu);
    Args args;
    for (auto& h : host_) {
        Tensor v = h.view;
        if (!h.memory.empty()) v.data = h.memory.data();
        args.push_back(v);
    }
    on_host(ref_op_table(), host().stream(), args);
}

void Case::run_gpu(const Call& call) {
    std::string why;
    Backend* b = cuda_backend(&why);
    Device& device = b->device();
    Args args;
    impl_->buffers.clear();
    for (const auto& h : host_) {
        Tensor v = h.view;
        std::vector<uint8_t> image(h.memory.size() + 2 * kGuard, kGuardByte);
        std::copy(h.memory.begin(), h.memory.end(), image.begin() + kGuard);
        Result<Buffer> buffer = device.allocate(image.size());
        ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
        impl_->buffers.push_back(std::move(buffer).value());
        device.copy_to_device(
            device.stream(), impl_->buffers.back().data(), image.data(), image.size());
        device.stream().synchronize();
        v.data = h.memory.empty() ? nullptr
                                  : static_cast<uint8_t*>(impl_->buffers.back().data()) + kGuard;
        args.push_back(v);
    }
    call(b->ops(), device.stream(), args);
    back_.clear();
    for (size_t i = 0; i < host_.size(); ++i) {
        HostTensor r = host_[i];
        std::vector<uint8_t> image(r.memory.size() + 2 * kGuard);
        device.copy_to_host(device.stream(), image.data(), impl_->buffers[i].data(), image.size());
        device.stream().synchronize();
        for (size_t g = 0; g < kGuard; ++g) {
            EXPECT_EQ(image[g], kGuardByte) << "byte before tensor " << i;
            EXPECT_EQ(image[kGuard + r.memory.size() + g], kGuardByte)
                << "byte " << g << " after tensor " << i;
            if (::testing::Test::HasFailure()) break;
        }
        std::copy(image.begin() + kGuard, image.end() - kGuard, r.memory.begin());
        if (!changes_[i]) {
            EXPECT_EQ(r.memory, host_[i].memory) << "input " << i << " was changed";
        }
        r.view.data = r.memory.data();
        back_.push_back(std::move(r));
    }
    const Status& s = cuda::cuda_stream(device.stream()).status();
    ASSERT_TRUE(s.ok()) << s.to_string();
}

void Case::expect_equal(Arg a, const std::string& what) {
    // Whole memory: padding between rows must be untouched as well.
    if (host_[a].memory == back_[a].memory) return;
    const Tensor &want = host_[a].view, &got = back_[a].view;
    int64_t wrong = 0;
    std::string first;
    each(want, [&](const std::vector<int64_t>& i) {
        const int64_t size = dtype_bits(want.dtype) / 8, o = offset_of(want, i) * size;
        if (std::memcmp(host_[a].memory.data() + o,
                        back_[a].memory.data() + o,
                        static_cast<size_t>(size)) == 0)
            return;
        if (wrong++ == 0)
            first = place(i) + ": " + std::to_string(value_at(got, i)) + " instead of " +
                    std::to_string(value_at(want, i));
    });
    ADD_FAILURE() << what << " " << wrong << " of " << want.numel() << " elements differ, first "
                  << first << (wrong == 0 ? "(only padding)" : "");
}

void Case::expect_close(Arg a, double l2, const std::string& what) {
    Tensor want = host_[a].view, got = back_[a].view;
    want.data = host_[a].memory.data();
    got.data = back_[a].memory.data();
    double diff = 0, norm = 0;
    int64_t n = 0;
    std::string bad;
    each(want, [&](const std::vector<int64_t>& i) {
        const double w = value_at(want, i), g = value_at(got, i);
        if (!std::isfinite(w) || !std::isfinite(g)) {
            const bool same = (std::isnan(w) && std::isnan(g)) || w == g;
            if (!same && bad.empty())
                bad = place(i) + ": " + std::to_string(g) + " instead of " + std::to_string(w);
            return;
        }
        diff += (g - w) * (g - w);
        norm += w * w;
        ++n;
    });
    EXPECT_TRUE(bad.empty()) << what << " " << bad;
    if (n == 0) return;
    EXPECT_LE(std::sqrt(diff), l2 * std::sqrt(norm) + 1e-30)
        << what << " relative L2 " << std::sqrt(diff / (norm + 1e-300));
    const double rms = std::sqrt(norm / static_cast<double>(n));
    double worst = 0;
    std::string where;
    each(want, [&](const std::vector<int64_t>& i) {
        const double w = value_at(want, i), g = value_at(got, i);
        if (!std::isfinite(w) || !std::isfinite(g)) return;
        const double e = std::fabs(g - w) / (std::max(std::fabs(w), rms) + 1e-300);
        if (e > worst) {
            worst = e;
            where = place(i) + ": " + std::to_string(g) + " instead of " + std::to_string(w);
        }
    });
    EXPECT_LE(worst, 30 * l2) << what << " worst element " << where;
}

}  // namespace deepinfer::gpu_test
