#include "checkpoint/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
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

Tensor view_of(const ExpectedTensor& want, uint8_t* data, DType dtype) {
    if (want.shape.size() == 1) return Tensor(data, dtype, {want.shape[0]});
    const int64_t columns = want.kind == WeightKind::kFp4 ? want.shape[1] * 2 : want.shape[1];
    return Tensor(data, dtype, {want.shape[0], columns});
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

/// Address space for the tensors of a generated checkpoint. Pages exist between make() and drop().
class GeneratedTensors {
  public:
    GeneratedTensors(SyntheticModel model, std::vector<ExpectedTensor> tensors)
        : model_(std::move(model)),
          tensors_(std::move(tensors)),
          pool_(ThreadPool::available_threads()) {}
    ~GeneratedTensors() {
        if (base_ != nullptr) ::munmap(base_, bytes_);
    }
    GeneratedTensors(const GeneratedTensors&) = delete;
    GeneratedTensors& operator=(const GeneratedTensors&) = delete;

    bool reserve() {
        for (const ExpectedTensor& t : tensors_) {
            offsets_.push_back(bytes_);
            bytes_ += (static_cast<size_t>(synthetic_bytes(t)) + kPage - 1) / kPage * kPage;
        }
        present_.assign(tensors_.size(), false);
        void* p = ::mmap(nullptr,
                         bytes_,
                         PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1,
                         0);
        if (p == MAP_FAILED) return false;
        base_ = static_cast<uint8_t*>(p);
        return true;
    }
    const std::vector<ExpectedTensor>& tensors() const { return tensors_; }
    uint8_t* data(size_t index) const { return base_ + offsets_[index]; }
    size_t total_bytes() const { return bytes_; }

    void make(size_t index) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (present_[index]) return;
        const ExpectedTensor& t = tensors_[index];
        int64_t elements = 1;
        for (const int64_t d : t.shape) elements *= d;
        const int64_t width = synthetic_bytes(t) / elements;
        // Whole draws per part, and parts large enough to be worth a thread.
        constexpr int64_t kPart = 64 * kSyntheticBlock;
        const int64_t parts = (elements + kPart - 1) / kPart;
        pool_.parallel_for(parts, 16, [&](int64_t begin, int64_t end) {
            fill_synthetic(t,
                           model_.seed,
                           model_.config.hc_mult,
                           begin * kPart,
                           std::min(elements, end * kPart),
                           data(index) + begin * kPart * width);
        });
        present_[index] = true;
    }
    void drop(size_t index) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!present_[index]) return;
        const size_t end = index + 1 < offsets_.size() ? offsets_[index + 1] : bytes_;
        // Advice that is always taken for private anonymous pages.
        (void)::madvise(data(index), end - offsets_[index], MADV_DONTNEED);
        present_[index] = false;
    }

  private:
    static constexpr size_t kPage = 4096;
    SyntheticModel model_;
    std::vector<ExpectedTensor> tensors_;
    ThreadPool pool_;
    std::mutex mutex_;
    std::vector<size_t> offsets_;
    std::vector<bool> present_;
    uint8_t* base_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace

struct Checkpoint::Impl {
    std::string dir;
    ModelConfig config;
    std::vector<Shard> shards;
    std::vector<StoredTensor> tensors;
    std::unordered_map<std::string, size_t> by_name;
    /// Aligned copies of wide elements that a writer put at an odd address (rare, see make_view).
    std::vector<std::unique_ptr<uint64_t[]>> copies;
    std::unique_ptr<GeneratedTensors> generated;  ///< instead of shards

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
    return view_of(want, data, dtype);
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

Result<Checkpoint> Checkpoint::generate(SyntheticModel model) {
    auto impl = std::make_unique<Impl>();
    impl->dir = model.name + ":" + std::to_string(model.seed);
    impl->config = model.config;
    std::vector<ExpectedTensor> tensors = expected_tensors(model.config);
    impl->generated = std::make_unique<GeneratedTensors>(std::move(model), std::move(tensors));
    GeneratedTensors& g = *impl->generated;
    if (!g.reserve()) {
        return Status(StatusCode::kResourceExhausted,
                      impl->dir + ": no address space for " + std::to_string(g.total_bytes()) +
                          " bytes of weights");
    }
    for (size_t i = 0; i < g.tensors().size(); ++i) {
        const ExpectedTensor& want = g.tensors()[i];
        const std::string dtype = synthetic_dtype(want);
        impl->by_name.emplace(want.name, i);
        impl->tensors.push_back({want.name,
                                 view_of(want, g.data(i), view_dtype(want.kind, dtype)),
                                 "generated",
                                 dtype});
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
    if (it == impl_->by_name.end()) return nullptr;
    if (impl_->generated != nullptr) impl_->generated->make(it->second);
    return &impl_->tensors[it->second];
}

void Checkpoint::release(const std::string& name) const {
    const auto it = impl_->by_name.find(name);
    DI_CHECK_MSG(it != impl_->by_name.end(), name);
    if (impl_->generated != nullptr) impl_->generated->drop(it->second);
}

}  // namespace deepinfer
