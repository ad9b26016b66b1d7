// JSON Schemas of tools and response formats: is it one, and the form that compat shows.
#pragma once

#include <optional>
#include <string>

#include "recipe/json_value.h"

namespace deepinfer::recipe {

/// Why `schema` is no usable JSON Schema (draft 2020-12 keywords of the wrong type, a pattern that
/// does not compile, a reference that leads nowhere), as a sentence; nullopt if it is fine. Unknown
/// keywords are fine. What can be enforced while decoding is the grammar part's question.
std::optional<std::string> schema_fault(const Json& schema);

/// The reduced form of a strict schema that deepseek-recipe shows (prompt spec 3.3). Refuses
/// (throws Refusal) what has no such form. `top_level`: the value must be an object, which may be
/// empty.
Json strict_form(const Json& schema, bool top_level, bool may_be_empty, const std::string& param);

}  // namespace deepinfer::recipe
