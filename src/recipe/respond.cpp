// Common part of the responders: counting, and the choice by protocol.
#include <cmath>

#include "recipe/respond_common.h"
#include "recipe/utf8_stream.h"

namespace deepinfer::recipe {

Responder::Responder(const ConvertedRequest& request, ResponseContext context)
    : context_(std::move(context)),
      thinking_(request.conversation.thinking),
      compat_(request.compat),
      parser_(request.parsing) {}

std::vector<StreamEvent> Responder::push(std::string_view text,
                                         int64_t num_tokens,
                                         std::string_view logprobs) {
    std::vector<StreamEvent> events;
    if (parser_.finished()) return events;
    const bool reasoning_before = parser_.in_reasoning();
    std::vector<Delta> deltas;
    parser_.push(text, &deltas);
    const int64_t num_reasoning = reasoning_before && parser_.in_reasoning() ? num_tokens : 0;
    completion_tokens_ += num_tokens;
    reasoning_tokens_ += num_reasoning;
    if (context_.group) {
        context_.group->completion_tokens += num_tokens;
        context_.group->reasoning_tokens += num_reasoning;
    }
    if (!logprobs.empty()) {
        std::string& list = reasoning_before ? reasoning_logprobs_ : content_logprobs_;
        if (!list.empty()) list += ", ";
        list += logprobs;
    }
    on_deltas(deltas, &events);
    return events;
}

void add_constraint_notes(const ResponseContext& context, Json* answer) {
    if (context.constraint_notes.empty()) return;
    Json notes = Json::array();
    for (const std::string& note : context.constraint_notes) notes.push_back(note);
    answer->set("constraint_notes", std::move(notes));
}

bool Responder::finished() const {
    return parser_.finished();
}

std::string token_logprob_json(std::string_view bytes,
                               double logprob,
                               const std::vector<std::pair<std::string_view, double>>& top) {
    const auto members = [](std::string_view token, double value) {
        // JSON has no infinity: what was never likely is -9999, as the protocols' users expect.
        const double shown = std::isfinite(value) ? value : -9999.0;
        std::string out = "{\"token\": " + json_quote(valid_utf8(token)) +
                          ", \"logprob\": " + python_float(shown) + ", \"bytes\": [";
        for (size_t i = 0; i < token.size(); ++i) {
            if (i > 0) out += ", ";
            out += std::to_string(static_cast<unsigned char>(token[i]));
        }
        return out + "]";
    };
    std::string out = members(bytes, logprob) + ", \"top_logprobs\": [";
    for (size_t i = 0; i < top.size(); ++i) {
        if (i > 0) out += ", ";
        out += members(top[i].first, top[i].second) + "}";
    }
    return out + "]}";
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
