#include "server/state.h"

#include <openssl/rand.h>

#include <ctime>

namespace deepinfer::server {

void LiveRequests::add(const std::string& id, Entry entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[id] = std::move(entry);
}
void LiveRequests::remove(const std::string& id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.erase(id);
}
bool LiveRequests::cancel(const std::string& id, const std::string& tenant) {
    std::function<void()> cancel;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = entries_.find(id);
        if (found == entries_.end() || found->second.tenant != tenant) return false;
        cancel = found->second.cancel;
    }
    cancel();
    return true;
}
void LiveRequests::cancel_all() {
    for (const auto& [id, entry] : list()) entry.cancel();
}
std::vector<std::pair<std::string, LiveRequests::Entry>> LiveRequests::list() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {entries_.begin(), entries_.end()};
}
size_t LiveRequests::size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
}

const char* phase_name(Phase phase) {
    switch (phase) {
        case Phase::kLoading:
            return "loading";
        case Phase::kReady:
            return "ready";
        case Phase::kDraining:
            return "draining";
        case Phase::kDead:
            return "dead";
    }
    return "";
}

std::shared_ptr<const KeyRing> ServerState::keys() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return keys_;
}
void ServerState::set_keys(std::shared_ptr<const KeyRing> keys) {
    const std::lock_guard<std::mutex> lock(mutex_);
    keys_ = std::move(keys);
}

std::string random_id(const char* prefix, size_t length) {
    static constexpr char kAlphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    std::string out = prefix;
    while (length > 0) {
        unsigned char bytes[64];
        if (RAND_bytes(bytes, sizeof bytes) != 1) std::abort();  // no randomness, no ids
        for (const unsigned char b : bytes) {
            if ((b & 63) >= 62 || length == 0) continue;
            out.push_back(kAlphabet[b & 63]);
            --length;
        }
    }
    return out;
}

int64_t unix_seconds() {
    return static_cast<int64_t>(std::time(nullptr));
}

}  // namespace deepinfer::server
