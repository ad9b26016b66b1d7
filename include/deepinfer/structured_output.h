// Structured outputs: constraints from JSON, and what is enforced or refused.
//
//   {"type": "regex" | "json" | "json_object" | "ebnf" | "choice" | "structural_tag", "value": …,
//    "strict": true, "any_whitespace": true, "in_reasoning": false, "backtrack": "none"}
//
// or one of the short forms {"regex": R}, {"json": S}, {"json_schema": S}, {"json_object": true},
// {"ebnf": G}, {"grammar": G}, {"choice": [A, B]}, {"structural_tag": T}, with the same options
// beside them. A schema or tag may be an object or its text. docs/structured_outputs.md has the
// dialects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/sampling_params.h"
#include "deepinfer/status.h"
#include "deepinfer/tokenizer.h"

namespace deepinfer {

/// kInvalidArgument names the member. Nothing is compiled yet.
Result<StructuredOutputArgs> structured_output_from_json(std::string_view json);
/// The text of a member, reached by keys from the top: members in their order, numbers with all
/// their digits. kInvalidArgument: no such member, a key twice, bad UTF-8.
Result<std::string> json_member_text(std::string_view json, const std::vector<std::string>& path);
/// The long form.
std::string structured_output_to_json(const StructuredOutputArgs& args);

/// One keyword (or construct) that a constraint's gate has something to say about.
struct ConstraintFinding {
    std::string
        pointer;  ///< JSON pointer into the schema, "line:column" in a grammar; may be empty
    std::string keyword;
    std::string reason;
};

struct ConstraintReport {
    bool ok = false;
    std::vector<ConstraintFinding> refused;  ///< why not, when not ok
    std::vector<ConstraintFinding> notes;    ///< what strict:false left out
    std::vector<bool> accepted;              ///< per text: a complete output? Empty when not ok
};

/// Judges a constraint as a request would, and which texts are complete outputs. Needs no model:
/// texts are read byte by byte.
ConstraintReport check_constraint(const StructuredOutputArgs& args,
                                  const std::vector<std::string>& texts);

/// What a constraint costs with a vocabulary: compilation, and masks along random outputs (every
/// token drawn uniformly from the allowed ones).
struct ConstraintTiming {
    double vocabulary_ms = 0;  ///< preparing the vocabulary; once per tokenizer
    double lower_ms = 0, compile_ms = 0;
    size_t memory_bytes = 0;
    std::vector<double> mask_us, accept_us;  ///< one per token
};
/// kInvalidArgument: refused.
Result<ConstraintTiming> time_constraint(const Tokenizer& tokenizer,
                                         const StructuredOutputArgs& args,
                                         int num_outputs,
                                         int max_tokens,
                                         uint64_t seed,
                                         int threads);

/// One line {"so_args": {…}, "texts": […]} → {"ok", "refused", "notes", "accepted"} (`deepinfer
/// check-constraint --cases`). A line that is no such object gives {"ok": false, "refused": […]}
/// too.
std::string check_constraint_json_line(std::string_view line);
std::string constraint_report_json(const ConstraintReport& report);

}  // namespace deepinfer
