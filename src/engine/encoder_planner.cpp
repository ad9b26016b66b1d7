#include "engine/encoder_planner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

bool holds(const std::vector<EncodeItem>& items, const std::string& key) {
    return std::any_of(
        items.begin(), items.end(), [&](const EncodeItem& i) { return i.key == key; });
}

}  // namespace

void EncoderPlanner::begin_step(uint64_t step) {
    step_ = step;
    wanted_.clear();
}

void EncoderPlanner::want(const SequenceImage& image) {
    const auto it = ready_.find(image.key);
    if (it != ready_.end()) {
        it->second.last_step = step_;
        return;
    }
    if (!holds(batch_, image.key) && !holds(wanted_, image.key))
        wanted_.push_back({image.key, image.picture});
}

void EncoderPlanner::plan(bool somebody_decodes, EncodePlan* out) {
    if (options_.num_stages == 0) return;
    if (batch_.empty() && !wanted_.empty()) {
        batch_patches_ = 0;
        for (EncodeItem& item : wanted_) {
            const int64_t patches = item.picture->plan.num_patches();
            const int64_t most = std::max(options_.patches_per_step, patches);
            if (!batch_.empty() && batch_patches_ + patches > std::min(options_.max_patches, most))
                break;
            batch_patches_ += patches;
            batch_.push_back(std::move(item));
        }
        stages_left_ = options_.num_stages;
        out->begin = batch_;
    }
    if (batch_.empty()) return;
    const int64_t affordable = options_.patches_per_step * options_.num_stages / batch_patches_;
    const int64_t stages = somebody_decodes ? 1 : std::max<int64_t>(1, affordable);
    out->stages = static_cast<int>(std::min<int64_t>(stages, stages_left_));
    stages_left_ -= out->stages;
    if (stages_left_ > 0) return;
    out->finish = true;
    for (const EncodeItem& item : batch_) {
        const int64_t rows = item.picture->plan.num_tokens();
        ready_[item.key] = {rows, step_};
        ready_rows_ += rows;
        ++num_encoded_;
    }
    batch_.clear();
    drop_unused(out);
}

/// Beyond the cache's rows the least recently used go, but none that somebody wanted in this step.
void EncoderPlanner::drop_unused(EncodePlan* out) {
    while (ready_rows_ > options_.cache_rows) {
        auto oldest = ready_.end();
        for (auto it = ready_.begin(); it != ready_.end(); ++it) {
            if (it->second.last_step == step_) continue;
            if (oldest == ready_.end() || it->second.last_step < oldest->second.last_step ||
                (it->second.last_step == oldest->second.last_step && it->first < oldest->first))
                oldest = it;
        }
        if (oldest == ready_.end()) return;
        ready_rows_ -= oldest->second.rows;
        out->drop.push_back(oldest->first);
        ready_.erase(oldest);
    }
}

}  // namespace deepinfer
