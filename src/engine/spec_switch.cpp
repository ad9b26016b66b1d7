#include "engine/spec_switch.h"

#include <algorithm>
#include <bit>

namespace deepinfer {
namespace {

constexpr int64_t kProbeSteps = 4, kPause = 256, kLongestPause = 4096, kSecondLook = 16;
constexpr double kFade = 0.9;

}  // namespace

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
    ++r.steps;
    r.tokens = r.tokens * kFade + static_cast<double>(tokens);
    r.us = r.us * kFade + static_cast<double>(us);
    const bool probe = drafts != b.on;
    if (probe && r.steps == kProbeSteps) judge(b);
}

void SpecSwitch::judge(Bucket& b) {
    const Rate& without = b.rate[0];
    const Rate& with = b.rate[1];
    if (b.on) {
        if (with.steps < kProbeSteps) return;
        b.bad = with.value() < without.value() ? b.bad + 1 : 0;
        b.pause = b.bad > 0 ? kSecondLook : kPause;
        if (b.bad >= 2) {
            b.on = false;
            b.bad = 0;
            b.pause = kPause;
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
