#include "engine/draft_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr char kFormat[] = "deepinfer draft calibration 2";
constexpr double kLogitRange = 8, kFade = 0.999, kShrink = 64, kShrinkMean = 8;
constexpr double kTrialsPerFit = 128;
constexpr int kTemperatures = 49;  // 0.125 … 8, log-spaced; the middle one is 1

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

}  // namespace

float DraftScale::probability(float logit) const {
    return static_cast<float>(sigmoid(static_cast<double>(logit) / temperature + bias));
}

std::vector<float> survival(const std::vector<float>& logits,
                            const std::vector<DraftScale>& scales) {
    std::vector<float> out;
    float product = 1;
    for (size_t k = 0; k < logits.size(); ++k) {
        product *= k < scales.size() ? scales[k].probability(logits[k])
                                     : DraftScale().probability(logits[k]);
        out.push_back(product);
    }
    return out;
}

DraftCalibration::DraftCalibration(int num_positions)
    : positions_(static_cast<size_t>(num_positions)), scales_(positions_.size()) {}

double DraftCalibration::Position::trials() const {
    double n = 0;
    for (const Bin& b : bins) n += b.trials;
    return n;
}

void DraftCalibration::add_round(const std::vector<float>& logits, int verified, int accepted) {
    double before = 1;
    for (int k = 0; k < verified; ++k) {
        const auto at = static_cast<size_t>(k);
        add(k, logits[at], k < accepted, before);
        before *= static_cast<double>(scales_[at].probability(logits[at]));
    }
}

void DraftCalibration::add(int position, float logit, bool stood, double before) {
    if (!std::isfinite(logit) || !(before > 0)) return;
    Position& p = positions_[static_cast<size_t>(position)];
    for (Bin& b : p.bins) {
        b.trials *= kFade;
        b.accepted *= kFade;
        b.logits *= kFade;
    }
    const double at = (static_cast<double>(logit) + kLogitRange) / (2 * kLogitRange) * kBins;
    Bin& b = p.bins[std::clamp(static_cast<int>(at), 0, kBins - 1)];
    b.trials += before;
    b.accepted += stood ? 1 : 0;
    b.logits += before * static_cast<double>(logit);
    ++new_trials_;
}

/// The bias that makes the mean right at this temperature.
double DraftCalibration::mean_bias(const Position& p, double temperature) {
    double n = 0, stood = 0;
    for (const Bin& b : p.bins) {
        n += b.trials;
        stood += b.accepted;
    }
    // Half a trial of either kind: all right or all wrong needs no infinite bias.
    const double target = std::min((stood + 0.5) / (n + 1), 0.999) * n;
    double lo = -20, hi = 20;
    for (int step = 0; step < 28; ++step) {
        const double mid = (lo + hi) / 2;
        double sum = 0;
        for (const Bin& b : p.bins) {
            if (b.trials > 0) sum += b.trials * sigmoid(b.logits / b.trials / temperature + mid);
        }
        (sum < target ? lo : hi) = mid;
    }
    return lo;
}

/// For every temperature the bias that makes the mean right; of those the least expected
/// calibration error. Pulled towards `prior` while trials are few, the mean less than the slope.
DraftScale DraftCalibration::fit(const Position& p, const DraftScale& prior) {
    const double n = p.trials();
    if (n < 1) return prior;
    double best = 0, best_t = 1;
    for (int i = 0; i < kTemperatures; ++i) {
        const double t = std::exp2(-3 + 6.0 * i / (kTemperatures - 1)), bias = mean_bias(p, t);
        double error = 0;
        for (const Bin& b : p.bins) {
            if (b.trials > 0) {
                error += std::abs(b.trials * sigmoid(b.logits / b.trials / t + bias) - b.accepted);
            }
        }
        // Of equal ones the temperature nearest to 1.
        error = error / n + 1e-6 * std::abs(std::log2(t));
        if (i == 0 || error < best) best = error, best_t = t;
    }
    const double w = n / (n + kShrink), w_mean = n / (n + kShrinkMean);
    const double t = std::exp2(w * std::log2(best_t) +
                               (1 - w) * std::log2(static_cast<double>(prior.temperature)));
    DraftScale s;
    s.temperature = static_cast<float>(t);
    s.bias = static_cast<float>(w_mean * mean_bias(p, t) +
                                (1 - w_mean) * static_cast<double>(prior.bias));
    return s;
}

