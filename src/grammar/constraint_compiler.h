// ConstraintCompiler: constraints → compiled grammars, with a cache and limits.
//
// Works on the caller's thread (never the engine's), at most max_parallel at a time; equal
// constraints that come together are compiled once. Sizes are bounded before (Limits), processor
// time and memory while it runs (WorkBudget). Refusals are remembered too.
//
// A tenant can fill its share of the cache and of the places, not those of others: one place is
// always left for somebody else, of those who wait the tenant that was served longest ago goes
// first, and a full cache drops from the tenant that has most of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "deepinfer/sampling_params.h"
#include "deepinfer/status.h"
#include "grammar/refusal.h"
#include "grammar/xgrammar_engine.h"

namespace deepinfer::grammar {

struct CompilerConfig {
    int threads = 2;            ///< of one compilation
    int max_parallel = 2;       ///< compilations at a time, of one tenant one less (but one)
    int max_waiting = 16;       ///< of one tenant, those that run included; beyond that kQueueFull
    int64_t compile_ms = 5000;  ///< processor time of one compilation
    size_t work_bytes = size_t{256} << 20;  ///< what one compilation writes on its way
    size_t cache_entries = 256;
    size_t cache_bytes = size_t{512} << 20;
    size_t tenant_bytes = size_t{128} << 20;
    size_t grammar_bytes = size_t{64} << 20;  ///< of one compiled grammar
    Limits limits;
};

/// A constraint ready for use.
struct CompiledConstraint {
    std::shared_ptr<const CompiledGrammar> grammar;
    std::vector<Refusal> notes;  ///< what strict:false left out
};

struct CompilerStats {
    int64_t hits = 0, misses = 0, refused = 0, evicted = 0, entries = 0;
    int64_t bytes = 0;
    int64_t compile_us = 0, compile_us_max = 0;
};

/// Any thread.
class ConstraintCompiler {
  public:
    explicit ConstraintCompiler(std::shared_ptr<const Vocabulary> vocabulary,
                                CompilerConfig config = {});
    ~ConstraintCompiler();

    /// kInvalidArgument: refused, with pointer and reason; kResourceExhausted: larger than a limit
    /// once compiled, or took too long; kQueueFull: the tenant has too many compilations waiting.
    Result<CompiledConstraint> get(const StructuredOutputArgs& args,
                                   const std::string& tenant = "");
    /// Whether get() would answer at once.
    bool ready(const StructuredOutputArgs& args) const;
    const Vocabulary& vocabulary() const { return *vocabulary_; }
    CompilerStats stats() const;

  private:
    struct Entry;
    using EntryPtr = std::shared_ptr<Entry>;
    struct Tenant {
        size_t bytes = 0, entries = 0;  ///< of the cache
        int waiting = 0;                ///< compilations, those that run included
        int running = 0;
        int64_t served_last = 0;  ///< number of its last compilation, of all
    };
    std::string key_of(StructuredOutputArgs args) const;
    void compile(const StructuredOutputArgs& args, Entry* entry);
    void lower_and_compile(const StructuredOutputArgs& args, Entry* entry);
    /// The one that may be compiled next, null: none now.
    const Entry* next() const;
    void forget_idle(const std::string& tenant);
    void keep(const EntryPtr& entry);
    /// Null: of all. Never the newest of all; false: there is no other.
    bool drop_oldest_of(const std::string* tenant);
    /// From the tenant that has most of it.
    bool drop_from_largest(size_t Tenant::*share);

    const std::shared_ptr<const Vocabulary> vocabulary_;
    const CompilerConfig config_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, EntryPtr> index_;
    std::list<EntryPtr> order_;  ///< finished ones, the last used in front
    std::list<EntryPtr> line_;   ///< not yet begun, in order of arrival
    std::map<std::string, Tenant> tenants_;
    size_t bytes_ = 0;
    int running_ = 0;
    int64_t served_ = 0;
    CompilerStats stats_;
};

}  // namespace deepinfer::grammar
