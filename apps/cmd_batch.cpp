// batch: a file of requests in, a file of answers out; resumable. Lines of ours and of OpenAI's
// batch form.
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "deepinfer/batch.h"
#include "deepinfer/engine.h"
#include "deepinfer/json_guard.h"
#include "deepinfer/recipe_constraint.h"

namespace deepinfer::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
    CommonOptions common;
    std::string in, out;
};

Status invalid(const std::string& what) {
    return {StatusCode::kInvalidArgument, what};
}

/// The recipe's parser behind the batch runner's interface.
class RecipeOutput final : public OutputParser {
  public:
    explicit RecipeOutput(const recipe::ParsingOptions& options) : parser_(options) {}

    bool feed(const std::string& text) override {
        parser_.push(text, &deltas_);
        return !parser_.finished();
    }
    ParsedOutput finish(FinishReason reason) override {
        parser_.finish(reason == FinishReason::kLength ? recipe::FinishReason::kLength
                                                       : recipe::FinishReason::kStop,
                       &deltas_);
        ParsedOutput out;
        ordered_json calls = ordered_json::array();
        for (const recipe::Delta& d : deltas_) {
            switch (d.kind) {
                case recipe::Delta::Kind::kReasoning:
                    out.reasoning += d.text;
                    break;
                case recipe::Delta::Kind::kContent:
                    out.text += d.text;
                    break;
                case recipe::Delta::Kind::kCall:
                    calls.push_back({{"name", d.text}, {"arguments", ""}});
                    break;
                case recipe::Delta::Kind::kArguments: {
                    std::string& arguments = calls.at(static_cast<size_t>(d.call_idx))["arguments"]
                                                 .get_ref<std::string&>();
                    arguments += d.text;
                    break;
                }
            }
        }
        const bool ended = reason == FinishReason::kStop || reason == FinishReason::kLength;
        if (!calls.empty())
            out.extra_json = "\"tool_calls\":" +
                             calls.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
        if (ended) out.finish_reason = recipe::finish_reason_name(parser_.finish_reason());
        return out;
    }

  private:
    recipe::StreamParser parser_;
    std::vector<recipe::Delta> deltas_;
};

Result<std::vector<int32_t>> prompt_ids(const Tokenizer& tokenizer,
                                        const recipe::Conversation& conversation) {
    return recipe::prompt_ids(tokenizer, recipe::encode_prompt(conversation));
}

/// The constraint that the conversation implies (strict tools, a response format), beside the
/// line's own so_args.
Status add_constraint(const recipe::ConvertedRequest& request, SamplingParams* sampling) {
    Result<StructuredOutputArgs> implied = recipe::output_constraint(request);
    if (!implied.ok()) return implied.status();
    if (implied->empty()) return {};
    if (!sampling->so_args.empty())
        return invalid("so_args together with strict tools: only one constraint at a time");
    sampling->so_args = std::move(implied).value();
    return {};
}

/// messages, tools, thinking, reasoning_effort of a line of ours → prompt.
Result<RenderedPrompt> render(const Tokenizer& tokenizer,
                              const std::string& text,
                              SamplingParams* sampling) {
    ordered_json body = ordered_json::parse(text, nullptr, false);
    if (!body.is_object()) return invalid("the conversation is no JSON object");
    body["model"] = "deepseek-flash";
    recipe::ConvertResult r =
        recipe::convert_request(recipe::Protocol::kChatCompletions, body.dump(), {});
    if (!r.request) return invalid(r.error.message);
    Result<std::vector<int32_t>> ids = prompt_ids(tokenizer, r.request->conversation);
    if (!ids.ok()) return ids.status();
    recipe::ParsingOptions parsing = r.request->parsing;
    parsing.stop = std::move(sampling->stop);  // the parser searches them in the answer alone
    sampling->stop.clear();
    DI_RETURN_IF_ERROR(add_constraint(*r.request, sampling));
    Result<std::vector<ImageInput>> images =
        images_of(recipe::prompt_images(r.request->conversation));
    if (!images.ok()) return images.status();
    RenderedPrompt out;
    out.prompt_token_ids = std::move(ids).value();
    out.images = std::move(images).value();
    out.make_parser = [parsing] { return std::make_unique<RecipeOutput>(parsing); };
    return out;
}

// ---- OpenAI's batch form
// -------------------------------------------------------------------------------

ordered_json openai_line(const std::string& id, int status, ordered_json body) {
    return {{"id", "batch_req_" + id},
            {"custom_id", id},
            {"response",
             {{"status_code", status}, {"request_id", "req_" + id}, {"body", std::move(body)}}},
            {"error", nullptr}};
}

