// What a model directory is, without running it: which directory a name means, and a report of its
// contents, sound or not.
//
//   Result<std::string> dir = resolve_model_dir(flag, env);
//   Result<std::string> report = inspect_checkpoint(dir.value());   // JSON
//   Result<std::string> text = render_inspection(report.value(), InspectionText{});
//
// Nothing here downloads, and no weight is read (scales of quantized weights are, see below). All
// functions may be called from any thread; none throws.
#pragma once

#include <string>

#include "deepinfer/status.h"

namespace deepinfer {

/// The model directory to open: `flag` (--model) if not empty, else `env` (DEEPINFER_HF_MODEL_DIR)
/// if not empty, else the embedded demonstration checkpoint.
///
/// A value that is an existing directory stands for itself. Otherwise a hub id such as
/// "deepseek-ai/DeepSeek-V4.1-Flash" is looked up in the local Hugging Face cache ($HF_HUB_CACHE,
/// else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub): the
/// snapshot that refs/main names. The demonstration checkpoint is looked for at
/// ../share/deepinfer/models/demo beside the running program, then in the source tree that it was
/// built from.
///
/// kNotFound says where was looked and, for a hub id, which command fetches it.
Result<std::string> resolve_model_dir(const std::string& flag, const std::string& env);

/// One JSON document about a model directory:
///
///   directory, loadable, refused[]       refused: why it would not load, a sentence each; empty =
///   loads geometry{}                           the config, under the checkpoint's field names
///   layers[]                             per layer: name, ratio, mode (window, full, reuse,
///   reindex, draft),
///                                        half (encoder, decoder or null), kv_source, index_source,
///                                        candidate (source, filtered or null), engram_table,
///                                        dspark_tap
///   tensors[]                            name, kind, dtype, shape (stored), shard, bytes
///   bytes_by_kind{}, parameters{}        parameters: total, backbone, engram_tables, draft, vision
///   cache{}                              global_bytes_per_token, window_bytes_per_sequence,
///                                        tail_bytes_per_sequence
///   ignored_tensors[]                    known leftovers that the loader skips
///
/// Parts that cannot be told (a broken config has no geometry) are absent. kNotFound only if the
/// directory does not exist; everything else that is wrong stands in `refused`. Reads config,
/// index, shard headers and the scales of quantized weights.
Result<std::string> inspect_checkpoint(const std::string& dir);

struct InspectionText {
    bool list_tensors = false;  ///< one line a tensor (96,085 in the release) besides the summary
};

/// The report of inspect_checkpoint() for people. kInvalidArgument if it is not such a report.
Result<std::string> render_inspection(const std::string& report, const InspectionText& options);

}  // namespace deepinfer
