// Pictures, which this version's engine cannot do yet, and constraints on the answer's form.
#pragma once

#include "deepinfer/recipe_protocol.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/server.h"

namespace deepinfer::server {

/// kUnimplemented if the conversation shows pictures.
Status check_pictures(const recipe::Conversation& conversation);

/// Refuses constraints that contradict each other or are too large. Whether a constraint can be
/// enforced says the engine at submission.
bool check_constraints(const ServerLimits& limits,
                       const recipe::ConvertedRequest& request,
                       recipe::ApiError* error);

/// Puts the request's constraint into the engine's parameters.
void apply_constraints(const recipe::ConvertedRequest& request, SamplingParams* sampling);

}  // namespace deepinfer::server
