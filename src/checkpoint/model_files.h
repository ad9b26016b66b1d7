// ModelFiles: the shards of a model directory, mapped, their headers checked, joined by the index.
//
// Knows safetensors and the index file, not what the tensors mean. Names in the index are
// untrusted: only plain file names are followed, and a symbolic link must stay inside the directory
// or in the `blobs` folder of the same Hugging Face cache entry.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/mmap_file.h"
#include "checkpoint/safetensors.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct Shard {
    std::string name;  ///< file name within the directory
    MmapFile file;
    std::vector<SafetensorsEntry> entries;
};

struct TensorPlace {
    size_t shard = 0;
    size_t entry = 0;
};

struct ModelFiles {
    std::vector<Shard> shards;
    std::unordered_map<std::string, TensorPlace> tensors;
    /// Disagreements of index and shards, one sentence each.
    std::vector<std::string> mismatches;

    const SafetensorsEntry& entry(TensorPlace p) const { return shards[p.shard].entries[p.entry]; }

    /// Opens every shard that model.safetensors.index.json names, or the single model.safetensors
    /// of a directory without an index. kNotFound if a file is missing, kInvalidFile if one is
    /// broken.
    static Result<ModelFiles> open(const std::string& dir);
};

/// The path of a plain file of the model directory after the checks above. kNotFound if it is not
/// there.
Result<std::string> model_file_path(const std::string& dir, const std::string& name);

}  // namespace deepinfer
