// The constraint on an answer's tokens that a conversation implies: response format, strict tools,
// a tool that must be called, and vLLM's guided_* fields.
#pragma once

#include "deepinfer/recipe_protocol.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::recipe {

/// What goes into SamplingParams::so_args for a converted request; empty when the answer is free.
///
///   response_format        json_object, json_schema (strict: true enforces every keyword or
///   refuses it,
///                          otherwise what cannot be enforced is left out and listed), regex
///   a tool must be called  the answer (behind the reasoning) is a block of calls of declared tools
///   strict tools, auto     free text; a block of calls, if one begins, is well-formed, and the
///   arguments
///                          of strict tools are valid under their schema
///   format and tools       a value of the format, or a block of calls
///   guided_*               as given; together with any of the above: kInvalidArgument
///
/// Where the prompt leaves reasoning open the engine begins behind "</think>" by itself.
Result<StructuredOutputArgs> output_constraint(const ConvertedRequest& request);

/// The same from a conversation alone (no protocol body).
StructuredOutputArgs output_constraint(const Conversation& conversation,
                                       bool must_call = false,
                                       bool parallel_tool_calls = true);

}  // namespace deepinfer::recipe
