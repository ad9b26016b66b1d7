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

}  // namespace deepinfer::recipe
