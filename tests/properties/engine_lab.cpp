#include "properties/engine_lab.h"

#include <openssl/sha.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "engine/request_check.h"
#include "support/golden_file.h"

namespace deepinfer::testing {

void register_lab_backends() {
    static std::once_flag once;
    std::call_once(once, [] {
        register_cpu_backend();
        register_ref_backends();
    });
}

EngineLab::EngineLab(const EngineConfig& config, const EngineHooks& hooks) {
    register_lab_backends();
    auto parts = EngineParts::load(config, hooks);
    if (!parts.ok()) {
        std::fprintf(stderr, "EngineLab: %s\n", parts.status().to_string().c_str());
        std::abort();
    }
    parts_ = std::move(parts).value();
    delivery_ = std::make_unique<Delivery>(*parts_->tokenizer, parts_->clock);
    loop_ = parts_->config.async_scheduling
                ? make_async_loop(*parts_->scheduler, *parts_->executor, parts_->clock, {})
                : make_plain_loop(*parts_->scheduler, *parts_->executor, parts_->clock, {});
}

EngineLab::~EngineLab() {
    for (const uint64_t request : delivery_->open_requests()) abort(request);
    run_until_idle();
}

Result<uint64_t> EngineLab::submit(Request request, std::shared_ptr<TokenConstraint> constraint) {
    DI_RETURN_IF_ERROR(check_request(request, parts_->info, parts_->image_token_id));
    DI_RETURN_IF_ERROR(parts_->scheduler->check_fits(
        static_cast<int64_t>(request.prompt_token_ids.size()), request.sampling));
    const uint64_t number = next_++;
    auto completion = std::make_shared<Completion>();
    completion->choices.resize(static_cast<size_t>(request.sampling.n));
    completions_[number] = completion;
    RequestCallbacks callbacks;
    callbacks.on_output = [this, completion, number](const Output& o) {
        join_output(o, completion.get());
        if (o.last) finished_[number] = true;
        return true;
    };
    SubmittedRequest r = make_submitted(std::move(request), std::move(callbacks), parts_->clock);
    r.set_number(number);
    r.specs[0].constraint = std::move(constraint);
    delivery_->open(r);
    parts_->scheduler->add(std::move(r.specs));
    return number;
}

void EngineLab::run_until_idle() {
    // A step in which everything was preempted plans nothing; the next one goes on.
    while (step() || parts_->scheduler->has_unfinished()) {
    }
}

std::vector<Completion> EngineLab::run(const std::vector<Request>& requests) {
    std::vector<uint64_t> numbers;
    for (const Request& r : requests) {
        const Result<uint64_t> number = submit(r);
        if (!number.ok()) {
            std::fprintf(stderr, "EngineLab: %s\n", number.status().to_string().c_str());
            std::abort();
        }
        numbers.push_back(number.value());
    }
    run_until_idle();
    std::vector<Completion> all;
    for (const uint64_t n : numbers) all.push_back(completion(n));
    return all;
}

std::string digest(const Completion& completion) {
    std::string bytes;
    const auto add = [&bytes](const auto& value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (const CompletionChoice& c : completion.choices) {
        add(c.finish_reason);
        for (const int32_t id : c.token_ids) add(id);
        for (const std::vector<TokenLogprobs>* list : {&c.logprobs, &c.prompt_logprobs}) {
            for (const TokenLogprobs& t : *list) {
                add(t.token_id);
                add(t.logprob);
                for (const auto& [id, value] : t.top) {
                    add(id);
                    add(value);
                }
            }
        }
    }
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
    std::string hex;
    for (const unsigned char b : hash) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", b);
        hex += two;
    }
    return hex;
}

std::vector<int32_t> random_ids(uint64_t seed, int64_t count, int64_t vocab) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids;
    // The lowest ids are special; test checkpoints keep theirs and the image token near the top.
    const int64_t span = vocab - 200;
    for (int64_t i = 0; i < count; ++i) {
        ids.push_back(static_cast<int32_t>(
            10 + static_cast<int64_t>(random() % static_cast<uint64_t>(span))));
    }
    return ids;
}

EngineConfig lab_config(const std::string& checkpoint) {
    EngineConfig c;
    c.model_dir = checkpoint_path(checkpoint);
    c.backend = "cpu";
    c.threads = 2;
    c.max_num_seqs = 48;
    c.max_num_batched_tokens = 256;
    c.max_model_len = 2048;
    c.kv_cache_bytes = int64_t{32} << 20;
    c.nextn = 0;              // tests of speculation say how many
    c.spec_auto_off = false;  // and verify them: no law hangs on the clock
    return c;
}

}  // namespace deepinfer::testing
