#include "engine/request_check.h"

#include <string>

namespace deepinfer {

Status check_request(const Request& request, const ModelInfo& info, int32_t image_token_id) {
    constexpr size_t kMaxSaltBytes = 256;
    if (request.prompt_token_ids.empty()) {
        return Status(
            StatusCode::kInvalidArgument,
            "prompt_token_ids is empty, expected at least one id (the BOS token at least)");
    }
    for (size_t i = 0; i < request.prompt_token_ids.size(); ++i) {
        const int32_t id = request.prompt_token_ids[i];
        const std::string where =
            "prompt_token_ids[" + std::to_string(i) + "] is " + std::to_string(id);
        if (id < 0 || id >= info.vocab_size) {
            return Status(StatusCode::kInvalidArgument,
                          where + ", expected 0 to " + std::to_string(info.vocab_size - 1));
        }
        if (id == image_token_id && request.images.empty()) {
            return Status(StatusCode::kInvalidArgument,
                          where + ", the image token, but the request has no images");
        }
    }
    if (!request.images.empty() && image_token_id < 0) {
        return Status(StatusCode::kInvalidArgument,
                      "the request has " + std::to_string(request.images.size()) +
                          " images, but the model takes no pictures");
    }
    if (request.cache_salt.size() > kMaxSaltBytes) {
        return Status(StatusCode::kInvalidArgument,
                      "cache_salt has " + std::to_string(request.cache_salt.size()) +
                          " bytes, expected at most " + std::to_string(kMaxSaltBytes));
    }
    DI_RETURN_IF_ERROR(request.sampling.validate(info.num_token_ids));
    if (request.sampling.prompt_logprobs && request.sampling.logprob_mode != LogprobMode::kRaw) {
        return Status(StatusCode::kUnimplemented,
                      "prompt_logprobs with logprob_mode processed: this version reports raw ones");
    }
    return {};
}

}  // namespace deepinfer
