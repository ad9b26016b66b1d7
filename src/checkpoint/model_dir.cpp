// resolve_model_dir(): from what the user said to a directory. Never downloads.
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/mmap_file.h"
#include "checkpoint/strict_json.h"
#include "deepinfer/checkpoint.h"

#ifndef DEEPINFER_DEMO_SOURCE_DIR
#error "DEEPINFER_DEMO_SOURCE_DIR must be defined (src/checkpoint/CMakeLists.txt)"
#endif

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

std::string env_or_empty(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

bool directory_exists(const fs::path& path) {
    std::error_code error;
    return fs::is_directory(path, error);
}

bool id_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

/// "owner/name" of safe characters; such a text cannot climb out of the cache folder.
bool is_hub_id(const std::string& text) {
    const size_t slash = text.find('/');
    if (slash == std::string::npos || slash == 0 || slash + 1 == text.size()) return false;
    if (text.size() > 200 || text[0] == '.' || text[slash + 1] == '.') return false;
    for (size_t i = 0; i < text.size(); ++i) {
        if (i != slash && !id_character(text[i])) return false;
    }
    return text.find("..") == std::string::npos;
}

fs::path hub_cache() {
    if (const std::string dir = env_or_empty("HF_HUB_CACHE"); !dir.empty()) return dir;
    if (const std::string dir = env_or_empty("HF_HOME"); !dir.empty()) return fs::path(dir) / "hub";
    if (const std::string dir = env_or_empty("XDG_CACHE_HOME"); !dir.empty()) {
        return fs::path(dir) / "huggingface" / "hub";
    }
    return fs::path(env_or_empty("HOME")) / ".cache" / "huggingface" / "hub";
}

Result<std::string> find_in_hub_cache(const std::string& id) {
    std::string folder = "models--" + id;
    folder.replace(folder.find('/'), 1, "--");
    const fs::path cache = hub_cache();
    const fs::path entry = cache / folder;
    const std::string fetch = "; fetch it with: hf download " + id;
    const auto absent = [&](const std::string& what) {
        return Status(StatusCode::kNotFound, what + fetch);
    };
    if (!directory_exists(entry)) {
        return absent(in_quotes(id) + " is no directory, and the local Hugging Face cache " +
                      cache.string() + " does not hold it");
    }
    const fs::path ref = entry / "refs" / "main";
    Result<std::string> revision = read_file(ref.string(), 4096);
    if (!revision.ok()) {
        return absent(in_quotes(id) + " has no main revision in the local Hugging Face cache (" +
                      ref.string() + ")");
    }
    std::string name = revision.value();
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) {
        name.pop_back();
    }
    bool plain = !name.empty() && name[0] != '.';
    for (char c : name) plain = plain && id_character(c);
    if (!plain) {
        return Status(StatusCode::kInvalidFile,
                      ref.string() + " is " + in_quotes(name) + ", expected a revision");
    }
    const fs::path snapshot = entry / "snapshots" / name;
    if (!directory_exists(snapshot)) {
        return absent(in_quotes(id) + " is not complete in the local Hugging Face cache (no " +
                      snapshot.string() + ")");
    }
    return snapshot.string();
}

Result<std::string> find_demo() {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    fs::path installed;
    if (!error) {
        installed = program.parent_path().parent_path() / "share" / "deepinfer" / "models" / "demo";
        if (directory_exists(installed)) return installed.string();
    }
    if (directory_exists(DEEPINFER_DEMO_SOURCE_DIR)) return std::string(DEEPINFER_DEMO_SOURCE_DIR);
    return Status(StatusCode::kNotFound,
                  "the demonstration checkpoint is neither in " + installed.string() + " nor in " +
                      DEEPINFER_DEMO_SOURCE_DIR + "; name a model directory with --model DIR");
}

}  // namespace

Result<std::string> resolve_model_dir(const std::string& flag, const std::string& env) {
    try {
        const std::string& wanted = flag.empty() ? env : flag;
        if (wanted.empty()) return find_demo();
        if (directory_exists(wanted)) return wanted;
        if (is_hub_id(wanted)) return find_in_hub_cache(wanted);
        return Status(StatusCode::kNotFound,
                      in_quotes(wanted) + " is no directory (from " +
                          (flag.empty() ? "DEEPINFER_HF_MODEL_DIR" : "--model") +
                          "), expected a model directory or a hub id such as "
                          "deepseek-ai/DeepSeek-V4.1-Flash");
    } catch (const std::exception& e) {
        return Status(StatusCode::kNotFound,
                      std::string("cannot resolve the model directory: ") + e.what());
    }
}

}  // namespace deepinfer
