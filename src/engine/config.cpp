// EngineConfig: defaults from the environment, ranges, refusals of switches that are not there yet.
#include "deepinfer/config.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "base/env_flags.h"
#include "engine/json_text.h"
#include "engine/spec_planner.h"
#include "engine/spec_rule.h"

namespace deepinfer {
namespace {

/// Bounds of a switch whose real ones come from the checkpoint (engine_parts.cpp says both
/// numbers).
constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

Status bad(const std::string& name, const std::string& found, const std::string& expected) {
    return Status(StatusCode::kInvalidArgument, name + " is " + found + ", expected " + expected);
}

Status later(const std::string& name, const std::string& found, const std::string& neutral) {
    return Status(StatusCode::kUnimplemented,
                  name + " is " + found + ": this version does not do that, only " + neutral);
}

Status check_range(const char* name, int64_t value, int64_t lo, int64_t hi) {
    if (value >= lo && value <= hi) return {};
    return bad(name, std::to_string(value), std::to_string(lo) + " to " + std::to_string(hi));
}

/// Reads one variable of either kind into a field; leaves it alone when unset.
Status read_int(const char* name, int64_t lo, int64_t hi, int64_t* field) {
    const Result<std::optional<int64_t>> value = env_int(name, lo, hi);
    if (!value.ok()) return value.status();
    if (value.value()) *field = *value.value();
    return {};
}

Status read_int(const char* name, int64_t lo, int64_t hi, int* field) {
    int64_t wide = *field;
    DI_RETURN_IF_ERROR(read_int(name, lo, hi, &wide));
    *field = static_cast<int>(wide);
    return {};
}

Status read_bool(const char* name, bool* field) {
    const Result<std::optional<bool>> value = env_bool(name);
    if (!value.ok()) return value.status();
    if (value.value()) *field = *value.value();
    return {};
}

/// Truncation and replay as far as no checkpoint is needed.
Status check_replay(const EngineConfig& c) {
    if (!c.truncation.empty() && c.truncation != "off" && c.truncation != "compact" &&
        c.truncation != "exact") {
        return bad("truncation (DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE)",
                   "'" + c.truncation + "'",
                   "off, compact or exact");
    }
    if (!c.replay.empty() && c.replay != "exact" && c.replay != "bounded" && c.replay != "stored") {
        return bad("replay (DEEPINFER_REPLAY)", "'" + c.replay + "'", "stored, exact or bounded");
    }
    if (c.replay == "bounded" && c.batch_invariant && c.prefix_caching) {
        return bad(
            "replay (DEEPINFER_REPLAY)",
            "'bounded' with batch_invariant 1",
            "stored or exact: an answer after a bounded replay has not the bits of a cold run");
    }
    constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
    DI_RETURN_IF_ERROR(
        check_range("keep_tokens (DEEPINFER_YOCO_PREFILL_KEEP_TOKENS)", c.keep_tokens, 0, kMany));
    DI_RETURN_IF_ERROR(check_range("stored_windows", c.stored_windows, 0, 1 << 20));
    const bool stored = c.replay == "stored" || (c.replay.empty() && c.batch_invariant);
    if (c.stored_windows != 0 && !(stored && c.prefix_caching)) {
        return bad("stored_windows",
                   std::to_string(c.stored_windows),
                   "0: replay is '" + (c.replay.empty() ? "bounded" : c.replay) +
                       "' or prefix caching is off, so nothing is stored");
    }
    const bool bounded = c.replay != "exact" && !c.batch_invariant;
    if (c.keep_tokens != 0 && c.truncation != "compact" && !(bounded && c.prefix_caching)) {
        const std::string mode =
            c.truncation.empty() ? (c.batch_invariant ? "exact" : "off") : c.truncation;
        return bad("keep_tokens (DEEPINFER_YOCO_PREFILL_KEEP_TOKENS)",
                   std::to_string(c.keep_tokens),
                   "0: truncation is '" + mode +
                       "', which has no such number (compact and bounded replay have)");
    }
    return {};
}

/// What can be told of speculation without a checkpoint.
Status check_speculation(const EngineConfig& c) {
    const std::optional<SpecRule> rule = parse_spec_rule(c.spec_sampling);
    if (!rule) {
        return bad("spec_sampling (DEEPINFER_SPEC_SAMPLING)",
                   "'" + c.spec_sampling + "'",
                   "coupled, rejection, argmax or block");
    }
    if (*rule != SpecRule::kCoupled && c.batch_invariant) {
        return bad(
            "spec_sampling (DEEPINFER_SPEC_SAMPLING)",
            "'" + c.spec_sampling + "'",
            "coupled with batch_invariant 1 (DEEPINFER_BATCH_INVARIANT): the other rules keep "
            "the distribution, not the tokens");
    }
    const Result<SpecOptions> budget = parse_spec_budget(c.spec_budget);
    if (!budget.ok()) return budget.status();
    if (!(c.spec_forced_acceptance == -1 ||
          (c.spec_forced_acceptance >= 0 && c.spec_forced_acceptance <= 64))) {
        return bad("spec_forced_acceptance",
                   json_number(c.spec_forced_acceptance),
                   "-1 (off) or 0 to nextn drafts");
    }
    return {};
}

}  // namespace

Result<EngineConfig> EngineConfig::from_environment() {
    EngineConfig c;
    if (const auto accelerator = env_text("DEEPINFER_ACCELERATOR")) {
        if (*accelerator == "nvidia") {
            c.backend = "cuda";
        } else if (*accelerator == "cpu" || *accelerator == "ascend" || *accelerator == "auto") {
            c.backend = *accelerator;
        } else {
            return bad(
                "DEEPINFER_ACCELERATOR", "'" + *accelerator + "'", "cpu, nvidia, ascend or auto");
        }
    }
    if (const auto dir = env_text("DEEPINFER_HF_MODEL_DIR")) c.model_dir = *dir;
    if (const auto isa = env_text("DEEPINFER_ISA")) c.isa = *isa;
    DI_RETURN_IF_ERROR(read_int("DEEPINFER_THREADS", 1, 4096, &c.threads));
    DI_RETURN_IF_ERROR(read_bool("DEEPINFER_BATCH_INVARIANT", &c.batch_invariant));
    DI_RETURN_IF_ERROR(read_int("DEEPINFER_USE_NEXTN_DECODE", -kMostInt, kMostInt, &c.nextn));
    DI_RETURN_IF_ERROR(read_bool("DEEPINFER_ENABLE_MTP_VARLEN", &c.varlen));
    if (const auto mode = env_text("DEEPINFER_SPEC_SAMPLING")) c.spec_sampling = *mode;
    if (const auto mode = env_text("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE")) c.truncation = *mode;
    DI_RETURN_IF_ERROR(
        read_int("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", 1, int64_t{1} << 31, &c.keep_tokens));
    if (const auto kind = env_text("DEEPINFER_REPLAY")) c.replay = *kind;
    DI_RETURN_IF_ERROR(
        read_int("DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", 0, 1 << 20, &c.extra_experts));
    bool blocking = false;
    DI_RETURN_IF_ERROR(read_bool("DEEPINFER_LAUNCH_BLOCKING", &blocking));
    if (blocking) return later("DEEPINFER_LAUNCH_BLOCKING", "1", "0");
    return c;
}

Status EngineConfig::validate() const {
    constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
    DI_RETURN_IF_ERROR(check_range("threads", threads, 0, 4096));
    DI_RETURN_IF_ERROR(check_range("device_index", device_index, 0, 255));
    DI_RETURN_IF_ERROR(check_range("max_num_seqs", max_num_seqs, 1, 65536));
    DI_RETURN_IF_ERROR(check_range("max_num_batched_tokens", max_num_batched_tokens, 1, 1 << 20));
    DI_RETURN_IF_ERROR(check_range("max_model_len", max_model_len, 0, kMany));
    DI_RETURN_IF_ERROR(check_range("kv_cache_bytes", kv_cache_bytes, 0, int64_t{1} << 50));
    DI_RETURN_IF_ERROR(check_range("block_tokens", block_tokens, 1, 4096));
    DI_RETURN_IF_ERROR(check_range("max_queue", max_queue, 0, kMany));
    DI_RETURN_IF_ERROR(check_range("max_logit_rows", max_logit_rows, 0, 1 << 20));
    DI_RETURN_IF_ERROR(
        check_range("long_prefill_token_threshold", long_prefill_token_threshold, 0, kMany));
    DI_RETURN_IF_ERROR(check_range("image_workers", image_workers, 1, 256));
    DI_RETURN_IF_ERROR(check_range("image_bytes", image_bytes, 1, int64_t{1} << 50));
    DI_RETURN_IF_ERROR(check_range("image_cache_bytes", image_cache_bytes, 0, int64_t{1} << 50));
    DI_RETURN_IF_ERROR(check_range("encoder_patches", encoder_patches, 0, 1 << 24));
    if (max_image_tokens != 0)
        DI_RETURN_IF_ERROR(check_range("max_image_tokens", max_image_tokens, 4, 1 << 20));
    if (!(age_s > 0) || !std::isfinite(age_s)) {
        return bad("age_s", json_number(age_s), "a positive number of seconds");
    }

    DI_RETURN_IF_ERROR(check_speculation(*this));
    DI_RETURN_IF_ERROR(check_replay(*this));
    if (ep != 1) return later("ep", std::to_string(ep), "1");
    if (dp != 1) return later("dp", std::to_string(dp), "1");
    if (cp != 1) return later("cp", std::to_string(cp), "1");
    if (extra_experts != 0) {
        return later("extra experts (DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS)",
                     std::to_string(extra_experts),
                     "0 (copies are useless on one rank)");
    }
    return {};
}

std::string EngineConfig::to_json() const {
    JsonLine j;
    j.text("model_dir", model_dir)
        .text("synthetic", synthetic)
        .text("backend", backend)
        .integer("threads", threads);
    j.text("isa", isa).integer("device_index", device_index);
    j.integer("max_num_seqs", max_num_seqs)
        .integer("max_num_batched_tokens", max_num_batched_tokens);
    j.integer("max_model_len", max_model_len).integer("kv_cache_bytes", kv_cache_bytes);
    j.integer("block_tokens", block_tokens).integer("max_queue", max_queue);
    j.integer("max_logit_rows", max_logit_rows).boolean("prefix_caching", prefix_caching);
    j.boolean("async_scheduling", async_scheduling).boolean("batch_invariant", batch_invariant);
    j.integer("long_prefill_token_threshold", long_prefill_token_threshold).number("age_s", age_s);
    j.integer("image_workers", image_workers).boolean("image_processes", image_processes);
    j.integer("image_bytes", image_bytes).integer("image_cache_bytes", image_cache_bytes);
    j.integer("encoder_patches", encoder_patches).integer("max_image_tokens", max_image_tokens);
    j.text("step_log", step_log);
    if (nextn == kNextnOfCheckpoint) {
        j.text("nextn", "of the checkpoint");
    } else {
        j.integer("nextn", nextn);
    }
    j.boolean("varlen", varlen);
    j.text("spec_sampling", spec_sampling).text("spec_budget", spec_budget);
    j.boolean("spec_auto_off", spec_auto_off).text("spec_calibration", spec_calibration);
    j.number("spec_forced_acceptance", spec_forced_acceptance).text("truncation", truncation);
    j.integer("keep_tokens", keep_tokens)
        .text("replay", replay)
        .integer("stored_windows", stored_windows)
        .integer("ep", ep)
        .integer("dp", dp)
        .integer("cp", cp);
    j.integer("extra_experts", extra_experts);
    return j.str();
}

}  // namespace deepinfer
