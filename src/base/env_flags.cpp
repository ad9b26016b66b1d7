#include "base/env_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

extern char** environ;

namespace deepinfer {
namespace {

constexpr EnvFlag kFlags[] = {
    {"DEEPINFER_ACCELERATOR",
     EnvType::kText,
     "cpu",
     "Backend: cpu, nvidia, ascend or auto; at build time which one is compiled, at run time which "
     "one is used."},
    {"DEEPINFER_HF_MODEL_DIR",
     EnvType::kText,
     "",
     "Checkpoint directory used when no --model is given."},
    {"DEEPINFER_THREADS", EnvType::kInt, "", "CPU threads; default: what the container allows."},
    {"DEEPINFER_ISA", EnvType::kText, "", "Forces a lower CPU instruction set."},
    {"DEEPINFER_AFFINITY",
     EnvType::kBool,
     "0",
     "1: every CPU thread stays on a core of its own; needs as many cores as threads."},
    {"DEEPINFER_BATCH_INVARIANT",
     EnvType::kBool,
     "1",
     "1: the result of a request does not depend on the requests beside it."},
    {"DEEPINFER_USE_NEXTN_DECODE",
     EnvType::kInt,
     "",
     "Draft tokens that a step verifies per sequence, 0 (plain decoding) to the checkpoint's "
     "dspark_block_size (unset: that)."},
    {"DEEPINFER_ENABLE_MTP_VARLEN",
     EnvType::kBool,
     "0",
     "1: the number of verified drafts is chosen per request and step."},
    {"DEEPINFER_SPEC_SAMPLING",
     EnvType::kText,
     "coupled",
     "How drafts are accepted: coupled, or without DEEPINFER_BATCH_INVARIANT rejection, argmax or "
     "block."},
    {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
     EnvType::kText,
     "",
     "Which prompt rows the upper layers may skip: off, compact or exact (unset: exact with "
     "DEEPINFER_BATCH_INVARIANT=1, else off)."},
    {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS",
     EnvType::kInt,
     "",
     "Rows that compact truncation and bounded replay keep (unset: window + 2*(1 + draft block))."},
    {"DEEPINFER_REPLAY",
     EnvType::kText,
     "",
     "Window state after a prefix hit: stored, exact or bounded (unset: stored with "
     "DEEPINFER_BATCH_INVARIANT=1, else bounded)."},
    {"DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS",
     EnvType::kInt,
     "0",
     "Lower bound of redundant experts under expert parallelism."},
    {"DEEPINFER_LAUNCH_BLOCKING",
     EnvType::kBool,
     "0",
     "1: every operator finishes before the next starts."},
};

const EnvFlag* find_flag(const std::string& name) {
    for (const EnvFlag& f : kFlags) {
        if (name == f.name) return &f;
    }
    return nullptr;
}

}  // namespace

std::span<const EnvFlag> env_flags() {
    return kFlags;
}

std::optional<int64_t> parse_whole_number(const std::string& text, int64_t lo, int64_t hi) {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const std::from_chars_result r = std::from_chars(text.data(), end, value);
    if (r.ec != std::errc() || r.ptr != end || value < lo || value > hi) return std::nullopt;
    return value;
}

std::optional<std::string> env_text(const std::string& name) {
    DI_CHECK_MSG(find_flag(name) != nullptr, name);
    const char* text = std::getenv(name.c_str());
    if (text == nullptr || *text == '\0') return std::nullopt;
    return std::string(text);
}

Result<std::optional<int64_t>> env_int(const std::string& name, int64_t lo, int64_t hi) {
    const std::optional<std::string> text = env_text(name);
    if (!text) return std::optional<int64_t>();
    const std::optional<int64_t> value = parse_whole_number(*text, lo, hi);
    if (!value) {
        return Status(StatusCode::kInvalidArgument,
                      name + " is '" + *text + "', expected a whole number from " +
                          std::to_string(lo) + " to " + std::to_string(hi));
    }
    return value;
}

Result<std::optional<bool>> env_bool(const std::string& name) {
    const std::optional<std::string> text = env_text(name);
    if (!text) return std::optional<bool>();
    if (*text != "0" && *text != "1") {
        return Status(StatusCode::kInvalidArgument, name + " is '" + *text + "', expected 0 or 1");
    }
    return std::optional<bool>(*text == "1");
}

std::vector<std::string> unknown_env_flags() {
    constexpr const char* kPrefix = "DEEPINFER_";
    std::vector<std::string> unknown;
    for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
        const std::string entry(*e);
        if (entry.compare(0, std::strlen(kPrefix), kPrefix) != 0) continue;
        const std::string name = entry.substr(0, entry.find('='));
        if (find_flag(name) == nullptr) unknown.push_back(name);
    }
    std::sort(unknown.begin(), unknown.end());
    return unknown;
}

}  // namespace deepinfer
