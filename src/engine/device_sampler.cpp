#include "engine/device_sampler.h"

#include <cstring>

#include "base/check.h"

namespace deepinfer {
namespace {

/// Grows a buffer to at least `bytes`.
template <typename B>
Status reserve(B& buffer, size_t bytes, Result<B> (Device::*allocate)(size_t), Device& device) {
    if (buffer.bytes() >= bytes) return {};
    buffer = B();
    Result<B> made = (device.*allocate)(bytes);
    if (!made.ok()) return made.status();
    buffer = std::move(made).value();
    return {};
}

}  // namespace

bool DeviceSampler::works() const {
    return !model_.backend().device().host_accessible() &&
           model_.backend().ops().sample_rows != nullptr;
}

bool DeviceSampler::takes(const RowPlan& p, const TokenHistory& history) const {
    return !p.has_allowed && p.bad_words.empty() && p.logit_bias.empty() && !p.has_penalties &&
           !p.has_logprobs && static_cast<int64_t>(history.output().size()) >= p.min_tokens &&
           (p.greedy || p.truncation.off(model_.config().vocab_size));
}

Status DeviceSampler::queue(const Tensor& logits, std::span<const SampleRequest> requests) {
    Device& device = model_.backend().device();
    Stream& stream = device.stream();
    const size_t most = static_cast<size_t>(model_.limits().max_logit_rows);
    DI_CHECK_LE(requests.size(), most);
    DI_RETURN_IF_ERROR(
        reserve(host_requests_, most * sizeof(SampleRequest), &Device::allocate_host, device));
    DI_RETURN_IF_ERROR(
        reserve(host_choices_, most * sizeof(SampleChoice), &Device::allocate_host, device));
    DI_RETURN_IF_ERROR(reserve(requests_, most * sizeof(SampleRequest), &Device::allocate, device));
    DI_RETURN_IF_ERROR(reserve(choices_, most * sizeof(SampleChoice), &Device::allocate, device));
    queued_ = requests.size();
    std::memcpy(host_requests_.data(), requests.data(), requests.size_bytes());
    device.copy_to_device(stream, requests_.data(), host_requests_.data(), requests.size_bytes());
    const auto n = static_cast<int64_t>(queued_);
    model_.backend().ops().sample_rows(
        stream,
        logits,
        Tensor(requests_.data(), DType::kU8, {n, static_cast<int64_t>(sizeof(SampleRequest))}),
        Tensor(choices_.data(), DType::kU8, {n, static_cast<int64_t>(sizeof(SampleChoice))}));
    device.copy_to_host(
        stream, host_choices_.data(), choices_.data(), queued_ * sizeof(SampleChoice));
    return {};
}

std::span<const SampleChoice> DeviceSampler::choices() const {
    return {reinterpret_cast<const SampleChoice*>(host_choices_.data()), queued_};
}

}  // namespace deepinfer
