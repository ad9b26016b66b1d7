// Generated checkpoints: a geometry without files, for measurements on dimensions that no small
// checkpoint has.
//
// A geometry is a config under a name ("cpu-slice", "slice-e48") or any config.json. Every stored
// byte is a function of (seed, tensor name, place), so the values are the same on every backend, in
// any order of generation and for any number of threads. Their statistics follow the released
// weights closely enough that activations stay in range (kernel plan 5, model spec 7.2); the text
// such a model writes means nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "checkpoint/weight_names.h"
#include "deepinfer/status.h"

namespace deepinfer {

struct SyntheticModel {
    std::string name;  ///< geometry name or path as given, without the seed
    uint64_t seed = 1;
    ModelConfig config;
};

/// "NAME", "NAME:SEED", "PATH" or "PATH:SEED". A name wins over a file of the same name.
/// kInvalidArgument: neither a known name nor a file, or a seed that is no number; kInvalidFile: a
/// config that a checkpoint could not have either, or one of the few that only files can have.
Result<SyntheticModel> parse_synthetic(const std::string& text);

/// The names of the geometries, sorted.
std::vector<std::string> synthetic_geometries();
/// config.json of a named geometry; empty for an unknown name.
std::string synthetic_config_json(const std::string& name);

/// How a generated tensor is stored, as safetensors spells it ("BF16", "F32", "F8_E4M3", …).
const char* synthetic_dtype(const ExpectedTensor& tensor);
/// Stored bytes of a generated tensor.
int64_t synthetic_bytes(const ExpectedTensor& tensor);

/// Elements that one draw of the generator fills: ranges for fill_synthetic begin at a multiple.
constexpr int64_t kSyntheticBlock = 32;

/// Stored elements [begin, end) of a tensor (FP4: bytes) into `out`, where element `begin` belongs.
/// `hc_mult` places the constants of the hyper-connection tensors.
///
///   FP4 codes      uniform over the 16; scale 2^-round(log2(2.93 · √k))
///   FP8 codes      e4m3(16 · N(0, 1)); scale 2^-round(log2(16 · √k)), Engram rows 2^-7
///   norm weights   the released means (attn .025, ffn .2, q .97, kv .4, compressor .6, index k .5,
///                  others 1) ± 10 %
///   embed          N(0, .12²), gate N(0, (2.9 / √D)²), other matrices N(0, 1/k)
///   hc base, scale pre near 1/4, post near 1, comb near the identity; biases and sinks zero
///
/// Requires begin % kSyntheticBlock == 0.
void fill_synthetic(const ExpectedTensor& tensor,
                    uint64_t seed,
                    int64_t hc_mult,
                    int64_t begin,
                    int64_t end,
                    uint8_t* out);

}  // namespace deepinfer
