// for_rows: a function over independent rows, spread over the backend's host threads if it has any.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "device/stream.h"
#include "ops/backend.h"
#include "sampler/sampler.h"

namespace deepinfer {

/// f(row, workspace) for each row of [0, n). Rows are independent, so how they are spread over
/// threads cannot show in a result.
template <typename F>
void for_rows(Backend& backend, int64_t n, const F& f) {
    const auto part = [&](int64_t begin, int64_t end) {
        thread_local SamplerWorkspace workspace;
        for (int64_t i = begin; i < end; ++i) f(i, workspace);
    };
    auto* cpu = dynamic_cast<CpuStream*>(&backend.device().stream());
    if (cpu != nullptr && n > 1) {
        cpu->pool().parallel_for(n, 1, part);
    } else if (n > 0) {
        part(0, n);
    }
}

}  // namespace deepinfer
