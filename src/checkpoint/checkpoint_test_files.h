// Helpers of this folder's tests: temporary model directories, and safetensors files rewritten with
// changes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/golden_file.h"

namespace deepinfer::testing {

inline std::string slurp(const std::filesystem::path& path) {
    std::ifstream f(path, std::ios::binary);
    EXPECT_TRUE(f.good()) << path;
    return {std::istreambuf_iterator<char>(f), {}};
}

inline void spill(const std::filesystem::path& path, const std::string& bytes) {
    std::filesystem::remove(path);  // it may be a hard link to the original
    std::ofstream f(path, std::ios::binary);
    f.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(f.good()) << path;
}

/// A folder in the build tree that is gone after the test.
class TempDir {
  public:
    TempDir() {
        std::string pattern = std::string(DEEPINFER_BINARY_DIR) + "/checkpoint_test_XXXXXX";
        if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed";
        path_ = pattern;
    }
    ~TempDir() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    std::filesystem::path path() const { return path_; }
    std::string str() const { return path_.string(); }

  private:
    std::filesystem::path path_;
};

/// Links the files of a test checkpoint into a folder; changed files are replaced there.
inline void copy_checkpoint(const std::string& name, const TempDir& to) {
    const std::filesystem::path from = checkpoint_path(name);
    ASSERT_TRUE(std::filesystem::is_directory(from))
        << from << ": build the target test_checkpoints";
    for (const auto& file : std::filesystem::directory_iterator(from)) {
        const auto target = to.path() / file.path().filename();
        std::error_code error;
        std::filesystem::create_hard_link(file.path(), target, error);
        if (error) std::filesystem::copy_file(file.path(), target);
    }
}

struct RawTensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::string bytes;
};

inline std::string safetensors_bytes(const nlohmann::ordered_json& header,
                                     const std::string& data) {
    const std::string text = header.dump();
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>((text.size() >> (8 * i)) & 255u);
    return out + text + data;
}

inline void write_shard(const std::filesystem::path& path, const std::vector<RawTensor>& tensors) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::string data;
    for (const RawTensor& t : tensors) {
        header[t.name] = {{"dtype", t.dtype},
                          {"shape", t.shape},
                          {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
        data += t.bytes;
    }
    spill(path, safetensors_bytes(header, data));
}

inline std::vector<RawTensor> read_shard(const std::filesystem::path& path) {
    std::vector<RawTensor> out;
    for (const auto& item : read_golden(path.string())) {
        out.push_back({item.first,
                       item.second.dtype,
                       item.second.shape,
                       std::string(item.second.bytes.begin(), item.second.bytes.end())});
    }
    return out;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
    return nlohmann::json::parse(slurp(path));
}

constexpr char kIndexFile[] = "model.safetensors.index.json";

inline std::vector<std::string> shard_names(const std::filesystem::path& dir) {
    std::vector<std::string> out;
    for (const auto& file : std::filesystem::directory_iterator(dir)) {
        if (file.path().extension() == ".safetensors") out.push_back(file.path().filename());
    }
    return out;
}

/// Passes each tensor of the checkpoint to `change` (return false: drop it), rewrites the shards
/// that differ and the index. `added` goes into the first shard.
inline void mutate_tensors(const std::filesystem::path& dir,
                           const std::function<bool(RawTensor&)>& change,
                           const std::vector<RawTensor>& added = {}) {
    nlohmann::json index = read_json(dir / kIndexFile);
    nlohmann::json map = nlohmann::json::object();
    bool first = true;
    for (const std::string& shard : shard_names(dir)) {
        std::vector<RawTensor> kept;
        for (RawTensor& t : read_shard(dir / shard)) {
            if (change(t)) kept.push_back(std::move(t));
        }
        if (first) kept.insert(kept.end(), added.begin(), added.end());
        first = false;
        write_shard(dir / shard, kept);
        for (const RawTensor& t : kept) map[t.name] = shard;
    }
    index["weight_map"] = map;
    spill(dir / kIndexFile, index.dump());
}

inline bool keep_all(RawTensor&) {
    return true;
}

}  // namespace deepinfer::testing
