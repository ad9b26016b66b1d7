// The demonstration checkpoint on the CPU, small: for tests of the engine's public face.
#pragma once

#include <mutex>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "deepinfer/engine.h"
#include "support/golden_file.h"

namespace deepinfer::testing {

inline EngineConfig demo_engine_config() {
    static std::once_flag once;
    std::call_once(once, [] {
        register_cpu_backend();
        register_ref_backends();
    });
    EngineConfig c;
    c.model_dir = checkpoint_path("demo");
    c.threads = 2;
    c.max_num_seqs = 8;
    c.max_num_batched_tokens = 64;
    c.max_model_len = 512;
    return c;
}

}  // namespace deepinfer::testing
