// The conversation as JSON: what `encode` reads as protocol `conversation` and answers with.
#pragma once

#include "recipe/fields.h"

namespace deepinfer::recipe {

/// Types are checked (a Refusal otherwise), nothing else: odd shapes are rendered.
Conversation read_conversation(const Fields& body, bool compat);

Json conversation_json(const Conversation& conversation);

}  // namespace deepinfer::recipe
