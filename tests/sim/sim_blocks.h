// The block pools under test.
#pragma once

#include <memory>

#include "engine/kv_block_space.h"
#include "engine/plain_block_space.h"
#include "sim/sim_world.h"

namespace deepinfer::sim {

inline std::unique_ptr<BlockSpace> make_sim_blocks(const WorldConfig& config, int block_tokens) {
    if (!config.prefix_caching) return make_plain_block_space(config.num_blocks, block_tokens);
    KvBlockSpaceOptions o;
    o.num_blocks = config.num_blocks;
    o.block_tokens = block_tokens;
    o.max_num_seqs = config.max_num_seqs;
    o.exact = false;
    return std::make_unique<KvBlockSpace>(o);
}

}  // namespace deepinfer::sim
