// Answers one question through the C++ library.   usage: offline_inference [MODEL_DIR [QUESTION]]
#include <cstdio>
#include <string>

#include "backends/cpu/cpu_backend.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/engine.h"
#include "deepinfer/recipe.h"

using namespace deepinfer;

int main(int argc, char** argv) {
    register_cpu_backend();  // a program links the backends it wants; the engine finds them by name
    const auto fail = [](const Status& s) {
        std::fprintf(stderr, "%s\n", s.message().c_str());
        return 1;
    };

    Result<EngineConfig> config = EngineConfig::from_environment();  // DEEPINFER_* count here too
    if (!config.ok()) return fail(config.status());
    Result<std::string> dir =  // "": the demonstration checkpoint
        resolve_model_dir(argc > 1 ? argv[1] : config->model_dir, "");
    if (!dir.ok()) return fail(dir.status());
    config->model_dir = dir.value();
    Result<std::unique_ptr<Engine>> engine = Engine::create(config.value());
    if (!engine.ok()) return fail(engine.status());

    // The recipe renders the conversation; the parser takes the answer apart again.
    recipe::Conversation conversation;
    conversation.thinking = false;
    conversation.messages.push_back(
        recipe::Message::user(argc > 2 ? argv[2] : "What is the capital of France?"));
    Request request;
    Result<std::vector<int32_t>> ids =
        recipe::prompt_ids(engine.value()->tokenizer(), recipe::encode_prompt(conversation));
    if (!ids.ok()) return fail(ids.status());
    request.prompt_token_ids = std::move(ids).value();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 64;

    recipe::StreamParser parser(recipe::parsing_options(conversation));
    const auto print = [](const std::vector<recipe::Delta>& deltas) {
        for (const recipe::Delta& d : deltas) std::fputs(d.text.c_str(), stdout);
        std::fflush(stdout);
    };
    RequestCallbacks callbacks;
    callbacks.on_output = [&](const Output& output) {
        std::vector<recipe::Delta> deltas;
        parser.push(output.text, &deltas);
        print(deltas);
        return !parser.finished();
    };
    Result<Completion> done = engine.value()->generate(std::move(request), callbacks);
    if (!done.ok()) return fail(done.status());
    const CompletionChoice& answer = done->choices[0];
    if (!answer.error.ok()) return fail(answer.error);
    std::vector<recipe::Delta> rest;
    parser.finish(answer.finish_reason == FinishReason::kLength ? recipe::FinishReason::kLength
                                                                : recipe::FinishReason::kStop,
                  &rest);
    print(rest);
    std::printf("\n[%s, %lld tokens]\n",
                finish_reason_name(answer.finish_reason),
                static_cast<long long>(done->usage.completion_tokens));
    return 0;
}
