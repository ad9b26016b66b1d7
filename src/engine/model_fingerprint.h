// Fingerprint of a checkpoint: what makes cached blocks of one model useless to another.
#pragma once

#include "checkpoint/checkpoint.h"
#include "kvcache/cache_key.h"

namespace deepinfer {

/// SHA-256 over config.json, every tensor's name, dtype and shape, and a sample of its bytes: the
/// first and last 64 and 64 in the middle of at most 2,048 tensors, evenly chosen. The directory,
/// the shards and their order do not count; a retrained checkpoint differs in every tensor, so the
/// sample finds it, and reading it takes milliseconds even of half a terabyte.
CacheKey model_fingerprint(const Checkpoint& checkpoint);

}  // namespace deepinfer
