#include "sampler/draft_rules.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {
namespace {

int32_t draw(const Distribution& d, double u) {
    return d.empty() ? -1 : d.draw(u);
}

}  // namespace

DraftVerdict verify_by_rejection(const DraftRound& round) {
    DraftVerdict v;
    for (size_t k = 0; k < round.drafts.size(); ++k) {
        const Distribution& p = round.p(static_cast<int>(k));
        const Distribution& q = round.q[k];
        const double pk = p.at(round.drafts[k]), qk = q.at(round.drafts[k]);
        if (pk > 0 && std::log(pk) > std::log(round.u(static_cast<int>(k))) + std::log(qk)) {
            ++v.num_accepted;
            continue;
        }
        v.next = p.empty() ? -1 : residual(p, 1, q).draw(round.u_next);
        return v;
    }
    v.next = draw(round.p(v.num_accepted), round.u_next);
    return v;
}

DraftVerdict verify_by_block(const DraftRound& round) {
    const int n = static_cast<int>(round.drafts.size());
    DraftVerdict v;
    // rho: running ratio min(rho · p/q, 1) behind draft i; 1 before any.
    double rho = 1, rho_accepted = 1;
    const Distribution* p = &round.p(0);
    const Distribution* p_accepted = p;
    for (int i = 1; i <= n; ++i) {
        const size_t k = static_cast<size_t>(i - 1);
        const double pk = p->at(round.drafts[k]);
        if (!(pk > 0)) break;  // nothing behind it can stand
        rho = std::min(rho * (pk / round.q[k].at(round.drafts[k])), 1.0);
        p = &round.p(i);
        double threshold = rho;
        if (i < n && rho < 1) {
            const double mass = residual_mass(*p, rho, round.q[static_cast<size_t>(i)]);
            threshold = mass / (mass + 1 - rho);
        }
        if (round.u(i - 1) <= threshold) {
            v.num_accepted = i;
            rho_accepted = rho;
            p_accepted = p;
        }
    }
    if (p_accepted->empty()) return v;
    if (v.num_accepted == n) {
        v.next = p_accepted->draw(round.u_next);
    } else {
        const Distribution& q = round.q[static_cast<size_t>(v.num_accepted)];
        v.next = residual(*p_accepted, rho_accepted, q).draw(round.u_next);
    }
    return v;
}

}  // namespace deepinfer
