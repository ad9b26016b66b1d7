#include "sampler/distribution.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {
namespace {

/// f(id, scale · p − q) for every id of p.
template <typename F>
void for_excess(const Distribution& p, double scale, const Distribution& q, const F& f) {
    size_t j = 0;
    for (size_t i = 0; i < p.ids.size(); ++i) {
        while (j < q.ids.size() && q.ids[j] < p.ids[i]) ++j;
        const bool both = j < q.ids.size() && q.ids[j] == p.ids[i];
        const double excess = scale * p.p[i] - (both ? q.p[j] : 0.0);
        if (excess > 0) f(p.ids[i], excess);
    }
}

}  // namespace

double Distribution::at(int32_t id) const {
    const auto it = std::lower_bound(ids.begin(), ids.end(), id);
    return it == ids.end() || *it != id ? 0 : p[static_cast<size_t>(it - ids.begin())];
}

int32_t Distribution::draw(double u) const {
    DI_CHECK(!empty());
    double sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
        sum += p[i];
        if (u < sum) return ids[i];
    }
    return ids.back();  // the sum's last rounding
}

Distribution Distribution::point(int32_t id) {
    return {{id}, {1.0}};
}

double residual_mass(const Distribution& p, double scale, const Distribution& q) {
    double mass = 0;
    for_excess(p, scale, q, [&](int32_t, double excess) { mass += excess; });
    return mass;
}

Distribution residual(const Distribution& p, double scale, const Distribution& q) {
    Distribution r;
    double mass = 0;
    for_excess(p, scale, q, [&](int32_t id, double excess) {
        r.ids.push_back(id);
        r.p.push_back(excess);
        mass += excess;
    });
    // A rejection has the probability of this mass: below rounding it is chance's last digit alone.
    if (mass <= 1e-8) return p;
    for (double& v : r.p) v /= mass;
    return r;
}

double named_uniform(
    uint64_t seed, uint32_t position, NoiseStream stream, uint32_t sub_sequence, uint32_t round) {
    const NoiseKey key{seed, position, static_cast<uint32_t>(stream), sub_sequence | round << 16};
    // 53 bits and a half: never 0, never 1.
    const uint64_t word = uint64_t{noise_word(key, 0)} << 32 | noise_word(key, 1);
    return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
}

}  // namespace deepinfer