std::string dump(const ordered_json& j) {
    return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Result<SamplingParams> to_params(const recipe::ConvertedRequest& request, int64_t vocab_size) {
    const recipe::RequestSampling& s = request.sampling;
    SamplingParams p;
    p.temperature = s.temperature;
    p.top_p = s.top_p;
    p.top_k = s.top_k;
    p.min_p = s.min_p;
    p.presence_penalty = s.presence_penalty;
    p.frequency_penalty = s.frequency_penalty;
    p.repetition_penalty = s.repetition_penalty;
    p.min_tokens = s.min_tokens;
    p.max_tokens = s.max_tokens;
    p.ignore_eos = s.ignore_eos;
    p.n = s.n;
    p.seq_seed = s.seed;
    // Ids are checked while they are still 64 bits wide: narrowed first, 2^32 + 3 would pass as
    // token 3.
    const auto check = [vocab_size](const char* field, int64_t id) {
        if (id >= 0 && id < vocab_size) return Status();
        return invalid(std::string(field) + " names id " + std::to_string(id) +
                       ", the vocabulary has " + std::to_string(vocab_size));
    };
    for (int64_t id : s.stop_token_ids) {
        DI_RETURN_IF_ERROR(check("stop_token_ids", id));
        p.stop_token_ids.push_back(static_cast<int32_t>(id));
    }
    for (const auto& entry : s.logit_bias) {
        DI_RETURN_IF_ERROR(check("logit_bias", entry.first));
        p.logit_bias.emplace_back(static_cast<int32_t>(entry.first), entry.second);
    }
    return p;
}

Result<BatchJob> read_openai(Engine& engine, const std::string& line) {
    const ordered_json j = ordered_json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("custom_id") || !j["custom_id"].is_string())
        return invalid("custom_id must be a string");
    if (const auto twice = repeated_json_key(line))
        return invalid("the member '" + *twice + "' stands there twice");
    const std::string method =
        j.value("method", ordered_json("POST")).is_string() ? j.value("method", "POST") : "";
    const std::string url =
        j.contains("url") && j["url"].is_string() ? j["url"].get<std::string>() : "";
    if (method != "POST" || url != "/v1/chat/completions") {
        return Status(
            StatusCode::kUnimplemented,
            "batch lines are answered for POST /v1/chat/completions, found " + method + " " + url);
    }
    if (!j.contains("body") || !j["body"].is_object()) return invalid("body must be an object");
    const recipe::ConvertResult converted =
        recipe::convert_request(recipe::Protocol::kChatCompletions, j["body"].dump(), {});
    if (!converted.request) return invalid(converted.error.message);
    const recipe::ConvertedRequest request = *converted.request;
    if (request.sampling.logprobs)
        return Status(StatusCode::kUnimplemented,
                      "logprobs in the OpenAI batch form are not in this version; lines of our own "
                      "form have them");
    Result<std::vector<int32_t>> ids = prompt_ids(engine.tokenizer(), request.conversation);
    if (!ids.ok()) return ids.status();
    Result<std::vector<ImageInput>> images = images_of(recipe::prompt_images(request.conversation));
    if (!images.ok()) return images.status();
    Result<SamplingParams> params = to_params(request, engine.model_info().vocab_size);
    if (!params.ok()) return params.status();
    DI_RETURN_IF_ERROR(add_constraint(request, &params.value()));
    BatchJob job;
    job.id = j["custom_id"].get<std::string>();
    job.request.prompt_token_ids = std::move(ids).value();
    job.request.images = std::move(images).value();
    job.request.sampling = std::move(params).value();
    const recipe::ParsingOptions parsing = request.parsing;
    job.make_parser = [parsing] { return std::make_unique<RecipeOutput>(parsing); };
    const Tokenizer tokenizer = engine.tokenizer();
    job.format = [id = job.id, request, tokenizer](const Completion& done,
                                                   const std::vector<ParsedOutput>&) {
        ordered_json body;
        ordered_json choices = ordered_json::array();
        for (size_t i = 0; i < done.choices.size(); ++i) {
            const CompletionChoice& choice = done.choices[i];
            recipe::ResponseContext context;
            context.response_id = "chatcmpl-" + id;
            context.model = request.model;
            context.created = static_cast<int64_t>(std::time(nullptr));
            context.prompt_tokens = done.usage.prompt_tokens;
            context.cached_tokens = done.usage.cached_tokens;
            context.choice_idx = static_cast<int>(i);
            context.constraint_notes = done.constraint_notes;
            const std::unique_ptr<recipe::Responder> responder =
                recipe::make_responder(request, context);
            responder->start();
            // Token by token, so that reasoning tokens are counted exactly.
            StreamDecoder decoder(tokenizer);
            for (int32_t token : choice.token_ids) {
                const bool end = token == tokenizer.eos_id();
                Result<std::string> piece =
                    end ? Result<std::string>(std::string()) : decoder.push(token);
                responder->push(piece.ok() ? piece.value() : std::string(), 1);
            }
            responder->push(decoder.finish(), 0);
            responder->finish(choice.finish_reason == FinishReason::kLength
                                  ? recipe::FinishReason::kLength
                                  : recipe::FinishReason::kStop);
            body = ordered_json::parse(responder->response());
            choices.push_back(body["choices"][0]);
        }
        body["choices"] = choices;
        body["usage"]["completion_tokens"] = done.usage.completion_tokens;
        body["usage"]["total_tokens"] = done.usage.prompt_tokens + done.usage.completion_tokens;
        return dump(openai_line(id, 200, std::move(body)));
    };
    return job;
}

