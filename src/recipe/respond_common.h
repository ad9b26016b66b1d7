// What the three responders share.
#pragma once

#include "deepinfer/recipe_protocol.h"
#include "recipe/json_value.h"

namespace deepinfer::recipe {

std::unique_ptr<Responder> make_chat_responder(const ConvertedRequest& request,
                                               ResponseContext context);
std::unique_ptr<Responder> make_messages_responder(const ConvertedRequest& request,
                                                   ResponseContext context);
std::unique_ptr<Responder> make_responses_responder(const ConvertedRequest& request,
                                                    ResponseContext context);

/// {"constraint_notes": […]} of an answer whose constraint was not enforced in full.
void add_constraint_notes(const ResponseContext& context, Json* answer);

}  // namespace deepinfer::recipe
