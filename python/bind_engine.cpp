// Engine, mailbox and rendered conversations for Python. Results leave as plain dicts and tuples;
// python/deepinfer/outputs.py gives them their names.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <variant>

#include "bind_common.h"
#include "deepinfer/batch.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/recipe_constraint.h"
#include "deepinfer/recipe_protocol.h"

namespace deepinfer::python {

using namespace nb::literals;

namespace {

// ------------------------------------------------------------------ configuration

using Member = std::variant<bool EngineConfig::*,
                            int EngineConfig::*,
                            int64_t EngineConfig::*,
                            double EngineConfig::*,
                            std::string EngineConfig::*>;
struct Option {
    const char* name;
    Member member;
};

const std::vector<Option>& options() {
    static const std::vector<Option> list = {
        {"synthetic", &EngineConfig::synthetic},
        {"backend", &EngineConfig::backend},
        {"threads", &EngineConfig::threads},
        {"isa", &EngineConfig::isa},
        {"device_index", &EngineConfig::device_index},
        {"max_num_seqs", &EngineConfig::max_num_seqs},
        {"max_num_batched_tokens", &EngineConfig::max_num_batched_tokens},
        {"max_model_len", &EngineConfig::max_model_len},
        {"kv_cache_bytes", &EngineConfig::kv_cache_bytes},
        {"block_tokens", &EngineConfig::block_tokens},
        {"max_queue", &EngineConfig::max_queue},
        {"max_logit_rows", &EngineConfig::max_logit_rows},
        {"prefix_caching", &EngineConfig::prefix_caching},
        {"async_scheduling", &EngineConfig::async_scheduling},
        {"batch_invariant", &EngineConfig::batch_invariant},
        {"long_prefill_token_threshold", &EngineConfig::long_prefill_token_threshold},
        {"age_s", &EngineConfig::age_s},
        {"step_log", &EngineConfig::step_log},
        {"image_workers", &EngineConfig::image_workers},
        {"image_processes", &EngineConfig::image_processes},
        {"image_bytes", &EngineConfig::image_bytes},
        {"image_cache_bytes", &EngineConfig::image_cache_bytes},
        {"encoder_patches", &EngineConfig::encoder_patches},
        {"max_image_tokens", &EngineConfig::max_image_tokens},
        {"nextn", &EngineConfig::nextn},
        {"varlen", &EngineConfig::varlen},
        {"spec_sampling", &EngineConfig::spec_sampling},
        {"spec_budget", &EngineConfig::spec_budget},
        {"spec_auto_off", &EngineConfig::spec_auto_off},
        {"spec_calibration", &EngineConfig::spec_calibration},
        {"spec_forced_acceptance", &EngineConfig::spec_forced_acceptance},
        {"truncation", &EngineConfig::truncation},
        {"replay", &EngineConfig::replay},
        {"stored_windows", &EngineConfig::stored_windows},
        {"keep_tokens", &EngineConfig::keep_tokens},
        {"ep", &EngineConfig::ep},
        {"dp", &EngineConfig::dp},
        {"cp", &EngineConfig::cp},
        {"extra_experts", &EngineConfig::extra_experts},
    };
    return list;
}

const char* expected_type(const Member& member) {
    static constexpr const char* kNames[] = {
        "True or False", "an int", "an int", "a number", "a str"};
    return kNames[member.index()];
}

void set_option(const Option& option, nb::handle value, EngineConfig* config) {
    const bool set = std::visit(
        [&](auto member) {
            using T = std::decay_t<decltype(config->*member)>;
            // An int would pass as a bool and a bool as an int.
            const bool is_bool = nb::isinstance<nb::bool_>(value);
            if (is_bool != std::is_same_v<T, bool>) return false;
            return nb::try_cast<T>(value, config->*member, std::is_same_v<T, double>);
        },
        option.member);
    if (set) return;
    throw StatusError({StatusCode::kInvalidArgument,
                       std::string(option.name) + " is " + nb::repr(value).c_str() + ", expected " +
                           expected_type(option.member)});
}

EngineConfig make_config(const std::string& model, const std::string& demo, const nb::dict& given) {
    EngineConfig config = take(EngineConfig::from_environment());
    for (const auto& [key, value] : given) {
        const auto name = nb::cast<std::string>(key);
        const Option* found = nullptr;
        for (const Option& option : options()) {
            if (name == option.name) found = &option;
        }
        if (found == nullptr) {
            std::string known;
            for (const Option& option : options()) known += std::string(" ") + option.name;
            throw nb::type_error(("no engine option '" + name + "'; there are:" + known).c_str());
        }
        set_option(*found, value, &config);
    }
    if (!config.synthetic.empty() && model.empty()) {  // generated weights: no files
        config.model_dir.clear();
        return config;
    }
    const char* env_dir = std::getenv("DEEPINFER_HF_MODEL_DIR");
    const std::string env = env_dir != nullptr ? env_dir : "";
    config.model_dir = take(resolve_model_dir(model, env.empty() ? demo : env));
    return config;
}

// ------------------------------------------------------------------ conversations

/// A Chat Completions body (messages, tools, tool_choice, thinking, reasoning_effort) → prompt.
ChatPrompt render_chat(const Tokenizer& tokenizer,
                       const std::string& body,
                       const std::string& sampling_json,
                       std::optional<int> effort) {
    const recipe::ConvertResult r =
        recipe::convert_request(recipe::Protocol::kChatCompletions, body, {});
    if (!r.request) throw StatusError({StatusCode::kInvalidArgument, r.error.message});
    recipe::Conversation conversation = r.request->conversation;
    recipe::ConvertedRequest request = *r.request;
    // One constraint at a time, wherever it was written.
    request.sampling.so_args = take(sampling_params_from_json(sampling_json)).so_args;
    StructuredOutputArgs constraint = take(recipe::output_constraint(request));
    if (effort) {
        if (*effort < 1 || *effort > 100) {
            throw StatusError({StatusCode::kInvalidArgument,
                               "effort is " + std::to_string(*effort) + ", expected 1 to 100"});
        }
        conversation.effort = recipe::Effort::from_number(*effort);
    }
    ChatPrompt prompt;
    prompt.prompt_token_ids =
        take(recipe::prompt_ids(tokenizer, recipe::encode_prompt(conversation)));
    prompt.images = take(images_of(recipe::prompt_images(conversation)));
    prompt.parsing = r.request->parsing;
    prompt.constraint = std::move(constraint);
    return prompt;
}

/// Ids of a raw text; BOS is put in front unless the text begins with it.
std::vector<int32_t> prompt_ids(const Engine& engine, const std::string& text) {
    std::vector<int32_t> ids = engine.tokenizer().encode(text);
    const int32_t bos = engine.model_info().bos_token_id;
    if (ids.empty() || ids[0] != bos) ids.insert(ids.begin(), bos);
    return ids;
}

// ------------------------------------------------------------------ results

nb::object optional_text(const std::string& text) {
    return text.empty() ? nb::object(nb::none()) : nb::object(nb::str(text.c_str(), text.size()));
}

nb::object logprobs_to_python(const std::vector<TokenLogprobs>& list) {
    if (list.empty()) return nb::none();
    nb::list out;
    for (const TokenLogprobs& t : list) out.append(nb::make_tuple(t.token_id, t.logprob, t.top));
    return out;
}

nb::dict part_to_python(const Part& p) {
    nb::object stop_reason = optional_text(p.stop_text);
    if (p.stop_text.empty() && p.stop_token >= 0) stop_reason = nb::int_(p.stop_token);
    nb::dict d;
    d["index"] = p.index;
    d["text"] = p.text;
    d["reasoning"] = p.reasoning;
    d["calls"] = deltas_to_python(p.calls);
    d["token_ids"] = p.token_ids;
    d["logprobs"] = logprobs_to_python(p.logprobs);
    d["prompt_logprobs"] = logprobs_to_python(p.prompt_logprobs);
    d["finish_reason"] = optional_text(p.finish_reason);
    d["stop_reason"] = stop_reason;
    d["error"] = optional_text(p.error);
    d["seq_seed"] = p.seq_seed;
    return d;
}

/// (key, last, parts, usage, timing, constraint notes)
nb::tuple letter_to_python(const Letter& letter) {
    nb::list parts;
    for (const Part& part : letter.parts) parts.append(part_to_python(part));
    const Usage& u = letter.usage;
    const Timing& t = letter.timing;
    return nb::make_tuple(letter.key,
                          letter.last,
                          parts,
                          nb::make_tuple(u.prompt_tokens, u.cached_tokens, u.completion_tokens),
                          nb::make_tuple(t.queue_ms, t.first_token_ms, t.total_ms),
                          letter.constraint_notes);
}

nb::list wait(Mailbox& box, double timeout_s) {
    std::vector<Letter> letters;
    {
        nb::gil_scoped_release release;
        letters = box.wait(timeout_s);
    }
    nb::list out;
    for (const Letter& letter : letters) out.append(letter_to_python(letter));
    return out;
}

void submit(Mailbox& box,
            int64_t key,
            std::vector<int32_t> ids,
            const std::string& sampling_json,
            const ChatPrompt* chat,
            bool stream,
            std::string tenant,
            std::string cache_salt) {
    Request request;
    request.prompt_token_ids = std::move(ids);
    if (chat != nullptr) request.images = chat->images;
    request.sampling = take(sampling_params_from_json(sampling_json));
    if (chat != nullptr) request.sampling.so_args = chat->constraint;
    request.tenant = std::move(tenant);
    request.cache_salt = std::move(cache_salt);
    check(box.submit(key, std::move(request), chat != nullptr ? &chat->parsing : nullptr, stream));
}

nb::dict spec_to_python(const SpecStats& s) {
    nb::dict d;
    d["rounds"] = s.rounds;
    d["proposed"] = s.proposed;
    d["verified"] = s.verified;
    d["accepted"] = s.accepted;
    d["bonus"] = s.bonus;
    d["proposed_at"] = s.proposed_at;
    d["verified_at"] = s.verified_at;
    d["accepted_at"] = s.accepted_at;
    d["acceptance_length"] = s.acceptance_length();
    d["verify_rate"] = s.verify_rate();
    d["steps_with"] = s.steps_with;
    d["steps_without"] = s.steps_without;
    d["switched_off"] = s.switched_off;
    d["draft_us"] = s.draft_us;
    return d;
}

nb::dict stats_to_python(const EngineStats& s) {
    nb::dict d;
    d["running"] = s.running;
    d["waiting"] = s.waiting;
    d["total_blocks"] = s.total_blocks;
    d["free_blocks"] = s.free_blocks;
    d["steps"] = s.steps;
    d["prefill_tokens"] = s.prefill_tokens;
    d["decode_tokens"] = s.decode_tokens;
    d["output_tokens"] = s.output_tokens;
    d["zombie_tokens"] = s.zombie_tokens;
    d["prefix_query_tokens"] = s.prefix_query_tokens;
    d["prefix_hit_tokens"] = s.prefix_hit_tokens;
    d["replayed_tokens"] = s.replayed_tokens;
    d["skipped_rows"] = s.skipped_rows;
    d["uncut_prompts"] = s.uncut_prompts;
    d["saved_windows"] = s.saved_windows;
    d["restored_windows"] = s.restored_windows;
    d["preemptions"] = s.preemptions;
    d["prepared_images"] = s.prepared_images;
    d["encoded_images"] = s.encoded_images;
    d["image_crashes"] = s.image_crashes;
    d["image_bytes_held"] = s.image_bytes_held;
    d["finished_requests"] = s.finished_requests;
    d["plan_us"] = s.plan_us;
    d["wait_us"] = s.wait_us;
    d["commit_us"] = s.commit_us;
    d["step_us"] = s.step_us;
    d["sample_us"] = s.sample_us;
    d["spec"] = spec_to_python(s.spec);
    return d;
}

nb::dict model_info_to_python(const ModelInfo& m) {
    nb::dict d;
    d["vocab_size"] = m.vocab_size;
    d["num_hidden_layers"] = m.num_hidden_layers;
    d["max_position_embeddings"] = m.max_position_embeddings;
    d["sliding_window"] = m.sliding_window;
    d["takes_images"] = m.takes_images;
    d["bos_token_id"] = m.bos_token_id;
    d["eos_token_id"] = m.eos_token_id;
    return d;
}

}  // namespace

void bind_engine(nb::module_& module) {
    nb::list names;
    for (const Option& option : options()) names.append(option.name);
    module.attr("ENGINE_OPTIONS") = nb::tuple(names);
    module.def("unknown_env_flags", &unknown_env_flags);

    nb::class_<ChatPrompt>(module, "ChatPrompt")
        .def_ro("prompt_token_ids", &ChatPrompt::prompt_token_ids);

    nb::class_<EngineHandle>(module, "Engine")
        .def(
            "__init__",
            [](EngineHandle* self,
               const std::string& model,
               const std::string& demo,
               const nb::dict& given) {
                const EngineConfig config = make_config(model, demo, given);
                nb::gil_scoped_release release;
                new (self) EngineHandle(config);
            },
            "model"_a,
            "demo"_a,
            "options"_a)
        .def("close", &EngineHandle::close, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "wait_idle",
            [](const EngineHandle& e) { e.get()->wait_idle(); },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "prompt_ids",
            [](const EngineHandle& e, const std::string& text) {
                return prompt_ids(*e.get(), text);
            },
            "text"_a)
        .def(
            "render_chat",
            [](const EngineHandle& e,
               const std::string& body,
               const std::string& sampling,
               std::optional<int> effort) {
                return render_chat(e.get()->tokenizer(), body, sampling, effort);
            },
            "body"_a,
            "sampling"_a,
            "effort"_a.none())
        .def_prop_ro("tokenizer", [](const EngineHandle& e) { return e.get()->tokenizer(); })
        .def_prop_ro("config_json",
                     [](const EngineHandle& e) { return e.get()->config().to_json(); })
        .def_prop_ro(
            "model_info",
            [](const EngineHandle& e) { return model_info_to_python(e.get()->model_info()); })
        .def_prop_ro("description", [](const EngineHandle& e) { return e.get()->description(); })
        .def("stats", [](const EngineHandle& e) { return stats_to_python(e.get()->stats()); });

    nb::class_<Mailbox>(module, "Mailbox")
        .def(nb::init<std::shared_ptr<EngineHandle>, bool>(), "engine"_a, "notify"_a = false)
        .def("submit",
             &submit,
             "key"_a,
             "prompt_token_ids"_a,
             "sampling"_a,
             "chat"_a.none() = nb::none(),
             "stream"_a = false,
             "tenant"_a = "",
             "cache_salt"_a = "")
        .def("abort", &Mailbox::abort, "key"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("abort_all", &Mailbox::abort_all, nb::call_guard<nb::gil_scoped_release>())
        .def("wait", &wait, "timeout_s"_a)
        .def("fileno", &Mailbox::fileno)
        .def_prop_ro("num_open", &Mailbox::num_open)
        .def_prop_ro("num_tokens", &Mailbox::num_tokens);
}

}  // namespace deepinfer::python
