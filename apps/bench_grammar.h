// bench grammar: what constraints cost. See cmd_bench.cpp for the other measurements.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "command.h"
#include "deepinfer/engine.h"

namespace deepinfer::cli {

struct GrammarBench {
    std::string cases;  ///< JSON Lines of {"so_args": {…}} or of so_args; empty: a built-in set
    std::string tokenizer;  ///< tokenizer.json or its folder; empty: the model's
    int64_t outputs = 4;    ///< random outputs per constraint
    int64_t tokens = 128;   ///< of each
    int64_t batch = 16;     ///< requests of the decode comparison; 0: leave it out
    int64_t repeat = 3;
};

void add_bench_grammar_options(CLI::App& app, GrammarBench& options);

/// `write` prints a record. Records: one per constraint, one over all (compile and mask
/// percentiles), one for decoding with and without a constraint.
Status run_bench_grammar(Engine& engine,
                         const GrammarBench& options,
                         const std::string& tag,
                         const std::string& note,
                         const std::function<Status(const nlohmann::ordered_json&)>& write);

}  // namespace deepinfer::cli
