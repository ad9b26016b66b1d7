// generate: one user message (or raw text) → answer, streamed.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "command.h"
#include "deepinfer/engine.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
    CommonOptions common;
    SamplingOptions sampling;
    std::string text, system;
    bool raw = false;
    std::vector<std::string> images;
};

recipe::FinishReason to_recipe(FinishReason r) {
    return r == FinishReason::kLength ? recipe::FinishReason::kLength : recipe::FinishReason::kStop;
}

ordered_json choice_json(const CompletionChoice& choice,
                         const std::string& content,
                         const std::string& reasoning) {
    ordered_json j{{"text", content},
                   {"reasoning", reasoning},
                   {"token_ids", choice.token_ids},
                   {"finish_reason", finish_reason_name(choice.finish_reason)},
                   {"seed", choice.seq_seed}};
    if (!choice.logprobs.empty()) {
        ordered_json list = ordered_json::array();
        for (const TokenLogprobs& t : choice.logprobs) {
            ordered_json top = ordered_json::array();
            for (const auto& [id, value] : t.top)
                top.push_back({{"token_id", id}, {"logprob", value}});
            list.push_back({{"token_id", t.token_id}, {"logprob", t.logprob}, {"top", top}});
        }
        j["logprobs"] = list;
    }
    return j;
}

