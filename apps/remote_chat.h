// The other side of `chat --url`: a server that speaks Chat Completions.
#pragma once

#include <string>

#include "command.h"
#include "deepinfer/image.h"

namespace deepinfer::cli {

struct RemoteOptions {
    std::string url;  ///< "": the engine of this process answers
    std::string api_key;
    std::string model;
};

/// Fills `model` with the first name that the server lists, unless one was given.
Status find_remote_model(RemoteOptions* remote);

/// Sends the conversation and shows the answer as it streams. `images`: the pictures of its image
/// blocks, in order. kCancelled after Ctrl-C.
Status ask_server(const RemoteOptions& remote,
                  const SamplingOptions& sampling,
                  const recipe::Conversation& conversation,
                  const std::vector<ImageInput>& images,
                  AnswerPrinter* printer);

}  // namespace deepinfer::cli
