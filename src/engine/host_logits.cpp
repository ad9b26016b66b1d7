#include "engine/host_logits.h"

#include "base/check.h"

namespace deepinfer {

const float* HostLogits::read(Backend& backend, const Tensor& logits) {
    Device& device = backend.device();
    const size_t count = static_cast<size_t>(logits.numel());
    DI_CHECK(logits.dense());
    if (device.host_accessible() && logits.dtype == DType::kF32) return logits.ptr<float>();
    if (count == 0) return nullptr;
    raw_.resize(static_cast<size_t>(logits.bytes()));
    device.copy_to_host(device.stream(), raw_.data(), logits.data, raw_.size());
    device.stream().synchronize();
    values_.resize(count);
    dispatch_acc(logits.dtype, [&](auto tag) {
        const auto* from = reinterpret_cast<const decltype(tag)*>(raw_.data());
        for (size_t i = 0; i < count; ++i) values_[i] = static_cast<float>(from[i]);
    });
    return values_.data();
}

}  // namespace deepinfer
