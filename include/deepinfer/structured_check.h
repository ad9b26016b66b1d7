// A check of structured outputs on a running engine: three fixed prompts under a regular
// expression, a JSON schema and a grammar, each judged by a validator of its own that knows nothing
// of the constraint's machinery.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/engine.h"

namespace deepinfer {

struct StructuredCheckRow {
    std::string prompt;
    std::string kind;  ///< "regex", "json", "ebnf"
    std::string text;
    bool finished = false;  ///< ended by the end token, not by length
    bool valid = false;  ///< a finished text must be valid; an unfinished one counts as not judged
    int64_t tokens = 0;
};

struct StructuredCheck {
    std::vector<StructuredCheckRow> rows;
    int64_t masks = 0;           ///< masks made for these requests (drafted positions included)
    int64_t mask_us = 0;         ///< time of all of them
    int64_t refused_drafts = 0;  ///< drafts that the form did not allow
    bool ok() const;             ///< every finished text is valid, and some finished of each kind
};

/// Runs the nine requests (greedy, at most 96 tokens). A Status if one could not be submitted.
Result<StructuredCheck> check_structured_output(Engine& engine);
std::string structured_check_json(const StructuredCheck& check);

}  // namespace deepinfer
