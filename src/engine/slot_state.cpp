#include "engine/slot_state.h"

#include <algorithm>

namespace deepinfer {

void SlotState::start(const SlotStart& s) {
    *this = SlotState();
    epoch = s.epoch;
    request = s.request;
    index = static_cast<uint32_t>(s.index);
    max_total = s.max_total;
    tokens = s.tokens;
    const std::span<const int32_t> all(s.tokens);
    history.set_prompt(all.first(static_cast<size_t>(s.prompt_len)));
    for (const int32_t id : all.subspan(static_cast<size_t>(s.prompt_len))) history.append(id);
    plan.emplace(*s.sampling);
    params = s.sampling;
    images = s.images;
    seed = s.seed;
}

bool SlotState::stops_at(int32_t token, int32_t eos) const {
    if (token == eos && !params->ignore_eos) return true;
    const std::vector<int32_t>& ids = params->stop_token_ids;
    return std::find(ids.begin(), ids.end(), token) != ids.end();
}

void SlotState::append(int32_t token, int32_t eos) {
    tokens.push_back(token);
    history.append(token);
    stopped = stops_at(token, eos);
}

SampleRow SlotState::sample_row(const float* logits, int64_t ahead) const {
    SampleRow row;
    row.logits = logits;
    row.plan = &*plan;
    row.history = &history;
    row.position = static_cast<uint32_t>(static_cast<int64_t>(tokens.size()) + ahead);
    row.seed = seed;
    row.sub_sequence = index;
    return row;
}

}  // namespace deepinfer
