// What is refused at submission, before a request costs anything.
#pragma once

#include "deepinfer/engine.h"
#include "deepinfer/request.h"
#include "deepinfer/status.h"

namespace deepinfer {

/// Ids, sizes and sampling parameters. `image_token_id` (−1: none) stands for pictures, which need
/// more than ids.
Status check_request(const Request& request, const ModelInfo& info, int32_t image_token_id);

}  // namespace deepinfer
