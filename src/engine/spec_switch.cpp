#include "engine/spec_switch.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace deepinfer {
namespace {

/// Steps of a probe, and of the least evidence for a decision by time.
constexpr int64_t kProbe = 4;
/// Share of the time that probes may lose.
constexpr double kShare = 0.0075;
/// Between two probes, whatever the purse says.
constexpr int64_t kLeastPause = 16, kLongestPause = 4096;
/// A probe is never thought to be cheaper than if one way were a tenth slower than the other.
constexpr double kLeastLoss = 0.1;
/// Drafts must lose more than is gained by turning them off and on.
constexpr double kLoss = 0.98;
/// What is needed of a trial: a difference of so many standard errors. It ends when drafts have
/// lost the time of kTrialLoss plain steps, or after kTrialSteps of them.
constexpr double kSure = 1.64, kTrialLoss = 3;
constexpr int64_t kTrialSteps = 16;
/// Standard deviations of one sequence's tokens in a step, by their mean, and of a step's time.
constexpr double kTokensVary = 0.5, kTimesVary = 0.1;
/// Memory of the tokens, in steps; before drafts that were off are tried, all but the latest steps
/// and rounds are forgotten: the texts may be others.
constexpr double kFade = 1 - 1.0 / 32;
constexpr double kKeepSteps = 8, kKeepRounds = 32;
/// A comparison that would decide otherwise by so much (of a logarithm) is repeated soon.
constexpr double kDoubt = 0.1;
/// Windows must hold something before drafts are tried.
constexpr int64_t kAhead = 36;

}  // namespace

void SpecSwitch::Side::add(int64_t decodes, int64_t step_tokens, int64_t step_us) {
    const auto n = static_cast<double>(decodes);
    us[static_cast<size_t>(steps++) % kSteps] = static_cast<double>(step_us) / n;
    tokens = tokens * kFade + static_cast<double>(step_tokens);
    rounds = rounds * kFade + n;
}

double SpecSwitch::Side::usual_us() const {
    const auto n = static_cast<int64_t>(std::min(static_cast<size_t>(steps), kSteps));
    if (n == 0) return 0;
    std::array<double, kSteps> sorted = us;
    std::sort(sorted.begin(), sorted.begin() + n);
    const double most = 1.5 * sorted[static_cast<size_t>((n - 1) / 2)];
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::min(us[static_cast<size_t>(i)], most);
    return sum / static_cast<double>(n);
}

