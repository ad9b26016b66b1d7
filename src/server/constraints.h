// Constraints on the answer's form, as requests spell them and as the engine takes them.
#pragma once

#include <string>

#include "deepinfer/recipe_protocol.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/server.h"
#include "recipe/fields.h"

namespace deepinfer::server {

/// Refuses constraints that contradict each other or are too large. Whether a constraint can be
/// enforced says the engine at submission.
bool check_constraints(const ServerLimits& limits,
                       const recipe::ConvertedRequest& request,
                       recipe::ApiError* error);

/// Puts the request's constraint into the engine's parameters.
void apply_constraints(const recipe::ConvertedRequest& request, SamplingParams* sampling);

/// The constraint of a /v1/completions body: response_format (text, json_object, json_schema,
/// regex) or vLLM's structured_outputs and guided_* fields; it holds from the first token. Throws
/// recipe::Refusal.
StructuredOutputArgs read_completions_constraint(const recipe::Fields& body,
                                                 const ServerLimits& limits);

/// The field of the request's protocol that its constraint came from: "response_format", "text",
/// "output_config", "tools", "structured_outputs". Errors of the engine about it name this field.
std::string constraint_field(const recipe::ConvertedRequest& request);

/// `error` says "so_args: …": in the words of the client's own `field`.
recipe::ApiError constraint_error(const Status& error, const std::string& field);

}  // namespace deepinfer::server
