// Pictures through the engine, on the demonstration checkpoint: answers do not depend on chunks,
// neighbours, caches or preemption; wrong pictures end their own request alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "deepinfer/engine.h"
#include "deepinfer/recipe.h"
#include "engine/sequence_images.h"
#include "support/golden_file.h"

namespace deepinfer {
namespace {

using testing::checkpoint_path;
using ::testing::HasSubstr;

EngineConfig demo() {
    static const bool registered = [] {
        register_ref_backends();
        register_cpu_backend();
        return true;
    }();
    (void)registered;
    EngineConfig c;
    c.model_dir = checkpoint_path("demo");
    c.max_num_seqs = 8;
    c.max_num_batched_tokens = 64;
    c.max_model_len = 512;
    c.block_tokens = 16;
    c.threads = 1;
    return c;
}

std::string eval_picture(const std::string& name) {
    const std::string root = checkpoint_path("demo") + "/../../eval/demo/images/";
    std::ifstream f(root + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(f), {});
}

ImageInput picture(const std::string& name) {
    ImageInput input;
    input.encoded = eval_picture(name);
    return input;
}

/// A user's turn: pictures, then the text.
Request ask(Engine& engine, const std::vector<ImageInput>& images, const std::string& text) {
    recipe::Conversation c;
    c.messages.push_back(recipe::Message::user(text));
    recipe::ContentBlock block;
    block.image.emplace();
    c.messages[0].content.insert(c.messages[0].content.begin(), images.size(), block);
    c.thinking = false;
    Request r;
    r.prompt_token_ids = recipe::prompt_ids(engine.tokenizer(), recipe::encode_prompt(c)).value();
    r.images = images;
    r.sampling.temperature = 0;
    r.sampling.max_tokens = 12;
    r.sampling.logprobs = 0;
    return r;
}

struct Answer {
    std::vector<int32_t> ids;
    std::vector<double> logprobs;
    std::string text;
    Usage usage;
    bool operator==(const Answer& o) const { return ids == o.ids && logprobs == o.logprobs; }
};

Answer run(Engine& engine, Request request) {
    Result<Completion> done = engine.generate(std::move(request));
    Answer a;
    if (!done.ok()) {
        ADD_FAILURE() << done.status().to_string();
        return a;
    }
    const CompletionChoice& choice = done->choices[0];
    EXPECT_TRUE(choice.error.ok()) << choice.error.to_string();
    a.ids = choice.token_ids;
    for (const TokenLogprobs& l : choice.logprobs) a.logprobs.push_back(l.logprob);
    a.text = choice.text;
    a.usage = done->usage;
    return a;
}

std::unique_ptr<Engine> make(const EngineConfig& config) {
    Result<std::unique_ptr<Engine>> e = Engine::create(config);
    if (!e.ok()) {
        ADD_FAILURE() << e.status().to_string();
        std::abort();
    }
    return std::move(e).value();
}

// The first two questions of eval/demo/image.jsonl whose answers the checkpoint's report calls
// right.
TEST(EngineImages, TheAnswerIsAboutThePicture) {
    const auto engine = make(demo());
    EXPECT_TRUE(engine->model_info().takes_images);
    const Answer a =
        run(*engine, ask(*engine, {picture("0003.png")}, "What is written in the picture?"));
    EXPECT_THAT(a.text, HasSubstr("It says"));
    const Answer other =
        run(*engine, ask(*engine, {picture("0001.png")}, "What is written in the picture?"));
    EXPECT_NE(a.ids, other.ids);
}

TEST(EngineImages, ChunksCachesAndNeighboursDoNotMatter) {
    const std::vector<ImageInput> two = {picture("0001.png"), picture("0004.png")};
    const std::string text = "What do you see in the first picture and what in the second?";
    Answer want;
    {
        EngineConfig plain = demo();
        plain.async_scheduling = false;
        plain.prefix_caching = false;
        plain.max_num_batched_tokens = 256;
        plain.image_processes = false;
        const auto engine = make(plain);
        want = run(*engine, ask(*engine, two, text));
        ASSERT_FALSE(want.ids.empty());
    }
    for (const int64_t rows : {1, 33}) {
        EngineConfig c = demo();
        c.max_num_seqs = 1;
        c.max_num_batched_tokens = rows;
        c.encoder_patches = 50;
        c.max_logit_rows = 1;
        const auto engine = make(c);
        EXPECT_TRUE(run(*engine, ask(*engine, two, text)) == want) << rows << " rows a step";
    }
    for (const int nextn : {0, 3}) {
        EngineConfig c = demo();
        c.nextn = nextn;
        c.encoder_patches = 10;
        const auto engine = make(c);
        std::mutex mutex;
        std::vector<std::vector<int32_t>> streams(6);
        for (size_t i = 0; i < streams.size(); ++i) {
            Request r =
                i % 2 == 0 ? ask(*engine, two, text) : ask(*engine, {}, "Name three fruits.");
            RequestCallbacks callbacks;
            callbacks.on_output = [&, i](const Output& o) {
                const std::lock_guard<std::mutex> lock(mutex);
                streams[i].insert(streams[i].end(), o.token_ids.begin(), o.token_ids.end());
                return true;
            };
            ASSERT_TRUE(engine->submit(std::move(r), callbacks).ok());
        }
        engine->wait_idle();
        for (size_t i = 0; i < streams.size(); i += 2) EXPECT_EQ(streams[i], want.ids) << nextn;
    }
}

TEST(EngineImages, ThePromptGrowsByTheSpansAndEqualPicturesAreEncodedOnce) {
    const auto engine = make(demo());
    const Answer none = run(*engine, ask(*engine, {}, "What do you see?"));
    const ImageInput a = picture("0001.png");
    const Answer twice = run(*engine, ask(*engine, {a, a}, "What do you see?"));
    EXPECT_EQ(engine->stats().encoded_images, 1);
    EXPECT_EQ(engine->stats().prepared_images, 2);
    // Between two pictures, and between them and the text, stands a blank line.
    EXPECT_GT(twice.usage.prompt_tokens, none.usage.prompt_tokens + 2 * 4);
    EXPECT_TRUE(run(*engine, ask(*engine, {a, a}, "What do you see?")) == twice);
    EXPECT_EQ(engine->stats().encoded_images, 1);
}

TEST(EngineImages, PrefixesAreSharedByWhatPicturesShow) {
    EngineConfig c = demo();
    c.max_model_len = 2048;
    c.max_num_batched_tokens = 256;
    const auto engine = make(c);
    // Long enough that a hit leaves something to skip after the windows are rebuilt.
    const auto ask_long = [&](const std::string& name) {
        Request r = ask(*engine, {picture(name)}, "What do you see?");
        const std::vector<int32_t> filler = engine->tokenizer().encode(" and more");
        auto& ids = r.prompt_token_ids;
        while (ids.size() < 1700) ids.insert(ids.end() - 4, filler.begin(), filler.end());
        r.sampling.max_tokens = 4;
        return run(*engine, r);
    };
    const Answer first = ask_long("0000.png");
    const Answer again = ask_long("0000.png");
    EXPECT_TRUE(again == first);
    EXPECT_GT(again.usage.cached_tokens, 1000);
    EXPECT_EQ(engine->stats().encoded_images, 1) << "neither the tower nor the prefix ran again";
    EXPECT_EQ(ask_long("0001.png").usage.cached_tokens, 0) << "another picture, another prefix";
    EXPECT_EQ(engine->stats().encoded_images, 2);
}

TEST(EngineImages, SamplesOfOnePromptShareItsPictures) {
    const auto engine = make(demo());
    Request r = ask(*engine, {picture("0001.png")}, "What do you see?");
    const Answer want = run(*engine, r);
    r.sampling.n = 3;
    Result<Completion> done = engine->generate(std::move(r));
    ASSERT_TRUE(done.ok());
    for (const CompletionChoice& c : done->choices) EXPECT_EQ(c.token_ids, want.ids);
    EXPECT_EQ(engine->stats().encoded_images, 1);
}

TEST(EngineImages, WhatIsWrongIsSaidAtSubmission) {
    const auto engine = make(demo());
    const auto refusal = [&](Request r) {
        const Result<uint64_t> n = engine->submit(std::move(r), {});
        return n.ok() ? Status() : n.status();
    };
    Request missing = ask(*engine, {picture("0001.png")}, "x");
    missing.images.clear();
    EXPECT_THAT(refusal(missing).message(), HasSubstr("the request has no images"));
    Request more = ask(*engine, {picture("0001.png")}, "x");
    more.images.push_back(picture("0001.png"));
    EXPECT_THAT(refusal(more).message(), HasSubstr("holds 1 image tokens"));
    ImageInput text;
    text.encoded = "no picture";
    EXPECT_THAT(refusal(ask(*engine, {picture("0001.png"), text}, "x")).message(),
                HasSubstr("images[1]: unsupported media type"));
    EXPECT_EQ(refusal(ask(*engine, {text}, "x")).code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refusal(ask(*engine, {ImageInput()}, "x")).message(), HasSubstr("no bytes"));
    ImageInput wide;
    wide.width = 8193;
    wide.height = 1;
    wide.rgb.resize(8193 * 3);
    EXPECT_EQ(refusal(ask(*engine, {wide}, "x")).code(), StatusCode::kOutOfRange);
    wide.width = 8192;
    wide.rgb.resize(8192 * 3);
    EXPECT_TRUE(refusal(ask(*engine, {wide}, "x")).ok());
    std::vector<ImageInput> many(30, picture("0001.png"));  // 30 spans do not fit into 512 tokens
    EXPECT_EQ(refusal(ask(*engine, many, "x")).code(), StatusCode::kOutOfRange);
    engine->wait_idle();
}

TEST(EngineImages, ABrokenPictureEndsItsOwnRequestAlone) {
    for (const bool processes : {true, false}) {
        EngineConfig c = demo();
        c.image_processes = processes;
        const auto engine = make(c);
        ImageInput broken = picture("0001.png");
        broken.encoded.resize(broken.encoded.size() / 2);
        const Answer want = run(*engine, ask(*engine, {picture("0004.png")}, "What do you see?"));
        Result<Completion> done =
            engine->generate(ask(*engine, {picture("0004.png"), broken}, "What do you see?"));
        ASSERT_TRUE(done.ok());
        EXPECT_EQ(done->choices[0].finish_reason, FinishReason::kError);
        EXPECT_EQ(done->choices[0].error.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(done->choices[0].error.message(), HasSubstr("picture 2: PNG"));
        EXPECT_TRUE(run(*engine, ask(*engine, {picture("0004.png")}, "What do you see?")) == want);
        engine->wait_idle();
        EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);
    }
}

TEST(EngineImages, AbortWhilePicturesAreDecodedEndsTheRequest) {
    const auto engine = make(demo());
    ImageInput large;
    large.width = large.height = 4000;
    large.rgb.assign(static_cast<size_t>(4000 * 4000 * 3), 90);
    std::mutex mutex;
    std::vector<FinishReason> ends;
    RequestCallbacks callbacks;
    callbacks.on_output = [&](const Output& o) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (o.finished()) ends.push_back(o.finish_reason);
        return true;
    };
    for (int i = 0; i < 3; ++i) {
        Request r = ask(*engine, {large}, "x");
        const Result<uint64_t> number = engine->submit(std::move(r), callbacks);
        ASSERT_TRUE(number.ok());
        engine->abort(number.value());
    }
    engine->wait_idle();
    EXPECT_EQ(ends.size(), 3u);
    for (const FinishReason e : ends) EXPECT_EQ(e, FinishReason::kAbort);
}

TEST(SequenceImages, AtFindsTheSpanOfAPosition) {
    SequenceImages s;
    s.spans.resize(3);
    s.spans[0].begin = 2, s.spans[0].end = 6;
    s.spans[1].begin = 6, s.spans[1].end = 10;  // adjacent
    s.spans[2].begin = 12, s.spans[2].end = 13;
    for (int64_t p = 0; p < 16; ++p) {
        const SequenceImage* want = nullptr;
        for (const SequenceImage& i : s.spans) {
            if (p >= i.begin && p < i.end) want = &i;
        }
        EXPECT_EQ(s.at(p), want) << p;
    }
    EXPECT_EQ(SequenceImages().at(0), nullptr);
}

}  // namespace
}  // namespace deepinfer
