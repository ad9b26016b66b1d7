// ConstraintCompiler: constraints → compiled grammars, with a cache and limits.
//
// Works on the caller's thread (never the engine's), at most max_parallel at a time; equal
// constraints that come together are compiled once. The library cannot be interrupted, so what it
// gets is bounded before (Limits), and how long it took is seen after. Refusals are remembered too.
// A tenant can fill its share of the cache and of the places, not those of others.
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
    int threads = 2;       ///< of one compilation
    int max_parallel = 2;  ///< compilations at a time
    int max_waiting = 16;  ///< of one tenant, beyond that kQueueFull
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
    /// once compiled; kQueueFull: the tenant has too many compilations waiting.
    Result<CompiledConstraint> get(const StructuredOutputArgs& args,
                                   const std::string& tenant = "");
    const Vocabulary& vocabulary() const { return *vocabulary_; }
    CompilerStats stats() const;

  private:
    struct Entry;
    using EntryPtr = std::shared_ptr<Entry>;
    void compile(const StructuredOutputArgs& args, Entry* entry);
    void keep(const EntryPtr& entry);
    void drop(std::list<EntryPtr>::iterator it);

    const std::shared_ptr<const Vocabulary> vocabulary_;
    const CompilerConfig config_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, EntryPtr> index_;
    std::list<EntryPtr> order_;  ///< finished ones, the last used in front
    std::map<std::string, size_t> tenant_bytes_;
    std::map<std::string, int> tenant_waiting_;
    size_t bytes_ = 0;
    int running_ = 0;
    CompilerStats stats_;
};

}  // namespace deepinfer::grammar
