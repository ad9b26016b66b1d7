// What is refused at submission, before a request costs anything.
#pragma once

#include "deepinfer/engine.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

/// Ids, sizes and sampling parameters. `image_token_id` (−1: the model takes no pictures) may stand
/// in the prompt once for each of the request's images.
Status check_request(const Request& request, const ModelInfo& info, int32_t image_token_id);

}  // namespace deepinfer
