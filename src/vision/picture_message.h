// What travels between the engine and a picture worker: fixed structs over a socket, bytes in
// memory files beside them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vision/image_plan.h"

namespace deepinfer {

struct PictureRequest {
    ImagePlan plan;
    int64_t input_bytes = 0, output_bytes = 0;
    int64_t width = 0, height = 0;  ///< of decoded input; 0: the input is a file's bytes
    int64_t max_side = 0;
    int32_t low_detail = 0, drop_alpha = 0;
};

struct PictureReply {
    int32_t code = 0;  ///< StatusCode
    char text[252] = {};
};

/// Sends bytes and up to two descriptors. False when the other side is gone.
bool send_message(int socket, const void* data, size_t bytes, const int* fds, int num_fds);
/// Receives exactly `bytes`. Descriptors that did not come stay −1. False when the other side is
/// gone.
bool receive_message(int socket, void* data, size_t bytes, int* fds, int max_fds);

}  // namespace deepinfer
