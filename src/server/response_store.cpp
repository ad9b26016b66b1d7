#include "server/response_store.h"

#include <algorithm>

namespace deepinfer::server {
namespace {

int64_t size_of(const StoredTurn& turn) {
    // What a turn costs beside its texts: two ids, a tree node, a list node.
    constexpr int64_t kOverhead = 512;
    return static_cast<int64_t>(turn.response.size() + turn.items.size()) + kOverhead;
}

}  // namespace

void ResponseStore::erase(std::map<std::string, Slot>::iterator slot) {
    bytes_ -= size_of(*slot->second.turn);
    const auto owner = turns_of_.find(slot->second.turn->owner);
    if (--owner->second == 0) turns_of_.erase(owner);
    by_age_.erase(slot->second.place);
    slots_.erase(slot);
}

void ResponseStore::expire(SteadyTime now) {
    while (!by_age_.empty()) {
        const auto oldest = slots_.find(by_age_.front());
        if (now - oldest->second.at <= Milliseconds(limits_.stored_age_ms)) break;
        erase(oldest);
    }
}

void ResponseStore::put(const std::string& id, StoredTurn turn, SteadyTime now) {
    const int64_t size = size_of(turn);
    if (!enabled() || size > limits_.stored_bytes) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    expire(now);
    if (const auto old = slots_.find(id); old != slots_.end()) erase(old);
    // An owner's own oldest turns make room first, so that nobody pushes out another's.
    if (const auto owner = turns_of_.find(turn.owner);
        owner != turns_of_.end() && owner->second >= limits_.stored_turns_per_key) {
        const auto oldest =
            std::find_if(by_age_.begin(), by_age_.end(), [&](const std::string& name) {
                return slots_.find(name)->second.turn->owner == turn.owner;
            });
        erase(slots_.find(*oldest));
    }
    while (!by_age_.empty() && (static_cast<int64_t>(slots_.size()) >= limits_.stored_turns ||
                                bytes_ + size > limits_.stored_bytes))
        erase(slots_.find(by_age_.front()));
    bytes_ += size;
    ++turns_of_[turn.owner];
    by_age_.push_back(id);
    slots_[id] = {
        std::make_shared<const StoredTurn>(std::move(turn)), now, std::prev(by_age_.end())};
}

std::shared_ptr<const StoredTurn> ResponseStore::get(const std::string& id,
                                                     const std::string& owner,
                                                     SteadyTime now) {
    const std::lock_guard<std::mutex> lock(mutex_);
    expire(now);
    const auto found = slots_.find(id);
    if (found == slots_.end() || found->second.turn->owner != owner) return nullptr;
    return found->second.turn;
}

bool ResponseStore::remove(const std::string& id, const std::string& owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = slots_.find(id);
    if (found == slots_.end() || found->second.turn->owner != owner) return false;
    erase(found);
    return true;
}

size_t ResponseStore::turns() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return slots_.size();
}
int64_t ResponseStore::bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
}

}  // namespace deepinfer::server
