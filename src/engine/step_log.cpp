#include "engine/step_log.h"

#include <cerrno>
#include <cstring>

#include "engine/json_text.h"

namespace deepinfer {

Result<std::unique_ptr<StepLog>> StepLog::open(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "ae");
    if (file == nullptr) {
        return Status(StatusCode::kInvalidArgument,
                      "step_log: cannot write " + path + ": " + std::strerror(errno));
    }
    std::setvbuf(file, nullptr, _IOLBF, 0);
    return std::unique_ptr<StepLog>(new StepLog(file, path));
}

StepLog::~StepLog() {
    std::fclose(file_);
}

void StepLog::write(const StepPlan& plan,
                    const StepResult& result,
                    const StepTimes& times,
                    const Scheduler& scheduler,
                    const BlockSpace& blocks) {
    std::string requests = "[";
    int64_t tokens = 0;
    for (const SlotStart& s : plan.starts) {
        if (requests.size() > 1) requests += ',';
        requests += std::to_string(s.request);
    }
    int64_t drafts = 0, verified = 0, accepted = 0;
    for (const ChunkResult& r : result.chunks) {
        tokens += static_cast<int64_t>(r.tokens.size());
        drafts += r.drafts.num_proposed;
        verified += r.drafts.num_verified;
        accepted += r.drafts.num_accepted;
    }
    JsonLine j;
    j.integer("step", static_cast<int64_t>(plan.step));
    j.integer("seqs", static_cast<int64_t>(plan.chunks.size()));
    j.integer("prefill_rows", plan.num_prefill_rows).integer("decode_rows", plan.num_decode_rows);
    j.integer("replay_rows", plan.num_replay_rows).integer("tokens", tokens);
    j.integer("draft_budget", plan.draft_budget).integer("drafts", drafts);
    j.boolean("draft_windows", plan.draft_windows);
    j.integer("verified", verified).integer("accepted", accepted);
    j.integer("skipped_rows", plan.num_skipped_rows);
    j.integer("uncut_prompts", plan.num_uncut_prompts);
    j.integer("saved_windows", static_cast<int64_t>(plan.saves.size()));
    j.integer("restored_windows", static_cast<int64_t>(plan.restores.size()));
    j.integer("admitted", plan.num_admitted).integer("preempted", plan.num_preempted);
    j.integer("constrained", plan.num_constrained).raw("started_requests", requests + "]");
    j.integer("running", scheduler.num_running()).integer("waiting", scheduler.num_waiting());
    j.integer("free_blocks", blocks.free_blocks()).integer("total_blocks", blocks.total_blocks());
    j.integer("plan_us", times.plan_us).integer("wait_us", times.wait_us);
    j.integer("commit_us", times.commit_us).integer("step_us", result.step_us);
    j.integer("sample_us", result.sample_us).integer("draft_us", result.draft_us);
    if (std::fprintf(file_, "%s\n", j.str().c_str()) >= 0 || failed_) return;
    failed_ = true;  // said once: the steps go on
    std::fprintf(stderr,
                 "step_log: cannot write %s: %s; lines are missing from step %llu on\n",
                 path_.c_str(),
                 std::strerror(errno),
                 static_cast<unsigned long long>(plan.step));
}

}  // namespace deepinfer
