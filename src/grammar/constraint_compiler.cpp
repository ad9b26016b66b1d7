#include "grammar/constraint_compiler.h"

#include <chrono>

#include "deepinfer/structured_output.h"
#include "grammar/lowering.h"

namespace deepinfer::grammar {

struct ConstraintCompiler::Entry {
    std::string key, tenant;
    bool done = false;
    Status status;
    CompiledConstraint value;
    size_t bytes = 0;
    std::list<EntryPtr>::iterator place;
};

ConstraintCompiler::ConstraintCompiler(std::shared_ptr<const Vocabulary> vocabulary,
                                       CompilerConfig config)
    : vocabulary_(std::move(vocabulary)), config_(config) {}
ConstraintCompiler::~ConstraintCompiler() = default;

void ConstraintCompiler::compile(const StructuredOutputArgs& args, Entry* entry) {
    std::string ebnf;
    try {
        Lowered lowered = lower(args, config_.limits);
        entry->value.notes = std::move(lowered.notes);
        ebnf = std::move(lowered.ebnf);
    } catch (const Refusal& r) {
        entry->status = Status(StatusCode::kInvalidArgument, "so_args: " + refusal_sentence(r));
        return;
    }
    Result<std::shared_ptr<const CompiledGrammar>> grammar =
        CompiledGrammar::compile(vocabulary_, ebnf, config_.threads);
    if (!grammar.ok()) {
        entry->status = Status(grammar.status().code(), "so_args: " + grammar.status().message());
        return;
    }
    entry->bytes = grammar.value()->memory_bytes();
    if (entry->bytes > config_.grammar_bytes) {
        entry->status =
            Status(StatusCode::kResourceExhausted,
                   "so_args: the compiled constraint has " + std::to_string(entry->bytes) +
                       " bytes, at most " + std::to_string(config_.grammar_bytes) + " are kept");
        entry->bytes = 0;
        return;
    }
    entry->value.grammar = std::move(grammar).value();
}

Result<CompiledConstraint> ConstraintCompiler::get(const StructuredOutputArgs& args,
                                                   const std::string& tenant) {
    StructuredOutputArgs plain = args;
    plain.in_reasoning = false;  // where it begins is the matcher's business
    const std::string key =
        std::to_string(vocabulary_->fingerprint()) + structured_output_to_json(plain);
    std::unique_lock<std::mutex> lock(mutex_);
    const auto known = index_.find(key);
    if (known != index_.end()) {
        const EntryPtr entry = known->second;
        ++stats_.hits;
        changed_.wait(lock, [&] { return entry->done; });
        const auto still = index_.find(key);
        if (still != index_.end() && still->second == entry)
            order_.splice(order_.begin(), order_, entry->place);
        if (!entry->status.ok()) return entry->status;
        return entry->value;
    }
    int& waiting = tenant_waiting_[tenant];
    if (waiting >= config_.max_waiting) {
        return Status(StatusCode::kQueueFull,
                      "so_args: " + std::to_string(waiting) +
                          " constraints of this tenant are being compiled");
    }
    ++waiting;
    ++stats_.misses;
    const auto entry = std::make_shared<Entry>();
    entry->key = key;
    entry->tenant = tenant;
    index_[key] = entry;
    changed_.wait(lock, [&] { return running_ < config_.max_parallel; });
    ++running_;
    lock.unlock();
    const auto before = std::chrono::steady_clock::now();
    compile(args, entry.get());
    const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - before)
                           .count();
    lock.lock();
    --running_;
    if (--tenant_waiting_[tenant] == 0) tenant_waiting_.erase(tenant);
    entry->done = true;
    stats_.compile_us += us;
    stats_.compile_us_max = std::max(stats_.compile_us_max, us);
    if (!entry->status.ok()) ++stats_.refused;
    keep(entry);
    changed_.notify_all();
    if (!entry->status.ok()) return entry->status;
    return entry->value;
}

void ConstraintCompiler::keep(const EntryPtr& entry) {
    constexpr size_t kOverhead = 1024;  // a refusal takes room too
    entry->bytes += entry->key.size() + kOverhead;
    order_.push_front(entry);
    entry->place = order_.begin();
    bytes_ += entry->bytes;
    tenant_bytes_[entry->tenant] += entry->bytes;
    // The tenant's own oldest first, then the oldest of all. What is in use stays alive with its
    // users.
    for (auto it = std::prev(order_.end());
         it != order_.begin() && tenant_bytes_[entry->tenant] > config_.tenant_bytes;) {
        const auto here = it--;
        if ((*here)->tenant == entry->tenant) drop(here);
    }
    while (order_.size() > 1 &&
           (bytes_ > config_.cache_bytes || order_.size() > config_.cache_entries))
        drop(std::prev(order_.end()));
}

void ConstraintCompiler::drop(std::list<EntryPtr>::iterator it) {
    const EntryPtr entry = *it;
    bytes_ -= entry->bytes;
    auto& of_tenant = tenant_bytes_[entry->tenant];
    of_tenant -= entry->bytes;
    if (of_tenant == 0) tenant_bytes_.erase(entry->tenant);
    index_.erase(entry->key);
    order_.erase(it);
    ++stats_.evicted;
}

CompilerStats ConstraintCompiler::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    CompilerStats s = stats_;
    s.entries = static_cast<int64_t>(order_.size());
    s.bytes = static_cast<int64_t>(bytes_);
    return s;
}

}  // namespace deepinfer::grammar
