#include "engine/host_logits.h"

#include "base/check.h"

namespace deepinfer {

const float* HostLogits::read(Backend& backend, const Tensor& logits) {
    Device& device = backend.device();
    const size_t count = static_cast<size_t>(logits.numel());
    DI_CHECK(logits.dense());
    if (device.host_accessible() && logits.dtype == DType::kF32) return logits.ptr<float>();
    if (count == 0) return nullptr;
    const size_t bytes = static_cast<size_t>(logits.bytes());
    if (raw_.bytes() < bytes) {
        raw_ = HostBuffer();
        Result<HostBuffer> made = device.allocate_host(bytes);
        DI_CHECK_MSG(made.ok(), made.status().message());  // a few MiB: the process cannot go on
        raw_ = std::move(made).value();
    }
    device.copy_to_host(device.stream(), raw_.data(), logits.data, bytes);
    device.stream().synchronize();
    if (logits.dtype == DType::kF32) return reinterpret_cast<const float*>(raw_.data());
    values_.resize(count);
    dispatch_acc(logits.dtype, [&](auto tag) {
        const auto* from = reinterpret_cast<const decltype(tag)*>(raw_.data());
        for (size_t i = 0; i < count; ++i) values_[i] = static_cast<float>(from[i]);
    });
    return values_.data();
}

}  // namespace deepinfer
