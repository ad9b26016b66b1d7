#include "checkpoint/model_files.h"

#include <filesystem>
#include <set>
#include <utility>

#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";
constexpr size_t kMaxIndexBytes = 256u << 20;  // released index: about 10 MB

bool plain_file_name(const std::string& name) {
    if (name.empty() || name.size() > 255 || name[0] == '.') return false;
    for (char c : name) {
        if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20) return false;
    }
    return name.find("..") == std::string::npos;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
    auto p = path.begin();
    for (const fs::path& part : folder) {
        if (p == path.end() || *p != part) return false;
        ++p;
    }
    return p != path.end();
}

/// name → shard file name.
Result<std::unordered_map<std::string, std::string>> read_index(const std::string& path) {
    Result<std::string> text = read_file(path, kMaxIndexBytes);
    if (!text.ok()) return text.status();
    Result<json> parsed = parse_strict_json(text.value(), JsonLimits{}, path);
    if (!parsed.ok()) return parsed.status();
    const auto bad = [&](const std::string& what) {
        return Status(StatusCode::kInvalidFile, path + ": " + what);
    };
    if (!parsed->is_object() || !parsed->contains("weight_map") ||
        !parsed.value()["weight_map"].is_object()) {
        return bad("has no weight_map object");
    }
    // metadata.total_size is not checked: converters are known to leave it stale, and every size
    // that matters stands in the shard headers.
    std::unordered_map<std::string, std::string> out;
    for (const auto& item : parsed.value()["weight_map"].items()) {
        if (!item.value().is_string()) {
            return bad("shard of " + in_quotes(item.key()) + " is " + show_json(item.value()) +
                       ", expected a file name");
        }
        const std::string& shard = item.value().get_ref<const std::string&>();
        if (!plain_file_name(shard)) {
            return bad("shard of " + in_quotes(item.key()) + " is " + in_quotes(shard) +
                       ", expected a plain file name in the model directory");
        }
        out.emplace(item.key(), shard);
    }
    return out;
}

Result<Shard> open_shard(const std::string& dir, const std::string& name) {
    Result<std::string> path = model_file_path(dir, name);
    if (!path.ok()) return path.status();
    Result<MmapFile> file = MmapFile::open(path.value());
    if (!file.ok()) return file.status();
    Result<std::vector<SafetensorsEntry>> entries = parse_safetensors(file->bytes(), path.value());
    if (!entries.ok()) return entries.status();
    Shard shard;
    shard.name = name;
    shard.file = std::move(file).value();
    shard.entries = std::move(entries).value();
    return shard;
}

}  // namespace

Result<std::string> model_file_path(const std::string& dir, const std::string& name) {
    try {
        std::error_code error;
        const fs::path path = fs::path(dir) / name;
        const fs::path target = fs::canonical(path, error);
        if (error) {
            return Status(StatusCode::kNotFound,
                          "cannot open " + path.string() + ": " + error.message());
        }
        const fs::path home = fs::canonical(dir, error);
        if (error) {
            return Status(StatusCode::kNotFound, "cannot open " + dir + ": " + error.message());
        }
        // Cache entries of the Hugging Face hub: snapshots/<revision>/file → ../../blobs/<digest>.
        const fs::path blobs = home.parent_path().parent_path() / "blobs";
        const bool hub = home.parent_path().filename() == "snapshots";
        if (!is_inside(target, home) && !(hub && is_inside(target, blobs))) {
            return Status(StatusCode::kInvalidFile,
                          path.string() + " leads to " + target.string() +
                              ", expected a file inside the model directory");
        }
        return path.string();
    } catch (const std::exception& e) {
        return Status(StatusCode::kInvalidFile,
                      "cannot resolve a file of " + dir + ": " + e.what());
    }
}

Result<ModelFiles> ModelFiles::open(const std::string& dir) {
    std::unordered_map<std::string, std::string> index;
    std::set<std::string> shard_names;
    Result<std::string> index_path = model_file_path(dir, kIndexName);
    const bool indexed = index_path.ok() || index_path.status().code() != StatusCode::kNotFound;
    if (indexed) {
        if (!index_path.ok()) return index_path.status();
        auto read = read_index(index_path.value());
        if (!read.ok()) return read.status();
        index = std::move(read).value();
        for (const auto& item : index) shard_names.insert(item.second);
    } else if (model_file_path(dir, kSingleName).ok()) {
        shard_names.insert(kSingleName);
    } else {
        return Status(StatusCode::kNotFound,
                      dir + " has neither " + kIndexName + " nor " + kSingleName);
    }

    ModelFiles out;
    for (const std::string& name : shard_names) {
        Result<Shard> shard = open_shard(dir, name);
        if (!shard.ok()) return shard.status();
        out.shards.push_back(std::move(shard).value());
    }
    for (size_t s = 0; s < out.shards.size(); ++s) {
        for (size_t e = 0; e < out.shards[s].entries.size(); ++e) {
            const std::string& name = out.shards[s].entries[e].name;
            if (indexed) {
                const auto it = index.find(name);
                if (it == index.end() || it->second != out.shards[s].name) {
                    out.mismatches.push_back(
                        in_quotes(name) + " is in " + out.shards[s].name + ", but the index " +
                        (it == index.end() ? "does not name it" : "puts it into " + it->second));
                    continue;
                }
            }
            out.tensors.emplace(name, TensorPlace{s, e});
        }
    }
    for (const auto& item : index) {
        if (out.tensors.count(item.first) == 0) {
            out.mismatches.push_back("the index puts " + in_quotes(item.first) + " into " +
                                     item.second + ", which does not hold it");
        }
    }
    return out;
}

}  // namespace deepinfer
