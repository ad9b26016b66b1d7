// A block pool without sharing: the twin of the prefix-cached one (prefix_caching off), and the
// simplest thing that keeps the BlockSpace contract.
#pragma once

#include <memory>

#include "engine/block_space.h"

namespace deepinfer {

std::unique_ptr<BlockSpace> make_plain_block_space(int64_t num_blocks, int block_tokens);

}  // namespace deepinfer
