#include "checkpoint/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "checkpoint/model_files.h"
#include "checkpoint/tensor_check.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxConfigBytes = 16u << 20;

DType view_dtype(WeightKind kind, const std::string& stored) {
    switch (kind) {
        case WeightKind::kPlain:
            return stored == "F32" ? DType::kF32 : DType::kBF16;
        case WeightKind::kFp8:
        case WeightKind::kEngramTable:
            return DType::kFP8E4M3;
        case WeightKind::kFp4:
            return DType::kFP4;
        case WeightKind::kFp8Scale:
        case WeightKind::kFp4Scale:
        case WeightKind::kEngramScale:
            return DType::kUE8M0;
    }
    return DType::kU8;
}

/// Rows of a table are read singly and far apart: read-ahead would only fill memory with
/// neighbours.
void advise_random(const uint8_t* data, size_t bytes) {
    const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
    // Advice only: a failure changes nothing but speed.
    if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
}

}  // namespace

struct Checkpoint::Impl {
    std::string dir;
    ModelConfig config;
    std::vector<Shard> shards;
    std::vector<StoredTensor> tensors;
    std::unordered_map<std::string, size_t> by_name;
    /// Aligned copies of wide elements that a writer put at an odd address (rare, see make_view).
    std::vector<std::unique_ptr<uint64_t[]>> copies;

    Tensor make_view(const ExpectedTensor& want, const SafetensorsEntry& entry, const Shard& shard);
};

Tensor Checkpoint::Impl::make_view(const ExpectedTensor& want,
                                   const SafetensorsEntry& entry,
                                   const Shard& shard) {
    // The mapping is read-only; Tensor has no const form.
    uint8_t* data = const_cast<uint8_t*>(shard.file.bytes().data()) + entry.begin;
    const size_t bytes = static_cast<size_t>(entry.end - entry.begin);
    const DType dtype = view_dtype(want.kind, entry.dtype);
    const uintptr_t element = static_cast<uintptr_t>(dtype_bits(dtype)) / 8;
    if (element > 1 && reinterpret_cast<uintptr_t>(data) % element != 0) {
        // The format does not promise alignment, but reading a float through an unaligned pointer
        // is undefined. The size was checked against the file before.
        copies.emplace_back(new uint64_t[(bytes + 7) / 8]);
        std::memcpy(copies.back().get(), data, bytes);
        data = reinterpret_cast<uint8_t*>(copies.back().get());
    }
    if (want.kind == WeightKind::kEngramTable || want.kind == WeightKind::kEngramScale) {
        advise_random(data, bytes);
    }
    if (want.shape.size() == 1) return Tensor(data, dtype, {want.shape[0]});
    const int64_t columns = want.kind == WeightKind::kFp4 ? want.shape[1] * 2 : want.shape[1];
    return Tensor(data, dtype, {want.shape[0], columns});
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Result<Checkpoint> Checkpoint::open(const std::string& dir) {
    Result<std::string> config_path = model_file_path(dir, "config.json");
    if (!config_path.ok()) return config_path.status();
    Result<std::string> text = read_file(config_path.value(), kMaxConfigBytes);
    if (!text.ok()) return text.status();
    Result<ModelConfig> config = parse_model_config(text.value(), config_path.value());
    if (!config.ok()) return config.status();
    Result<ModelFiles> files = ModelFiles::open(dir);
    if (!files.ok()) return files.status();
    const TensorCheck check = check_tensors(config.value(), files.value());
    if (!check.ok()) return Status(StatusCode::kInvalidFile, dir + ": " + check.message());

    auto impl = std::make_unique<Impl>();
    impl->dir = dir;
    impl->config = std::move(config).value();
    impl->shards = std::move(files->shards);
    impl->tensors.reserve(check.expected.size());
    for (const ExpectedTensor& want : check.expected) {
        const auto it = files->tensors.find(want.name);
        if (it == files->tensors.end()) continue;  // optional
        const Shard& shard = impl->shards[it->second.shard];
        const SafetensorsEntry& entry = shard.entries[it->second.entry];
        impl->by_name.emplace(want.name, impl->tensors.size());
        impl->tensors.push_back(
            {want.name, impl->make_view(want, entry, shard), shard.name, entry.dtype});
    }
    return Checkpoint(std::move(impl));
}

const std::string& Checkpoint::dir() const {
    return impl_->dir;
}
const ModelConfig& Checkpoint::config() const {
    return impl_->config;
}
const std::vector<StoredTensor>& Checkpoint::tensors() const {
    return impl_->tensors;
}

const StoredTensor* Checkpoint::find(const std::string& name) const {
    const auto it = impl_->by_name.find(name);
    return it == impl_->by_name.end() ? nullptr : &impl_->tensors[it->second];
}

}  // namespace deepinfer