bool DraftCalibration::refit(bool now) {
    // The first trials teach most.
    const double due = std::clamp(evidence() / 8, 4.0, kTrialsPerFit);
    if (new_trials_ == 0 || (!now && static_cast<double>(new_trials_) < due)) return false;
    new_trials_ = 0;
    Position pooled;
    for (const Position& p : positions_) {
        for (int b = 0; b < kBins; ++b) {
            pooled.bins[b].trials += p.bins[b].trials;
            pooled.bins[b].accepted += p.bins[b].accepted;
            pooled.bins[b].logits += p.bins[b].logits;
        }
    }
    const DraftScale shared = fit(pooled, DraftScale());
    for (size_t k = 0; k < positions_.size(); ++k) scales_[k] = fit(positions_[k], shared);
    return true;
}

std::string DraftCalibration::to_json(const std::string& model_id) const {
    nlohmann::ordered_json j;
    j["format"] = kFormat;
    j["model"] = model_id;
    j["positions"] = nlohmann::ordered_json::array();
    for (size_t k = 0; k < positions_.size(); ++k) {
        nlohmann::ordered_json p;
        p["temperature"] = scales_[k].temperature;
        p["bias"] = scales_[k].bias;
        p["bins"] = nlohmann::ordered_json::array();
        for (const Bin& b : positions_[k].bins)
            p["bins"].push_back({b.trials, b.accepted, b.logits});
        j["positions"].push_back(std::move(p));
    }
    return j.dump() + "\n";
}

Status DraftCalibration::from_json(const std::string& text, const std::string& model_id) {
    const auto bad = [](const std::string& what) { return Status(StatusCode::kInvalidFile, what); };
    const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
    const auto text_of = [&](const char* name) {
        const auto it = j.is_object() ? j.find(name) : j.end();
        return it != j.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    if (text_of("format") != kFormat) {
        return bad("not a draft calibration (format \"" + std::string(kFormat) + "\")");
    }
    if (text_of("model") != model_id) {
        return bad("the calibration belongs to model '" + text_of("model") + "', this is " +
                   model_id);
    }
    const auto positions = j.find("positions");
    if (positions == j.end() || !positions->is_array() || positions->size() != positions_.size()) {
        return bad("the calibration does not have " + std::to_string(positions_.size()) +
                   " positions");
    }
    DraftCalibration read(static_cast<int>(positions_.size()));
    for (size_t k = 0; k < positions_.size(); ++k) {
        const nlohmann::json& p = (*positions)[k];
        const auto number = [](const nlohmann::json& v) {
            return v.is_number() ? v.get<double>() : std::nan("");
        };
        const auto bins = p.is_object() ? p.find("bins") : p.end();
        bool good = p.is_object() && p.contains("temperature") && p.contains("bias") &&
                    bins != p.end() && bins->is_array() && bins->size() == kBins;
        if (good) {
            const double t = number(p["temperature"]), b = number(p["bias"]);
            read.scales_[k] = {static_cast<float>(t), static_cast<float>(b)};
            good = t >= 0.1 && t <= 10 && std::abs(b) <= 100;
        }
        for (size_t i = 0; good && i < kBins; ++i) {
            const nlohmann::json& v = (*bins)[i];
            good = v.is_array() && v.size() == 3;
            if (!good) break;
            const double n = number(v[0]), a = number(v[1]), l = number(v[2]);
            good = n >= 0 && n <= 1e9 && a >= 0 && a <= 1e9 && std::isfinite(l);
            read.positions_[k].bins[i] = {n, a, l};
        }
        if (!good) return bad("position " + std::to_string(k) + " of the calibration is damaged");
    }
    *this = std::move(read);
    return {};
}

Status DraftCalibration::load(const std::string& path, const std::string& model_id) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return {};
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return Status(StatusCode::kInvalidFile, path + ": cannot be read");
    const Status status = from_json(text.str(), model_id);
    return status.ok() ? status : Status(status.code(), path + ": " + status.message());
}

Status DraftCalibration::save(const std::string& path, const std::string& model_id) const {
    const std::string beside = path + ".new";
    std::ofstream file(beside, std::ios::binary);
    file << to_json(model_id);
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(beside, path, error);
    if (file && !error) return {};
    return Status(StatusCode::kInvalidArgument, "cannot write the draft calibration " + path);
}

}  // namespace deepinfer
