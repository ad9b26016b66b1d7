#include "engine/step_costs.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer {

void CostCurve::set(std::vector<std::pair<int64_t, double>> points) {
    points_ = std::move(points);
    keep_rising();
}

void CostCurve::keep_rising() {
    for (size_t i = 1; i < points_.size(); ++i) {
        DI_CHECK_LT(points_[i - 1].first, points_[i].first);
        points_[i].second = std::max(points_[i].second, points_[i - 1].second);
    }
}

double CostCurve::at(int64_t size) const {
    DI_CHECK(!empty());
    if (points_.size() == 1 || size <= points_[0].first) return points_[0].second;
    auto right = std::lower_bound(
        points_.begin(), points_.end(), size, [](const auto& p, int64_t s) { return p.first < s; });
    if (right == points_.end()) --right;
    const auto left = std::prev(right);
    const double share =
        static_cast<double>(size - left->first) / static_cast<double>(right->first - left->first);
    return left->second + share * (right->second - left->second);
}

void CostCurve::correct(int64_t size, double us) {
    const double said = at(size);
    if (!(us > 0) || std::abs(us - said) <= 0.15 * said) return;
    // A tenth of the way, at the nearest points; single slow steps (another process) hardly count.
    const double factor = 1 + 0.1 * (std::min(us / said, 4.0) - 1);
    auto right = std::lower_bound(
        points_.begin(), points_.end(), size, [](const auto& p, int64_t s) { return p.first < s; });
    if (right == points_.end()) --right;
    right->second *= factor;
    if (right->first != size && right != points_.begin()) std::prev(right)->second *= factor;
    keep_rising();
}

void CostCurve::scale(double factor) {
    for (auto& [size, us] : points_) us *= factor;
}

void RowLine::add(int64_t rows, int64_t us) {
    if (rows <= 0 || us <= 0) return;
    constexpr double kFade = 1 - 1.0 / 64;
    const auto x = static_cast<double>(rows), y = static_cast<double>(us), w = 1 / (y * y);
    for (double* sum : {&n_, &x_, &xx_, &y_, &xy_}) *sum *= kFade;
    n_ += w;
    x_ += w * x;
    xx_ += w * x * x;
    y_ += w * y;
    xy_ += w * x * y;
}

bool RowLine::known() const {
    // A spread of a tenth of the mean.
    return n_ > 0 && n_ * xx_ - x_ * x_ > 0.01 * x_ * x_;
}

double RowLine::row_us() const {
    return std::clamp((n_ * xy_ - x_ * y_) / (n_ * xx_ - x_ * x_), 0.0, y_ / x_);
}

double RowLine::fixed_us() const {
    return (y_ - row_us() * x_) / n_;
}

double RowLine::share(int64_t rows, int64_t all) const {
    DI_CHECK(known());
    const double fixed = fixed_us(), row = row_us();
    return (fixed + row * static_cast<double>(rows)) / (fixed + row * static_cast<double>(all));
}

void StepCosts::set(std::vector<std::pair<int64_t, double>> verify,
                    std::vector<std::pair<int64_t, double>> draft) {
    for (CostCurve& c : verify_) c.set(verify);
    draft_.set(std::move(draft));
}

size_t StepCosts::bucket(int64_t context) {
    return context <= 4096 ? 0 : context <= 32768 ? 1 : context <= 131072 ? 2 : 3;
}

double StepCosts::verify_us(int64_t rows, int64_t context) const {
    return verify_[bucket(context)].at(rows);
}

double StepCosts::draft_us(int64_t rows) const {
    return draft_.at(rows);
}

void StepCosts::correct_verify(int64_t rows, int64_t context, double us) {
    verify_[bucket(context)].correct(rows, us);
}

void StepCosts::correct_draft(int64_t rows, double us) {
    draft_.correct(rows, us);
}

std::vector<int64_t> StepCosts::sizes(int64_t most) {
    std::vector<int64_t> all;
    for (const int64_t s : {1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 24, 32, 48, 64}) {
        if (s <= most) all.push_back(s);
    }
    for (int64_t s = 128; s <= most; s *= 2) all.push_back(s);
    if (all.back() != most) all.push_back(most);
    return all;
}

}  // namespace deepinfer
