#include "checkpoint/tensor_check.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "checkpoint/strict_json.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxListed = 4000;

std::string listed(const std::string& title,
                   const std::vector<std::string>& items,
                   const char* separator) {
    std::string text = title;
    for (size_t i = 0; i < items.size() && i < kMaxListed; ++i) {
        text += (i > 0 ? separator : "") + items[i];
    }
    if (items.size() > kMaxListed) {
        text += " and " + std::to_string(items.size() - kMaxListed) + " more";
    }
    return text;
}

/// Names of a file may hold anything; ordinary ones are shown bare.
std::string show_name(const std::string& name) {
    const std::string q = in_quotes(name);
    return q.size() == name.size() + 2 ? name : q;
}

void check_one(const ExpectedTensor& want,
               const SafetensorsEntry& have,
               const Shard& shard,
               std::vector<std::string>* wrong) {
    if (!accepts_dtype(want.kind, have.dtype)) {
        wrong->push_back(want.name + " has dtype " + have.dtype + ", expected " +
                         accepted_dtypes(want.kind) + ", " + shard.name);
        return;
    }
    if (have.shape != want.shape) {
        wrong->push_back(want.name + " is " + shape_text(have.shape) + ", expected " +
                         shape_text(want.shape) + " (" + want.dims + "), " + shard.name);
        return;
    }
    if (want.kind != WeightKind::kFp8Scale && want.kind != WeightKind::kFp4Scale) return;
    const std::span<const uint8_t> bytes = shard.file.bytes().subspan(
        static_cast<size_t>(have.begin), static_cast<size_t>(have.end - have.begin));
    constexpr int kNanScale = 255;
    const void* nan = bytes.empty() ? nullptr : std::memchr(bytes.data(), kNanScale, bytes.size());
    if (nan == nullptr) return;
    const int64_t at = static_cast<const uint8_t*>(nan) - bytes.data();
    wrong->push_back(
        want.name + " has the NaN scale 255 at [" + std::to_string(at / have.shape[1]) + ", " +
        std::to_string(at % have.shape[1]) + "], expected finite scales, " + shard.name);
}

}  // namespace

std::string TensorCheck::message() const {
    std::string text;
    const auto part = [&](const std::string& sentence) {
        text += (text.empty() ? "" : "; ") + sentence;
    };
    const auto names = [](size_t n) {
        return std::to_string(n) + (n == 1 ? " tensor" : " tensors");
    };
    if (!missing.empty()) part(listed(names(missing.size()) + " missing: ", missing, ", "));
    if (!unexpected.empty()) {
        part(listed(names(unexpected.size()) + " not expected: ", unexpected, ", "));
    }
    if (!wrong.empty()) part(listed("", wrong, "; "));
    return text;
}

TensorCheck check_tensors(const ModelConfig& config, const ModelFiles& files) {
    TensorCheck out;
    const int64_t count = count_expected_tensors(config);
    if (count > kMaxExpectedTensors) {
        out.wrong.push_back("the config implies " + std::to_string(count) + " tensors, at most " +
                            std::to_string(kMaxExpectedTensors) + " are supported");
        return out;
    }
    out.expected = expected_tensors(config);
    out.wrong = files.mismatches;
    std::unordered_set<std::string> known;
    for (const ExpectedTensor& want : out.expected) {
        known.insert(want.name);
        const auto it = files.tensors.find(want.name);
        if (it == files.tensors.end()) {
            if (!want.optional) out.missing.push_back(want.name);
            continue;
        }
        check_one(want, files.entry(it->second), files.shards[it->second.shard], &out.wrong);
    }
    for (const auto& item : files.tensors) {
        if (known.count(item.first) != 0) continue;
        (is_ignored_leftover(item.first) ? out.ignored : out.unexpected)
            .push_back(show_name(item.first));
    }
    std::sort(out.unexpected.begin(), out.unexpected.end());
    std::sort(out.ignored.begin(), out.ignored.end());
    return out;
}

}  // namespace deepinfer
