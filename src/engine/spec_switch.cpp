#include "engine/spec_switch.h"

#include <algorithm>
#include <bit>

namespace deepinfer {
namespace {

constexpr int64_t kProbeSteps = 4, kPause = 256, kLongestPause = 4096;
/// On a busy machine a comparison can be wrong. Drafts must lose several in a row, soon after one
/// another, by more than what is lost by having them; what was turned off is soon looked at again.
constexpr int64_t kSecondLook = 8, kFirstPause = 96;
constexpr int kLosses = 3;
constexpr double kLoss = 0.98;

}  // namespace

double SpecSwitch::Rate::value() const {
    const size_t n = std::min(static_cast<size_t>(steps), kSteps);
    if (n == 0) return 0;
    std::array<int64_t, kSteps> times{};
    for (size_t i = 0; i < n; ++i) times[i] = seen[i].second;
    const auto usual = times.begin() + static_cast<int64_t>((n - 1) / 2);
    std::nth_element(times.begin(), usual, times.begin() + static_cast<int64_t>(n));
    const int64_t most = *usual + *usual / 2;
    int64_t tokens = 0, us = 0;
    for (size_t i = 0; i < n; ++i) {
        tokens += seen[i].first;
        us += std::min(seen[i].second, most);
    }
    return us > 0 ? static_cast<double>(tokens) / static_cast<double>(us) : 0;
}

size_t SpecSwitch::index(int64_t decodes) {
    const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(decodes)));
    return std::min<size_t>(width, 19);
}

bool SpecSwitch::use_drafts(int64_t decodes) {
    Bucket& b = at(decodes);
    if (b.probe_left > 0) {
        if (--b.probe_left == 0) b.until_probe = b.pause;
        return !b.on;
    }
    if (--b.until_probe <= 0) {
        b.probe_left = kProbeSteps;
        b.rate[b.on ? 0 : 1] = {};  // a fresh look
    }
    return b.on;
}

void SpecSwitch::observe(int64_t decodes, bool drafts, int64_t tokens, int64_t us) {
    Bucket& b = at(decodes);
    Rate& r = b.rate[drafts ? 1 : 0];
    r.seen[static_cast<size_t>(r.steps++) % Rate::kSteps] = {tokens, us};
    const bool probe = drafts != b.on;
    if (probe && r.steps == kProbeSteps) judge(b);
}

void SpecSwitch::judge(Bucket& b) {
    const Rate& without = b.rate[0];
    const Rate& with = b.rate[1];
    if (b.on) {
        if (with.steps < kProbeSteps) return;
        b.bad = with.value() < kLoss * without.value() ? b.bad + 1 : 0;
        b.pause = b.bad > 0 ? kSecondLook : kPause;
        if (b.bad >= kLosses) {
            b.on = false;
            b.bad = 0;
            b.pause = kFirstPause;
            ++switched_off_;
        }
    } else if (with.value() > without.value()) {
        b.on = true;
        b.pause = kPause;
    } else {
        b.pause = std::min(b.pause * 2, kLongestPause);
    }
    b.until_probe = b.pause;
}

double SpecSwitch::rate(int64_t decodes, bool drafts) const {
    return at(decodes).rate[drafts ? 1 : 0].value() * 1e6;
}

}  // namespace deepinfer
