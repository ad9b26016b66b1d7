// EngineConfig: everything that is fixed when an engine starts.
//
//   Result<EngineConfig> config = EngineConfig::from_environment();   // the DEEPINFER_* switches
//   config->model_dir = "/models/demo";                               // options of a program win
//   auto engine = Engine::create(config.value());
//
// A value of 0 or "" means "choose for me"; Engine::config() shows what was chosen. Switches whose
// feature this version does not have are refused by name (kUnimplemented) unless they are neutral.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer {

struct EngineConfig {
    // Model and machine
    std::string
        model_dir;  ///< checkpoint directory; required (the embedded one is the caller's choice)
    std::string synthetic;  ///< instead of model_dir: generated weights, "NAME[:SEED]" with a named
                            ///< geometry (cpu-slice, slice-e48) or a config.json; prompts are ids
    std::string backend = "cpu";  ///< a compiled backend ("cpu", "cuda", "ref", "exact"), or "auto"
    int threads = 0;              ///< host threads of the backend; 0 = what the container allows
    std::string isa;              ///< force a lower CPU instruction set; "" = the best there is
    int device_index = 0;         ///< which accelerator of the host

    // Limits. Every pool is allocated at start from these.
    int64_t max_num_seqs = 64;  ///< sequences that may run at once (window rings are per sequence)
    int64_t max_num_batched_tokens = 512;  ///< rows of one step, prompt chunks and decodes together
    int64_t max_model_len =
        0;  ///< longest prompt + output; 0 = the checkpoint's, at most what the pool holds
    int64_t kv_cache_bytes = 0;  ///< pool of compressed KV and index keys; 0 = max_num_seqs ×
                                 ///< max_model_len, at most 128 MiB
    int block_tokens = 128;      ///< tokens of one cache block, the unit of sharing
    int64_t max_queue = 0;       ///< waiting requests before submit() says kQueueFull; 0 = no limit
    int64_t max_logit_rows =
        0;  ///< rows of one step whose logits are wanted; 0 = max(max_num_seqs, 64)

    // Behaviour
    bool prefix_caching = true;  ///< reuse the blocks of earlier prompts with the same beginning
    bool async_scheduling =
        true;  ///< plan step n+1 while step n runs; the tokens are the same either way
    bool batch_invariant = true;  ///< a request's bits depend on nothing but the request
    int64_t long_prefill_token_threshold =
        0;                 ///< most rows of one prompt in one step; 0 = no limit
    double age_s = 30;     ///< a waiting request rises one priority class every age_s seconds
    std::string step_log;  ///< append one JSON line a step to this file; "" = off

    // Speculation: a step verifies drafts of the checkpoint's DSpark stages. Outputs are the same
    // (spec_sampling coupled), or have the same distribution.
    /// Drafts a step verifies per sequence, 0 (none) to the checkpoint's dspark_block_size. The
    /// default is the latter if checkpoint and backend can draft, else 0.
    int nextn = kNextnOfCheckpoint;
    static constexpr int kNextnOfCheckpoint = std::numeric_limits<int>::min();
    bool varlen = false;  ///< verify as many as confidences and measured costs say, at most nextn
    /// Which drafts stand. "coupled" (or ""): those that the model itself would have sampled,
    /// bitwise the output without drafts; "rejection", "argmax", "block": by chance, the model's
    /// distribution but not the same tokens, so not with batch_invariant.
    std::string spec_sampling;
    /// varlen: "model" (most expected tokens per time), "full" (all), "threshold:0.3" (those that
    /// survive with at least that chance).
    std::string spec_budget = "model";
    bool spec_auto_off =
        true;  ///< stop drafting where measured tokens per second are lower with it
    std::string spec_calibration;  ///< file that keeps the confidences' calibration; "" = none
    /// Benchmarks only: this many drafts of a round stand whatever the model says (−1: off).
    /// Outputs are then meaningless.
    double spec_forced_acceptance = -1;

    /// Prompt rows of the layers above the last kv source ("off", "compact", "exact"; "" = exact
    /// with batch_invariant, else off). `exact` leaves out what no later token depends on and keeps
    /// every bit; `compact` runs the last keep_tokens rows alone, an approximation that depends on
    /// the prompt and not on its chunks. Prompt log-probabilities need every row: such requests are
    /// not cut (EngineStats::uncut_prompts).
    std::string truncation;
    /// Rows that `compact` and bounded replay keep; 0 = window + 2·(1 + draft block), which is also
    /// the least. Refused where neither is in use.
    int64_t keep_tokens = 0;
    /// How window state comes back after a prefix hit: "exact" (part of the hit runs again, the
    /// bits of a cold run), "bounded" (one window of it, an approximation; not with
    /// batch_invariant), "stored" (copied from where an earlier request left it, the same bits;
    /// where nothing is stored as the other two); "" = stored with batch_invariant, else bounded.
    std::string replay;
    /// Window states that `stored` keeps, beside those of running sequences; 0 = as many as 32 MiB
    /// hold, 4 to 2·max_num_seqs. Refused with another replay.
    int64_t stored_windows = 0;

    // Pictures; without effect if the checkpoint takes none
    int image_workers = 1;        ///< pictures decoded at the same time, beside the engine
    bool image_processes = true;  ///< decode in sandboxed processes; false: in threads of this one
    int64_t image_bytes = int64_t{1} << 30;  ///< memory of pictures between decoding and the last
                                             ///< use of their patches; more requests wait
    int64_t image_cache_bytes = int64_t{256} << 20;  ///< encoded pictures kept for later use
    int64_t encoder_patches = 0;   ///< patches encoded in one step; 0 = 1,521 on a CPU, else 16,384
    int64_t max_image_tokens = 0;  ///< most tokens of one picture; 0 = the checkpoint's

    // Switches of later versions: anything but the neutral value is refused by name.
    int ep = 1, dp = 1, cp = 1;  ///< neutral 1
    int64_t extra_experts = 0;   ///< neutral 0

    /// The defaults above, overridden by the DEEPINFER_* variables that are set (base/env_flags.h
    /// has the table). kInvalidArgument names the variable, its text and what it may be.
    static Result<EngineConfig> from_environment();

    /// Everything that can be told without a checkpoint: ranges, and neutral values of later
    /// switches.
    Status validate() const;

    /// One line of JSON with every field, for the start-up log and for records.
    std::string to_json() const;
};

/// DEEPINFER_* variables of the environment that no table entry names, sorted. A typo in a switch
/// that silently does nothing is the worst failure of environment configuration: programs print
/// these.
std::vector<std::string> unknown_env_flags();

}  // namespace deepinfer