double SpecSwitch::Bucket::usual_dearer() const {
    const size_t n = std::min(compared, dearer.size());
    if (n == 0) {
        const double without = side[0].usual_us();
        return without > 0 ? side[1].usual_us() / without : 0;
    }
    std::array<double, 5> sorted = dearer;
    std::sort(sorted.begin(), sorted.begin() + static_cast<int64_t>(n));
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

double SpecSwitch::Bucket::gain(double times) const {
    const double plain = side[0].yield();
    return times > 0 && plain > 0 ? side[1].yield() / plain / times : 0;
}

double SpecSwitch::Bucket::error() const {
    const auto steps = static_cast<double>(std::min(side[0].steps, side[1].steps));
    if (steps == 0 || side[1].rounds == 0) return 10;
    return std::sqrt(kTokensVary * kTokensVary / side[1].rounds +
                     2 * kTimesVary * kTimesVary / steps);
}

/// What a probe is expected to lose, microseconds by sequence.
double SpecSwitch::Bucket::price() const {
    const double measured = gain(), g = measured > 0 ? measured : guess > 0 ? guess : 1;
    if (on) {
        // Twice: while drafts are on their tokens are learnt without probes.
        const double lost = std::max(kLeastLoss, 1 - 1 / g);
        return 2 * kProbe * lost * side[0].usual_us();
    }
    // Without a measurement: a step with drafts takes as long as some plain ones.
    const double us = side[1].steps > 0 ? side[1].usual_us() : 4 * side[0].usual_us();
    return kProbe * std::max(kLeastLoss, 1 - g) * us;
}

size_t SpecSwitch::index(int64_t decodes) {
    if (decodes <= 2) return static_cast<size_t>(std::max<int64_t>(0, decodes));
    const auto n = static_cast<uint64_t>(decodes - 1);
    const auto width = static_cast<size_t>(std::bit_width(n));
    const size_t half = (n >> (width - 2)) & 1;
    return std::min<size_t>(2 * width - 1 + half, kBuckets - 1);
}

void SpecSwitch::start(size_t bucket) {
    Bucket& b = buckets_[bucket];
    b.seen = true;
    const auto clear = [](const Bucket& x) { return x.seen && !x.trial; };
    for (size_t i = bucket; i-- > 0;) {
        const Bucket& fewer = buckets_[i];
        if (!clear(fewer)) continue;
        if (fewer.on) break;
        b.on = b.trial = false;
        b.guess = fewer.gain() > 0 ? fewer.gain() : fewer.guess;
        return;
    }
    for (size_t i = bucket + 1; i < buckets_.size(); ++i) {
        const Bucket& more = buckets_[i];
        if (!clear(more)) continue;
        if (!more.on) break;
        b.trial = false;
        b.guess = more.gain() > 0 ? more.gain() : more.guess;
        return;
    }
}

bool SpecSwitch::due(const Bucket& b, int64_t ahead) {
    const int64_t pause = b.since_probe + ahead;
    if (pause < kLeastPause) return false;
    if (b.doubt || (b.on && b.compared < 2)) return true;
    const double us = b.side[b.on ? 1 : 0].usual_us();
    return pause >= kLongestPause ||
           (us > 0 && b.purse_us + kShare * us * static_cast<double>(ahead) >= b.price());
}

bool SpecSwitch::use_drafts(int64_t decodes) {
    const size_t bucket = index(decodes);
    Bucket& b = buckets_[bucket];
    if (!b.seen) start(bucket);
    if (b.trial) {
        // Steps beside prompts tell nothing; where there are no others drafts stay.
        b.turn = b.unseen++ >= 2 * kProbe || !b.turn;
        return b.turn;
    }
    if (b.probe_left > 0) {
        --b.probe_left;
        return !b.on;
    }
    ++b.since_probe;
    if (!due(b, 0)) return b.on;
    b.since_probe = 0;
    b.probe_left = kProbe - 1;
    Side& other = b.side[b.on ? 0 : 1];
    if (other.steps >= kProbe || b.compared == 0) other.steps = 0;
    if (!b.on) {
        const double keep = std::max(kKeepSteps * static_cast<double>(decodes), kKeepRounds);
        if (other.rounds > keep) {
            other.tokens *= keep / other.rounds;
            other.rounds = keep;
        }
    }
    return !b.on;
}

bool SpecSwitch::wanted_soon(int64_t decodes) const {
    const Bucket& b = at(decodes);
    return !b.seen || b.trial || b.on || b.probe_left > 0 || due(b, kAhead);
}

void SpecSwitch::turn_off(int64_t decodes, double gain) {
    Bucket& b = at(decodes);
    if (b.seen && !b.trial && !b.on) return;
    b.seen = true;
    b.on = b.trial = false;
    b.guess = gain;
    b.since_probe = b.probe_left = 0;
    b.purse_us = 0;
    ++switched_off_;
}

void SpecSwitch::observe(int64_t decodes, bool drafts, int64_t tokens, int64_t us) {
    const size_t way = drafts ? 1 : 0;
    // The first steps of all touch their weights and arrays.
    if (!warm_[way]) {
        warm_[way] = true;
        return;
    }
    Bucket& b = at(decodes);
    const double each = static_cast<double>(us) / static_cast<double>(decodes);
    b.side[way].add(decodes, tokens, us);
    if (b.trial) {
        b.unseen = 0;
        if (drafts) b.got += static_cast<double>(tokens) / static_cast<double>(decodes);
        judge_trial(b);
        return;
    }
    b.purse_us += kShare * each;
    if (drafts && b.on) b.on_us += each;
    if (drafts == b.on) return;
    const double g = b.gain();
    const double lost = g <= 0 ? 0 : b.on ? 1 - 1 / g : 1 - g;
    b.purse_us -= each * std::max(kLeastLoss, lost);
    if (b.side[way].steps == kProbe) judge_probe(b);
}

void SpecSwitch::compare(Bucket& b) {
    const double without = b.side[0].usual_us(), with = b.side[1].usual_us();
    if (without > 0 && with > 0) b.dearer[b.compared++ % b.dearer.size()] = with / without;
}

void SpecSwitch::judge_trial(Bucket& b) {
    const int64_t with = b.side[1].steps, without = b.side[0].steps;
    if (with == 0 || without == 0) return;
    const double z = std::log(std::max(b.gain(), 1e-3)) / b.error();
    // In plain steps.
    const double lost = static_cast<double>(with) * b.side[1].usual_us() / b.side[0].usual_us() -
                        b.got / b.side[0].yield();
    // Of two times the larger is known to be an outlier, of three the largest.
    const int64_t least = std::min(with, without);
    const bool clear = z > 0 ? least >= 3 && z > kSure : least >= 2 && z < -kSure;
    if (!clear && !(least >= 2 && lost > kTrialLoss) && with < kTrialSteps) return;
    b.trial = false;
    b.on = z > 0;
    if (!b.on) ++switched_off_;
    compare(b);
}

void SpecSwitch::judge_probe(Bucket& b) {
    const size_t last = b.compared % b.dearer.size();
    compare(b);
    const double usual = b.gain(), now = b.gain(b.dearer[last]);
    // The machine has changed, or this comparison or the ones before were disturbed: look again.
    b.doubt = (usual < 1) != (now < 1) && std::abs(std::log(now / usual)) > kDoubt;
    if (b.on && usual < kLoss && now < kLoss) {
        b.on = false;
        ++switched_off_;
        // An error, if it was one: later ones are to be rarer. Texts may have changed, too.
        const double lost = b.on_us * (1 - usual);
        b.purse_us = std::max(b.purse_us - lost, -3 * b.price());
    } else if (!b.on && usual > 1 && now > 1) {
        b.on = true;
        b.on_us = 0;
    }
    // Nothing is saved up for many probes at once.
    b.purse_us = std::min(b.purse_us, 0.0);
}

double SpecSwitch::rate(int64_t decodes, bool drafts) const {
    const Side& s = at(decodes).side[drafts ? 1 : 0];
    const double us = s.usual_us();
    return us > 0 ? s.yield() / us * 1e6 : 0;
}

}  // namespace deepinfer
