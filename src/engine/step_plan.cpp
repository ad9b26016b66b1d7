#include "engine/step_plan.h"

#include "engine/json_text.h"
#include "engine/sequence_images.h"

namespace deepinfer {

bool SlotStart::operator==(const SlotStart& o) const {
    const bool same_params =
        sampling == o.sampling || (sampling && o.sampling && *sampling == *o.sampling);
    const bool same_images =
        images == o.images || (images && o.images && images->same_places(*o.images));
    return slot == o.slot && epoch == o.epoch && request == o.request && index == o.index &&
           same_images && prompt_len == o.prompt_len && max_total == o.max_total &&
           tokens == o.tokens && seed == o.seed && same_params;
}

namespace {

std::string copies_json(const std::vector<WindowCopy>& copies) {
    std::string json = "[";
    for (const WindowCopy& c : copies) {
        if (json.size() > 1) json += ',';
        json += "[" + std::to_string(c.from_slot) + "," + std::to_string(c.to_slot) + "]";
    }
    return json + "]";
}

}  // namespace

std::string StepPlan::to_json() const {
    std::string starts_json = "[";
    for (const SlotStart& s : starts) {
        if (starts_json.size() > 1) starts_json += ',';
        JsonLine j;
        j.integer("slot", s.slot).integer("epoch", s.epoch);
        j.integer("request", static_cast<int64_t>(s.request)).integer("index", s.index);
        j.integer("prompt_len", s.prompt_len)
            .integer("tokens", static_cast<int64_t>(s.tokens.size()));
        j.text("seed", std::to_string(s.seed));
        starts_json += j.str();
    }
    std::string forks_json = "[";
    for (const SlotFork& f : forks) {
        if (forks_json.size() > 1) forks_json += ',';
        std::string blocks = "[";
        for (const auto& [from, to] : f.blocks) {
            if (blocks.size() > 1) blocks += ',';
            blocks += "[" + std::to_string(from) + "," + std::to_string(to) + "]";
        }
        JsonLine j;
        j.integer("from_slot", f.from_slot)
            .integer("to_slot", f.to_slot)
            .raw("blocks", blocks + "]");
        forks_json += j.str();
    }
    std::string chunks_json = "[";
    for (const ChunkPlan& c : chunks) {
        if (chunks_json.size() > 1) chunks_json += ',';
        JsonLine j;
        j.integer("slot", c.slot).integer("epoch", c.epoch).integer("start", c.start_pos);
        j.integer("rows", c.num_rows());
        if (c.num_drafts != 0) j.integer("drafts", c.num_drafts);
        if (c.uncertain_start) j.boolean("uncertain_start", true);
        if (c.window_floor != 0) j.integer("window_floor", c.window_floor);
        if (c.write_from != 0) j.integer("write_from", c.write_from);
        if (c.truncate_at != 0) j.integer("truncate_at", c.truncate_at);
        j.boolean("decode", c.decode).boolean("sample", c.sample);
        if (c.constrained) j.boolean("constrained", true);
        if (c.prompt_logprobs) j.boolean("prompt_logprobs", true);
        j.raw("tokens", json_ids(c.token_ids)).raw("blocks", json_ids(c.block_ids));
        chunks_json += j.str();
    }
    JsonLine j;
    j.integer("step", static_cast<int64_t>(step));
    j.integer("prefill_rows", num_prefill_rows).integer("decode_rows", num_decode_rows);
    j.integer("draft_rows", num_draft_rows).integer("draft_budget", draft_budget);
    if (draft_block != 0) j.integer("draft_block", draft_block);
    if (!draft_windows) j.boolean("draft_windows", false);
    j.number("least_survival", least_survival);
    j.integer("replay_rows", num_replay_rows).integer("skipped_rows", num_skipped_rows);
    j.integer("uncut_prompts", num_uncut_prompts).integer("admitted", num_admitted);
    j.integer("preempted", num_preempted).integer("constrained", num_constrained);
    j.raw("saves", copies_json(saves)).raw("restores", copies_json(restores));
    if (!encode.empty()) {
        JsonLine e;
        e.integer("begin", static_cast<int64_t>(encode.begin.size()));
        e.integer("stages", encode.stages).boolean("finish", encode.finish);
        e.integer("drop", static_cast<int64_t>(encode.drop.size()));
        j.raw("encode", e.str());
    }
    j.raw("starts", starts_json + "]").raw("forks", forks_json + "]");
    j.raw("chunks", chunks_json + "]");
    return j.str();
}

}  // namespace deepinfer
