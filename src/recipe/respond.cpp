// Common part of the responders: counting, and the choice by protocol.
#include "recipe/respond_common.h"

namespace deepinfer::recipe {

Responder::Responder(const ConvertedRequest& request, ResponseContext context)
    : context_(std::move(context)),
      thinking_(request.conversation.thinking),
      compat_(request.compat),
      parser_(request.parsing) {}

std::vector<StreamEvent> Responder::push(std::string_view text, int64_t num_tokens) {
    std::vector<StreamEvent> events;
    if (parser_.finished()) return events;
    const bool reasoning_before = parser_.in_reasoning();
    std::vector<Delta> deltas;
    parser_.push(text, &deltas);
    completion_tokens_ += num_tokens;
    if (reasoning_before && parser_.in_reasoning()) reasoning_tokens_ += num_tokens;
    on_deltas(deltas, &events);
    return events;
}

bool Responder::finished() const {
    return parser_.finished();
}

std::unique_ptr<Responder> make_responder(const ConvertedRequest& request,
                                          ResponseContext context) {
    switch (request.protocol) {
        case Protocol::kMessages:
            return make_messages_responder(request, std::move(context));
        case Protocol::kResponses:
            return make_responses_responder(request, std::move(context));
        case Protocol::kChatCompletions:
            break;
    }
    return make_chat_responder(request, std::move(context));
}

}  // namespace deepinfer::recipe
