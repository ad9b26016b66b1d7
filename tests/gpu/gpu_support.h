// Twin tests on a GPU: the same op call on the host twin and on the device, and what came back
// compared.
//
//   Case c;
//   const Arg x = c.input(random_bf16(...)), out = c.output(DType::kBF16, {rows, n});
//   c.run([&](const OpTable& ops, Stream& s, const Args& a) { ops.rms_norm(s, a[x], a[w], 1e-6f,
//   a[out]); }); c.expect_close(out, 2e-3);
//
// Outputs start as NaN (floats) or a marker (integers) and stand between guard bytes on the device,
// so a missed element and a stray write both show. Random values are seeded by the test's name.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/host_device.h"
#include "ops/backend.h"

namespace deepinfer::gpu_test {

/// The device backend, or nullptr with the reason in `why`.
Backend* cuda_backend(std::string* why);
HostDevice& host();

/// Skips with the reason when there is no fitting device.
class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override;
    void TearDown() override;
    std::mt19937_64 rng;
};

/// Host memory of one tensor; rows may be padded (stride > columns).
struct HostTensor {
    std::vector<uint8_t> memory;
    Tensor view;
};
HostTensor make_tensor(DType t, std::vector<int64_t> dims, int64_t row_pad = 0);

HostTensor normal_bf16(std::mt19937_64& rng,
                       std::vector<int64_t> dims,
                       float scale = 1.0f,
                       int64_t row_pad = 0);
HostTensor normal_f32(std::mt19937_64& rng, std::vector<int64_t> dims, float scale = 1.0f);
HostTensor ints(std::vector<int32_t> values, std::vector<int64_t> dims);
HostTensor longs(std::vector<int64_t> values, std::vector<int64_t> dims);
HostTensor bytes_of(std::vector<uint8_t> values, std::vector<int64_t> dims);

/// Stored weight with host memory: random codes and sane scales (every finite code occurs).
struct HostWeight {
    std::vector<uint8_t> codes, scales;
    WeightMatrix view;
};
HostWeight random_weight(std::mt19937_64& rng, DType t, int64_t n, int64_t k);
/// The device's copy (packed).
WeightMatrix on_device(const HostWeight& w);

using Arg = size_t;
using Args = std::vector<Tensor>;

class Case {
  public:
    Case();
    ~Case();
    Arg input(const HostTensor& t) { return add(t, false); }
    /// Changed in place on both sides.
    Arg inout(const HostTensor& t) { return add(t, true); }
    Arg output(DType t, std::vector<int64_t> dims, int64_t row_pad = 0);
    /// No tensor (an op's "or empty").
    Arg none();

    using Call = std::function<void(const OpTable&, Stream&, const Args&)>;
    /// Runs the fp32 twin, then the device op, and fetches the results.
    void run(const Call& call) { run(call, call); }
    void run(const Call& on_host, const Call& on_gpu);
    void run_gpu(const Call& call);

    void expect_equal(Arg a, const std::string& what = "");
    /// NaN and Inf at the same places; relative L2 within `l2`; no element off by more than 30 · l2
    /// of max(|twin|, rms).
    void expect_close(Arg a, double l2, const std::string& what = "");

    const HostTensor& twin(Arg a) const { return host_[a]; }
    const HostTensor& gpu(Arg a) const { return back_[a]; }

  private:
    struct Impl;
    Arg add(const HostTensor& t, bool changes);
    std::vector<HostTensor> host_, back_;
    std::vector<bool> changes_;
    std::unique_ptr<Impl> impl_;
};

/// Row i of a tensor's first dimension as bytes, strides honoured.
std::vector<uint8_t> row_bytes(const HostTensor& t, int64_t row);
double value_at(const Tensor& t, const std::vector<int64_t>& index);

}  // namespace deepinfer::gpu_test
