// Pictures: the encoder's share of a step, asked for by the prompts that will soon run their rows.
#include <algorithm>
#include <limits>

#include "engine/scheduler.h"

namespace deepinfer {

void Scheduler::plan_encodes(StepPlan& plan) {
    if (config_.encoder.num_stages == 0) return;
    encoder_.begin_step(plan.step);
    bool decodes = false;
    for (const Sequence* seq : running_) {
        decodes = decodes || seq->scheduled >= seq->prompt_len;
        const SequenceImages* images = seq->spec.images.get();
        if (images == nullptr || seq->scheduled >= images->end()) continue;
        // What the next step could run, and the picture behind it.
        const int64_t reach = seq->scheduled + config_.max_num_batched_tokens;
        for (const SequenceImage& image : images->spans) {
            if (image.end > seq->scheduled && image.begin < reach) encoder_.want(image);
        }
    }
    encoder_.plan(decodes, &plan.encode);
}

int64_t Scheduler::rows_before_picture(const Sequence& seq) const {
    const SequenceImages* images = seq.spec.images.get();
    if (images != nullptr) {
        for (const SequenceImage& image : images->spans) {
            if (image.end <= seq.scheduled || encoder_.ready(image)) continue;
            return std::max<int64_t>(0, image.begin - seq.scheduled);
        }
    }
    return std::numeric_limits<int64_t>::max();
}

}  // namespace deepinfer
