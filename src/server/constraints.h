// What of a request this version's engine cannot do yet, and how the rest reaches it. Two switches
// stand here: pictures and constrained decoding.
#pragma once

#include "deepinfer/recipe_protocol.h"
#include "deepinfer/sampling_params.h"
#include "deepinfer/server.h"

namespace deepinfer::server {

/// kUnimplemented if the conversation shows pictures.
Status check_pictures(const recipe::Conversation& conversation);

/// Refuses what would need constrained decoding, and constraints that are too large.
bool check_constraints(const ServerLimits& limits,
                       const recipe::ConvertedRequest& request,
                       recipe::ApiError* error);

/// Puts the request's constraint into the engine's parameters.
void apply_constraints(const recipe::ConvertedRequest& request, SamplingParams* sampling);

}  // namespace deepinfer::server
