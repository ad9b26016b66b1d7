// The judge's door: run the model on given tokens and write every named intermediate, so that any
// independent reference can be compared tensor by tensor.
//
// The names and shapes of what is written are those of tests/data/golden/README.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct ForwardOptions {
    std::string model_dir;
    std::string input;                ///< safetensors with input_ids, prompt_ids + tokens, or rgb
    std::string output;               ///< safetensors to write
    std::vector<std::string> force;   ///< safetensors files whose expert ids, candidate blocks,
                                      ///< top-k lists and draft tokens are used
    std::vector<std::string> images;  ///< pictures (or safetensors with rgb) in order of the spans
    std::string backend = "cpu";      ///< "exact": twins with fp64 between the rounding points
    std::string isa;                  ///< CPU instruction set, empty = best
    int threads = 0;                  ///< 0 = what the container allows
    int64_t chunk = 512;              ///< prompt rows per step
    std::function<void(int64_t done, int64_t total)> progress;  ///< may be empty; rows done so far
};

/// Runs the file and writes the dump. Returns a one-line JSON summary (rows, steps, tensors,
/// seconds). The draft stages run with the text unless the checkpoint has none or the backend does
/// not draft ("drafts" in the summary; the draft.* and mtp* tensors are then left out).
/// An input with rgb alone runs the picture path up to the aligner's rows, without the language
/// model.
Result<std::string> run_forward(const ForwardOptions& options);

/// What to measure of the vision encoder.
struct VisionBenchOptions {
    std::string model_dir;
    std::string synthetic;  ///< generated weights instead of a directory ("ve-slice[:SEED]")
    std::string backend = "cpu", isa;
    int threads = 0;
    std::vector<std::pair<int64_t, int64_t>> sizes;  ///< width, height of pictures
    std::vector<int64_t> batches;                    ///< pictures encoded at once
    std::vector<std::string> images;  ///< files: only decode, resize and cut them, one thread
    int warmup = 3, iters = 20;
    const std::atomic<bool>* cancel = nullptr;
};

/// Loads vision.* and aligner.* alone and times the device path (patches, tower, downsample,
/// aligner) for every size and batch on synthetic patches, and the CPU path (resize, cut, digest)
/// of one picture on one thread. `record` gets one line of JSON for each point: times, pictures,
/// patches and LLM tokens per second, achieved FLOP/s and, where the backend can tell, their share
/// of what dot products reach in the same seconds. Batches beyond what fits are refused. With
/// `images`: one line for each file, `cpu_ms_per_image` from its bytes to its patches.
Status bench_vision(const VisionBenchOptions& options,
                    const std::function<void(const std::string& json)>& record);

/// Teacher-forced scoring of token sequences: one model, many samples.
class Scorer {
  public:
    struct Options {
        std::string model_dir;
        std::string backend = "cpu";
        std::string isa;
        int threads = 0;
        bool decode_path = false;  ///< token by token instead of prefill chunks
        int64_t chunk = 256;       ///< rows per step of the prefill path
    };
    static Result<Scorer> create(const Options& options);
    ~Scorer();
    Scorer(Scorer&&) noexcept;
    Scorer& operator=(Scorer&&) noexcept;

    /// Natural-log probability of ids[i + 1] given ids[0..i], for i = 0 .. n − 2. kInvalidArgument
    /// for an id outside the vocabulary, kOutOfRange (both numbers) for a sequence longer than the
    /// context.
    Result<std::vector<double>> log_probs(const std::vector<int32_t>& ids);

  private:
    struct Impl;
    explicit Scorer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
