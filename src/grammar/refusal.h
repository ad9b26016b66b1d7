// What the gates refuse, and what they say about the rest.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/status.h"

namespace deepinfer::grammar {

/// One thing that cannot be enforced. Thrown inside this folder only; no door lets it out.
struct Refusal {
    std::string pointer;  ///< JSON pointer into the schema, or "12:3" (line:column) of a text form
    std::string keyword;  ///< the keyword or construct, may be empty
    std::string reason;   ///< a sentence: what was found, what is expected
};

/// "/properties/x/enum: enum is empty, no value is valid".
std::string refusal_sentence(const Refusal& refusal);

[[noreturn]] void refuse(std::string pointer, std::string keyword, std::string reason);

/// Sizes that a constraint may have (online.md §5.4's numbers are the defaults).
struct Limits {
    size_t source_bytes = 256 * 1024;
    size_t depth = 64;               ///< nesting of the JSON text, the regex, the grammar
    size_t automaton_states = 4000;  ///< of one string or number language
    size_t automaton_edges = 60000;
    size_t grammar_size =
        120000;                 ///< states of the finished grammar (a measure before compilation)
    size_t alternatives = 256;  ///< shapes of one type in one place
    size_t rules = 20000;
    size_t values = 50000;  ///< members of one enum
};

}  // namespace deepinfer::grammar
