// The device itself: memory, copies, and what failures look like from outside.
#include "backends/cuda/cuda_device.h"
#include "gpu/gpu_support.h"

namespace deepinfer::gpu_test {
namespace {

using DeviceGpu = GpuTest;

TEST_F(DeviceGpu, RefusesAnIndexThatDoesNotExist) {
    BackendOptions o;
    o.device_index = 1000;
    const Result<std::unique_ptr<Backend>> b = create_backend("cuda", o);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(b.status().message().find("1000"), std::string::npos) << b.status().message();
}

TEST_F(DeviceGpu, OutOfMemoryNamesBothNumbersAndLeavesTheDeviceUsable) {
    std::string why;
    Device& device = cuda_backend(&why)->device();
    const size_t free = device.free_bytes();
    ASSERT_GT(free, 0u);
    const Result<Buffer> b = device.allocate(size_t{1} << 50);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(b.status().message().find(std::to_string(size_t{1} << 50)), std::string::npos);
    const Result<Buffer> small = device.allocate(1 << 20);
    EXPECT_TRUE(small.ok());
}

TEST_F(DeviceGpu, CopiesAndFillsGoRoundTrip) {
    std::string why;
    Device& device = cuda_backend(&why)->device();
    std::vector<uint8_t> out(100003), in(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(rng());
    Result<Buffer> b = device.allocate(out.size());
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 256, 0u);
    device.copy_to_device(device.stream(), b->data(), out.data(), out.size());
    device.fill_zero(device.stream(), b->data(), 10);
    device.copy_to_host(device.stream(), in.data(), b->data(), in.size());
    device.stream().synchronize();
    std::fill(out.begin(), out.begin() + 10, uint8_t{0});
    EXPECT_EQ(in, out);
}

TEST_F(DeviceGpu, AFailedCallIsKeptAndLaterWorkIsNotStarted) {
    // A device of its own: its stream stays failed for good.
    Result<std::unique_ptr<cuda::CudaDevice>> d = cuda::CudaDevice::create(0);
    ASSERT_TRUE(d.ok()) << d.status().to_string();
    cuda::CudaDevice& device = *d.value();
    Result<Buffer> b = device.allocate(4096);
    ASSERT_TRUE(b.ok());
    device.fill_zero(device.stream(), b->data(), 4096);
    device.copy_to_device(device.stream(), nullptr, &device, 16);
    const Status& s = device.cuda().status();
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_NE(s.message().find("cudaMemcpyAsync"), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("16 bytes"), std::string::npos) << s.message();
    // An op on the failed stream does nothing: x stays as it is.
    std::string why;
    std::vector<float> x(32, 1.0f);
    Tensor t(b->data(), DType::kBF16, {1, 64});
    cuda_backend(&why)->ops().scale_bf16(device.stream(), t, 2.0f, t);
    device.stream().synchronize();
    EXPECT_EQ(device.cuda().status().message(), s.message()) << "the first failure is the one kept";
}

TEST_F(DeviceGpu, ARecordingDoesItsCallsAgainOnNewContents) {
    std::string why;
    Backend& backend = *cuda_backend(&why);
    Device& device = backend.device();
    ASSERT_TRUE(device.records_graphs());
    const int64_t n = 4096;
    Result<Buffer> memory = device.allocate(static_cast<size_t>(n) * 2);
    ASSERT_TRUE(memory.ok());
    const Tensor x(memory->data(), DType::kBF16, {1, n});
    std::vector<bf16> host(static_cast<size_t>(n));
    const auto put = [&](float v) {
        std::fill(host.begin(), host.end(), to_bf16(v));
        device.copy_to_device(device.stream(), x.data, host.data(), host.size() * 2);
        device.stream().synchronize();
    };
    const auto first = [&] {
        device.copy_to_host(device.stream(), host.data(), x.data, host.size() * 2);
        device.stream().synchronize();
        return to_float(host[0]);
    };
    put(1.0f);
    const std::unique_ptr<DeviceGraph> graph = device.capture(device.stream(), [&] {
        backend.ops().scale_bf16(device.stream(), x, 2.0f, x);
        Stream& side = device.stream().fork();
        backend.ops().scale_bf16(side, x, 2.0f, x);
        device.stream().join();
        backend.ops().scale_bf16(device.stream(), x, 2.0f, x);
    });
    ASSERT_NE(graph, nullptr) << device.stream().status().to_string();
    EXPECT_EQ(first(), 1.0f) << "recording must not run anything";
    graph->launch(device.stream());
    EXPECT_EQ(first(), 8.0f);
    put(3.0f);
    graph->launch(device.stream());
    graph->launch(device.stream());
    EXPECT_EQ(first(), 192.0f);
    EXPECT_FALSE(graph->stale(device.stream()));
    cuda::cuda_stream(device.stream()).scratch(size_t{300} << 20);
    EXPECT_TRUE(graph->stale(device.stream())) << "scratch memory has moved";
}

TEST_F(DeviceGpu, PinnedMemoryOutOfReachIsRefusedWithItsSize) {
    std::string why;
    Device& device = cuda_backend(&why)->device();
    const Result<HostBuffer> b = device.allocate_host(size_t{1} << 50);
    ASSERT_FALSE(b.ok());
    EXPECT_EQ(b.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(b.status().message().find(std::to_string(size_t{1} << 50)), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::gpu_test
