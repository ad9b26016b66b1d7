#include "engine/draft_metrics.h"

#include <algorithm>
#include <cmath>

#include "engine/draft_calibration.h"

namespace deepinfer {
namespace {

double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

}  // namespace

double SpecStats::acceptance_length() const {
    return ratio(static_cast<double>(accepted + bonus), static_cast<double>(rounds));
}
double SpecStats::draft_tokens_per_proposal() const {
    return ratio(static_cast<double>(proposed), static_cast<double>(rounds));
}
double SpecStats::verify_rate() const {
    return ratio(static_cast<double>(accepted + rounds), static_cast<double>(verified + rounds));
}
double SpecStats::accept_rate(size_t k) const {
    return ratio(static_cast<double>(accepted_at[k]), static_cast<double>(verified_at[k]));
}
double SpecStats::conditional_acceptance(size_t k) const {
    const int64_t before = k == 0 ? rounds : accepted_at[k - 1];
    return ratio(static_cast<double>(accepted_at[k]), static_cast<double>(before));
}

DraftMetrics::Reliability::Reliability()
    : n(kEceBins), estimate(kEceBins), event(kEceBins), hit(kRocBins), miss(kRocBins) {}

void DraftMetrics::Reliability::add(double estimated, bool happened) {
    const auto bin = [&](int bins) {
        return static_cast<size_t>(std::clamp(static_cast<int>(estimated * bins), 0, bins - 1));
    };
    n[bin(kEceBins)] += 1;
    estimate[bin(kEceBins)] += estimated;
    event[bin(kEceBins)] += happened ? 1 : 0;
    ++(happened ? hit : miss)[bin(kRocBins)];
    const double error = estimated - (happened ? 1 : 0);
    squared += error * error;
    ++count;
}

double DraftMetrics::Reliability::ece() const {
    double sum = 0;
    for (size_t b = 0; b < n.size(); ++b) sum += std::abs(estimate[b] - event[b]);
    return ratio(sum, static_cast<double>(count));
}

double DraftMetrics::Reliability::auroc() const {
    double hits = 0, misses = 0, above = 0;
    for (size_t b = 0; b < hit.size(); ++b) {
        const double h = static_cast<double>(hit[b]), m = static_cast<double>(miss[b]);
        above += h * (misses + m / 2);  // misses with a smaller estimate; ties count half
        hits += h;
        misses += m;
    }
    return ratio(above, hits * misses);
}

DraftMetrics::DraftMetrics(int nextn) {
    const auto size = static_cast<size_t>(nextn);
    for (auto* v : {&sums_.proposed_at, &sums_.verified_at, &sums_.accepted_at}) v->resize(size);
    raw_.resize(size);
    calibrated_.resize(size);
}

void DraftMetrics::add(const DraftOutcome& o, const std::vector<DraftScale>& scales) {
    if (o.num_proposed == 0) return;
    ++sums_.rounds;
    sums_.proposed += o.num_proposed;
    sums_.verified += o.num_verified;
    sums_.accepted += o.num_accepted;
    sums_.bonus += o.bonus ? 1 : 0;
    const std::vector<float> raw = survival(o.confidence, {});
    const std::vector<float> calibrated = survival(o.confidence, scales);
    sums_.predicted_tokens += 1;
    for (int32_t i = 0; i < o.num_proposed; ++i) {
        const size_t k = static_cast<size_t>(i);
        ++sums_.proposed_at[k];
        if (i >= o.num_verified) continue;
        ++sums_.verified_at[k];
        sums_.predicted_tokens += static_cast<double>(calibrated[k]);
        const bool accepted = i < o.num_accepted;
        if (accepted) ++sums_.accepted_at[k];
        // Behind a stop id nothing was decided.
        if (!accepted && !o.bonus) continue;
        raw_[k].add(static_cast<double>(raw[k]), accepted);
        calibrated_[k].add(static_cast<double>(calibrated[k]), accepted);
    }
}

void DraftMetrics::fill(SpecStats* stats) const {
    stats->rounds = sums_.rounds;
    stats->proposed = sums_.proposed;
    stats->verified = sums_.verified;
    stats->accepted = sums_.accepted;
    stats->bonus = sums_.bonus;
    stats->proposed_at = sums_.proposed_at;
    stats->verified_at = sums_.verified_at;
    stats->accepted_at = sums_.accepted_at;
    stats->predicted_tokens = sums_.predicted_tokens;
    for (auto* v : {&stats->ece_raw, &stats->ece, &stats->auroc, &stats->brier}) v->clear();
    for (size_t k = 0; k < raw_.size(); ++k) {
        stats->ece_raw.push_back(raw_[k].ece());
        stats->ece.push_back(calibrated_[k].ece());
        stats->auroc.push_back(calibrated_[k].auroc());
        stats->brier.push_back(calibrated_[k].brier());
    }
}

}  // namespace deepinfer