int run(Options& o) {
    if (o.raw && !o.images.empty()) {
        return fail({StatusCode::kInvalidArgument,
                     "--image with --raw: a raw text has no place for pictures"});
    }
    std::vector<ImageInput> images;
    for (const std::string& path : o.images) {
        Result<ImageInput> image = read_image_file(path);
        if (!image.ok()) return fail(image.status());
        images.push_back(std::move(image).value());
    }
    if (o.text.empty() || o.text == "-")
        o.text.assign(std::istreambuf_iterator<char>(std::cin), {});
    recipe::Conversation conversation;
    if (!o.system.empty()) conversation.messages.push_back(recipe::Message::system(o.system));
    conversation.messages.push_back(user_message(o.text, images.size()));
    if (Status s = o.sampling.apply(&conversation); !s.ok()) return fail(s);

    if (Status s = choose_model(&o.common); !s.ok()) return fail(s);
    if (!o.common.engine.synthetic.empty()) {
        if (!o.system.empty())
            return fail({StatusCode::kInvalidArgument,
                         "--system: a generated model has no text, its prompt is token ids"});
        o.raw = true;
    }
    const bool talk = stderr_is_terminal() || o.common.progress;
    install_interrupt_handler();
    Result<std::unique_ptr<Engine>> created = Engine::create(o.common.engine);
    if (!created.ok()) return fail(created.status());
    Engine& engine = *created.value();
    if (talk && o.common.progress) std::fprintf(stderr, "%s\n", engine.description().c_str());

    Request request;
    request.sampling = o.sampling.params;
    recipe::ParsingOptions parsing;
    if (o.raw) {
        request.prompt_token_ids = engine.tokenizer().encode(o.text);
        const int32_t bos = engine.model_info().bos_token_id;
        if (request.prompt_token_ids.empty() || request.prompt_token_ids[0] != bos)
            request.prompt_token_ids.insert(request.prompt_token_ids.begin(), bos);
        parsing.start = recipe::ParserStart::kContentContinued;
        parsing.tools = false;
        parsing.compat = true;
    } else {
        Result<std::vector<int32_t>> ids =
            recipe::prompt_ids(engine.tokenizer(), recipe::encode_prompt(conversation));
        if (!ids.ok()) return fail(ids.status());
        request.prompt_token_ids = std::move(ids).value();
        request.images = std::move(images);
        parsing = recipe::parsing_options(conversation);
    }
    const size_t prompt_tokens = request.prompt_token_ids.size();
    const int32_t eos = engine.model_info().eos_token_id;
    const std::string eos_text(
        engine.tokenizer().contains(eos) ? engine.tokenizer().token_bytes(eos) : "");
    if (o.raw) std::fflush(stdout);

    // With n > 1 the answers would interleave: they are printed one after another at the end.
    const bool stream = !o.common.json && o.sampling.params.n == 1;
    ProgressLine line(talk && prompt_tokens > 256);
    AnswerPrinter printer(parsing, !stream);
    RequestCallbacks callbacks;
    callbacks.on_prefill = [&](const PrefillProgress& p) {
        if (p.rows_done < p.rows_total)
            line.show("reading the prompt: " + std::to_string(p.rows_done) + " of " +
                      std::to_string(p.rows_total) + " tokens");
        else
            line.clear();
    };
    if (stream) {
        callbacks.on_output = [&](const Output& out) {
            line.clear();
            return printer.push(out.text);
        };
    }
    Result<Completion> done = engine.generate(std::move(request), callbacks, &interrupted);
    line.clear();
    if (!done.ok()) return fail(done.status());

    ordered_json choices = ordered_json::array();
    for (const CompletionChoice& choice : done->choices) {
        if (stream) {
            printer.finish(to_recipe(choice.finish_reason));
            continue;
        }
        AnswerPrinter whole(parsing, o.common.json);
        whole.push(choice.text);
        whole.finish(to_recipe(choice.finish_reason));
        choices.push_back(choice_json(choice, whole.content(), whole.reasoning()));
    }
    const Timing& t = done->timing;
    const Usage& u = done->usage;
    const double decode_s = (t.total_ms - t.first_token_ms) / 1000.0,
                 prefill_s = (t.first_token_ms - t.queue_ms) / 1000.0;
    const double decode_rate = decode_s > 0 && u.completion_tokens > 1
                                   ? static_cast<double>(u.completion_tokens - 1) / decode_s
                                   : 0;
    const double prefill_rate =
        prefill_s > 0 ? static_cast<double>(u.prompt_tokens - u.cached_tokens) / prefill_s : 0;
    if (o.common.json) {
        ordered_json j = choices.at(0);
        if (choices.size() > 1) j["choices"] = choices;
        j["usage"] = {{"prompt_tokens", u.prompt_tokens},
                      {"cached_tokens", u.cached_tokens},
                      {"completion_tokens", u.completion_tokens}};
        j["timing"] = {{"queue_ms", t.queue_ms},
                       {"first_token_ms", t.first_token_ms},
                       {"total_ms", t.total_ms},
                       {"prefill_tokens_per_s", prefill_rate},
                       {"decode_tokens_per_s", decode_rate}};
        if (!done->constraint_notes.empty()) j["constraint_notes"] = done->constraint_notes;
        std::printf("%s\n", j.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
    } else if (talk) {
        std::fprintf(stderr,
                     "[%lld prompt + %lld generated tokens; first token %.2f s, prefill %.0f "
                     "tokens/s, decode %.1f tokens/s; %s]\n",
                     static_cast<long long>(u.prompt_tokens),
                     static_cast<long long>(u.completion_tokens),
                     t.first_token_ms / 1000.0,
                     prefill_rate,
                     decode_rate,
                     finish_reason_name(done->choices[0].finish_reason));
    }
    if (!o.common.json) show_constraint_notes(done->constraint_notes);
    for (const CompletionChoice& choice : done->choices) {
        if (choice.finish_reason == FinishReason::kError) return fail(choice.error);
        if (choice.finish_reason == FinishReason::kEmptyMask && choice.nan_logits)
            return fail({StatusCode::kInternal, "the logits are not finite: the weights hold NaN"});
        if (choice.finish_reason == FinishReason::kEmptyMask)
            return fail({StatusCode::kInternal, "no token was allowed at a position (empty mask)"});
    }
    return interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace

Run add_generate(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app = root.add_subcommand("generate", "Answers one message and streams the text");
    app->add_option("text",
                    o->text,
                    "The message; - or nothing reads standard input (with --synthetic: token ids)");
    app->add_option("--system", o->system, "System message before it");
    app->add_flag("--raw", o->raw, "Continue the text itself, without a conversation around it");
    app->add_option("--image",
                    o->images,
                    "Picture shown before the message: JPEG, PNG, GIF or WebP (repeatable)")
        ->allow_extra_args(false);
    add_model_options(*app, o->common);
    add_engine_options(*app, o->common);
    add_sampling_options(*app, o->sampling);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
