#include "grammar/constraint_compiler.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "base/work_budget.h"
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
    constexpr int64_t kNsPerMs = 1'000'000;
    WorkBudget budget(config_.compile_ms * kNsPerMs, static_cast<int64_t>(config_.work_bytes));
    const WorkBudget::Scope scope(&budget);
    try {
        lower_and_compile(args, entry);
    } catch (const WorkBudgetExceeded& e) {
        const bool time = e.which() == WorkBudgetExceeded::What::kTime;
        entry->value = {};
        entry->bytes = 0;
        entry->status =
            Status(StatusCode::kResourceExhausted,
                   "so_args: compiling the constraint takes more than " +
                       (time ? std::to_string(config_.compile_ms) + " ms of processor time"
                             : std::to_string(config_.work_bytes) + " bytes of memory"));
    } catch (const std::bad_alloc&) {  // whoever waits for this entry must hear of its end
        entry->value = {};
        entry->bytes = 0;
        entry->status =
            Status(StatusCode::kResourceExhausted, "so_args: no memory to compile the constraint");
    }
}

void ConstraintCompiler::lower_and_compile(const StructuredOutputArgs& args, Entry* entry) {
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

std::string ConstraintCompiler::key_of(StructuredOutputArgs args) const {
    args.in_reasoning = false;  // where it begins is the matcher's business
    return std::to_string(vocabulary_->fingerprint()) + structured_output_to_json(args);
}

bool ConstraintCompiler::ready(const StructuredOutputArgs& args) const {
    const std::string key = key_of(args);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = index_.find(key);
    return known != index_.end() && known->second->done;
}

const ConstraintCompiler::Entry* ConstraintCompiler::next() const {
    if (running_ >= config_.max_parallel) return nullptr;
    const int most = std::max(1, config_.max_parallel - 1);
    const Entry* best = nullptr;
    const Tenant* of_best = nullptr;
    for (const EntryPtr& entry : line_) {
        const Tenant& t = tenants_.at(entry->tenant);
        if (t.running >= most) continue;
        if (of_best != nullptr && t.served_last >= of_best->served_last) continue;
        best = entry.get();
        of_best = &t;
    }
    return best;
}

void ConstraintCompiler::forget_idle(const std::string& tenant) {
    const auto it = tenants_.find(tenant);
    if (it->second.entries == 0 && it->second.waiting == 0) tenants_.erase(it);
}

Result<CompiledConstraint> ConstraintCompiler::get(const StructuredOutputArgs& args,
                                                   const std::string& tenant) {
    const std::string key = key_of(args);
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
    Tenant& mine = tenants_[tenant];  // stays while it waits
    if (mine.waiting >= config_.max_waiting) {
        return Status(StatusCode::kQueueFull,
                      "so_args: " + std::to_string(mine.waiting) +
                          " constraints of this tenant are being compiled");
    }
    ++mine.waiting;
    ++stats_.misses;
    const auto entry = std::make_shared<Entry>();
    entry->key = key;
    entry->tenant = tenant;
    index_[key] = entry;
    line_.push_back(entry);
    changed_.wait(lock, [&] { return next() == entry.get(); });
    line_.remove(entry);
    ++running_;
    ++mine.running;
    mine.served_last = ++served_;
    changed_.notify_all();  // there may be room for one more
    lock.unlock();
    const auto before = std::chrono::steady_clock::now();
    compile(args, entry.get());
    const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(
                           std::chrono::steady_clock::now() - before)
                           .count();
    lock.lock();
    --running_;
    --mine.running;
    --mine.waiting;
    entry->done = true;
    stats_.compile_us += us;
    stats_.compile_us_max = std::max(stats_.compile_us_max, us);
    if (!entry->status.ok()) ++stats_.refused;
    keep(entry);
    forget_idle(tenant);
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
    Tenant& mine = tenants_[entry->tenant];
    mine.bytes += entry->bytes;
    ++mine.entries;
    // What is in use stays alive with its users. The newest stays.
    while (mine.bytes > config_.tenant_bytes && drop_oldest_of(&entry->tenant)) {
    }
    while (bytes_ > config_.cache_bytes && drop_from_largest(&Tenant::bytes)) {
    }
    while (order_.size() > config_.cache_entries && drop_from_largest(&Tenant::entries)) {
    }
}

bool ConstraintCompiler::drop_from_largest(size_t Tenant::*share) {
    const auto less = [share](const auto& a, const auto& b) {
        return a.second.*share < b.second.*share;
    };
    const std::string largest = std::max_element(tenants_.begin(), tenants_.end(), less)->first;
    return drop_oldest_of(&largest) || drop_oldest_of(nullptr);
}

bool ConstraintCompiler::drop_oldest_of(const std::string* tenant) {
    for (auto it = std::prev(order_.end()); it != order_.begin(); --it) {
        const EntryPtr entry = *it;
        if (tenant != nullptr && entry->tenant != *tenant) continue;
        Tenant& its = tenants_[entry->tenant];
        bytes_ -= entry->bytes;
        its.bytes -= entry->bytes;
        --its.entries;
        index_.erase(entry->key);
        order_.erase(it);
        ++stats_.evicted;
        forget_idle(entry->tenant);
        return true;
    }
    return false;
}

CompilerStats ConstraintCompiler::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    CompilerStats s = stats_;
    s.entries = static_cast<int64_t>(order_.size());
    s.bytes = static_cast<int64_t>(bytes_);
    return s;
}

}  // namespace deepinfer::grammar
