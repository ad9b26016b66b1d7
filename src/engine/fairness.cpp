#include "engine/fairness.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace deepinfer {

int64_t TenantCounters::floor() const {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const auto& [name, entry] : tenants_) {
        if (entry.active > 0) least = std::min(least, entry.counter);
    }
    return least == std::numeric_limits<int64_t>::max() ? last_floor_ : least;
}

void TenantCounters::enter(const std::string& tenant) {
    const auto it = tenants_.find(tenant);
    if (it != tenants_.end() && it->second.active > 0) {
        ++it->second.active;
        return;
    }
    last_floor_ = floor();
    Entry& entry = tenants_[tenant];
    entry.counter = std::max(entry.counter, last_floor_);
    entry.active = 1;
}

void TenantCounters::leave(const std::string& tenant) {
    Entry& entry = tenants_[tenant];
    DI_CHECK_GE(entry.active, 1);
    if (--entry.active > 0) return;
    last_floor_ = std::max(last_floor_, floor());
    // An idle tenant at or below the floor would be lifted to it on return: nothing to remember.
    for (auto it = tenants_.begin(); it != tenants_.end();) {
        const bool forgotten = it->second.active == 0 && it->second.counter <= last_floor_;
        it = forgotten ? tenants_.erase(it) : std::next(it);
    }
}

void TenantCounters::charge(const std::string& tenant, int64_t amount) {
    tenants_[tenant].counter += amount;
}

int64_t TenantCounters::value(const std::string& tenant) const {
    const auto it = tenants_.find(tenant);
    return it == tenants_.end() ? 0 : it->second.counter;
}

}  // namespace deepinfer
