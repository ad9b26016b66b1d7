// Measures a model's StepCosts before the first request.
#pragma once

#include "engine/clock.h"
#include "engine/step_costs.h"
#include "model/deepseek_v41.h"

namespace deepinfer {

/// Runs steps of several sizes, five times each, and keeps the medians; at most about two seconds,
/// what is left out then follows the last slope. Writes into slots and blocks, so nothing may be in
/// them; leaves zeros behind, as fresh caches have.
void measure_step_costs(DeepseekV41& model,
                        const CacheView& cache,
                        const Clock& clock,
                        StepCosts* costs);

}  // namespace deepinfer