std::string openai_error(const std::string& id, const Status& error) {
    const ordered_json body{{"error",
                             {{"message", error.message()},
                              {"type", "invalid_request_error"},
                              {"code", status_code_name(error.code())}}}};
    return dump(openai_line(id, error.code() == StatusCode::kInternal ? 500 : 400, body));
}

// ---- run
// -----------------------------------------------------------------------------------------------

std::string progress_text(const BatchProgress& p) {
    const double rate =
        p.elapsed_s > 0 ? static_cast<double>(p.completion_tokens) / p.elapsed_s : 0;
    const auto answered = static_cast<double>(p.lines_done - p.lines_resumed);
    const double left =
        answered > 0 ? p.elapsed_s / answered * static_cast<double>(p.lines_total - p.lines_done)
                     : 0;
    char text[160];
    std::snprintf(text,
                  sizeof text,
                  "%lld of %lld lines, %lld failed, %.0f tokens/s, %d:%02d left",
                  static_cast<long long>(p.lines_done),
                  static_cast<long long>(p.lines_total),
                  static_cast<long long>(p.lines_failed),
                  rate,
                  static_cast<int>(left) / 60,
                  static_cast<int>(left) % 60);
    return text;
}

int run(Options& o) {
    Result<std::string> dir = resolve_model(o.common);
    if (!dir.ok()) return fail(dir.status());
    o.common.engine.model_dir = dir.value();
    install_interrupt_handler();
    Result<std::unique_ptr<Engine>> created = Engine::create(o.common.engine);
    if (!created.ok()) return fail(created.status());
    Engine& engine = *created.value();
    ProgressLine line(stderr_is_terminal() || o.common.progress);
    BatchOptions options;
    options.render = [&](const std::string& text, SamplingParams* sampling) {
        return render(engine.tokenizer(), text, sampling);
    };
    options.readers.push_back({"custom_id",
                               [&](const std::string& text) { return read_openai(engine, text); },
                               openai_error});
    options.on_progress = [&](const BatchProgress& p) { line.show(progress_text(p)); };
    options.cancel = &interrupted;
    Result<BatchProgress> done = run_batch(engine, o.in, o.out, options);
    line.clear();
    if (!done.ok()) return fail(done.status());
    const BatchProgress& p = done.value();
    if (o.common.json) {
        std::printf("%s\n",
                    dump({{"lines", p.lines_total},
                          {"done", p.lines_done},
                          {"resumed", p.lines_resumed},
                          {"failed", p.lines_failed},
                          {"prompt_tokens", p.prompt_tokens},
                          {"completion_tokens", p.completion_tokens},
                          {"seconds", p.elapsed_s}})
                        .c_str());
    } else if (stderr_is_terminal() || o.common.progress) {
        std::fprintf(stderr,
                     "%lld lines (%lld from an earlier run, %lld failed), %lld prompt and %lld "
                     "generated tokens in %.1f s\n",
                     static_cast<long long>(p.lines_done),
                     static_cast<long long>(p.lines_resumed),
                     static_cast<long long>(p.lines_failed),
                     static_cast<long long>(p.prompt_tokens),
                     static_cast<long long>(p.completion_tokens),
                     p.elapsed_s);
    }
    return kExitOk;
}

}  // namespace

Run add_batch(CLI::App& root) {
    auto o = std::make_shared<Options>();
    CLI::App* app =
        root.add_subcommand("batch", "Answers a JSON Lines file of requests; resumable");
    app->add_option("in",
                    o->in,
                    "Requests: messages, prompt or prompt_token_ids a line, or OpenAI batch lines")
        ->required();
    app->add_option(
           "out",
           o->out,
           "Answers, appended in order of completion; started again, finished lines are kept")
        ->required();
    add_model_options(*app, o->common);
    add_engine_options(*app, o->common);
    return [o] { return run(*o); };
}

}  // namespace deepinfer::cli
