// Lowering: any kind of constraint → productions, or what is refused and why.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/sampling_params.h"
#include "grammar/production.h"
#include "grammar/refusal.h"

namespace deepinfer::grammar {

struct Lowered {
    Productions productions;
    std::vector<Refusal> notes;  ///< what strict:false left out
    std::string ebnf;            ///< productions, pruned, as text
};

/// Throws Refusal. The limits are those of one constraint.
Lowered lower(const StructuredOutputArgs& args, const Limits& limits = {});

// Parts of lower(), each adding to `p` and returning the expression of the whole constraint.
ExprId lower_regex(const std::string& pattern,
                   const std::string& pointer,
                   Productions& p,
                   const Limits& limits);
ExprId lower_ebnf(const std::string& text,
                  const std::string& pointer,
                  Productions& p,
                  const Limits& limits);
/// between_markup: as in JsonText.
ExprId lower_schema(const std::string& text,
                    const StructuredOutputArgs& args,
                    Productions& p,
                    std::vector<Refusal>* notes,
                    const Limits& limits,
                    bool between_markup = false);
/// The arguments of a tool call in DSML for a schema of objects.
ExprId lower_parameters(const std::string& text,
                        const StructuredOutputArgs& args,
                        Productions& p,
                        std::vector<Refusal>* notes,
                        const Limits& limits);
ExprId lower_choice(const std::vector<std::string>& choices, Productions& p);
ExprId lower_structural_tag(const std::string& text,
                            const StructuredOutputArgs& args,
                            Productions& p,
                            std::vector<Refusal>* notes,
                            const Limits& limits);

/// Text in which the spellings of marker tokens mean those tokens.
ExprId text_with_markers(const std::string& text, Productions& p);
/// The same as text: spellings replaced by the code points that stand for the tokens.
std::string marked_text(const std::string& text);

}  // namespace deepinfer::grammar
