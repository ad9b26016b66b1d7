#include "judge/tensor_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"
#include "checkpoint/safetensors.h"
#include "tensor/dtype.h"

namespace deepinfer {
namespace {

template <typename T>
std::vector<uint8_t> raw_bytes(const std::vector<T>& values) {
    std::vector<uint8_t> out(values.size() * sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
    return out;
}

template <typename T>
int64_t element(const uint8_t* p, size_t i) {
    T v;
    std::memcpy(&v, p + i * sizeof v, sizeof v);
    return static_cast<int64_t>(v);
}

}  // namespace

int64_t NamedTensor::numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
}

Result<TensorMap> read_tensor_file(const std::string& path) {
    Result<MmapFile> file = MmapFile::open(path);
    if (!file.ok()) return Status(StatusCode::kInvalidFile, file.status().message());
    Result<std::vector<SafetensorsEntry>> entries = parse_safetensors(file->bytes(), path);
    if (!entries.ok()) return entries.status();
    TensorMap out;
    for (const SafetensorsEntry& e : entries.value()) {
        NamedTensor t;
        t.dtype = e.dtype;
        t.shape = e.shape;
        const uint8_t* base = file->bytes().data();
        t.bytes.assign(base + e.begin, base + e.end);
        out.emplace(e.name, std::move(t));
    }
    return out;
}

Status write_tensor_file(const std::string& path, const TensorMap& tensors) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    size_t at = 0;
    for (const auto& [name, t] : tensors) {
        header[name] = {
            {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
        at += t.bytes.size();
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    // A name of its own, created by us: two runs on one output cannot mix, and no planted link is
    // followed.
    std::string temporary = path + ".XXXXXX";
    const int fd = ::mkstemp(temporary.data());
    std::FILE* f = fd >= 0 ? ::fdopen(fd, "wb") : nullptr;
    if (f == nullptr) {
        return Status(StatusCode::kInvalidArgument,
                      "cannot write beside " + path + ": " + std::strerror(errno));
    }
    ::fchmod(fd, 0644);
    bool ok = std::fwrite(&length, sizeof length, 1, f) == 1 &&
              std::fwrite(text.data(), 1, text.size(), f) == text.size();
    for (const auto& [name, t] : tensors)
        ok = ok && std::fwrite(t.bytes.data(), 1, t.bytes.size(), f) == t.bytes.size();
    ok = std::fclose(f) == 0 && ok;
    if (!ok || std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        return Status(StatusCode::kResourceExhausted, "cannot write " + path + " (disk full?)");
    }
    return {};
}

NamedTensor i32_tensor(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
    return {"I32", std::move(shape), raw_bytes(values)};
}
NamedTensor f32_tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
    return {"F32", std::move(shape), raw_bytes(values)};
}
NamedTensor u8_tensor(std::vector<int64_t> shape, std::vector<uint8_t> values) {
    return {"U8", std::move(shape), std::move(values)};
}

NamedTensor bf16_tensor(std::vector<int64_t> shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = to_bf16(values[i]).bits;
    return {"BF16", std::move(shape), raw_bytes(bits)};
}

Result<std::vector<int32_t>> int_values(const NamedTensor& t, const std::string& name) {
    std::vector<int32_t> out(static_cast<size_t>(t.numel()));
    for (size_t i = 0; i < out.size(); ++i) {
        int64_t v = 0;
        if (t.dtype == "I64")
            v = element<int64_t>(t.bytes.data(), i);
        else if (t.dtype == "I32")
            v = element<int32_t>(t.bytes.data(), i);
        else if (t.dtype == "I16")
            v = element<int16_t>(t.bytes.data(), i);
        else if (t.dtype == "U8")
            v = t.bytes[i];
        else
            return Status(StatusCode::kInvalidFile,
                          name + " has dtype " + t.dtype + ", expected integers");
        if (v < std::numeric_limits<int32_t>::min() || v > std::numeric_limits<int32_t>::max()) {
            return Status(
                StatusCode::kInvalidFile,
                name + "[" + std::to_string(i) + "] = " + std::to_string(v) + " is outside int32");
        }
        out[i] = static_cast<int32_t>(v);
    }
    return out;
}

}  // namespace deepinfer
