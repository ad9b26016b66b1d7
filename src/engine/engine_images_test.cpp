// Pictures through the engine, on the demonstration checkpoint: answers do not depend on chunks,
// neighbours, caches or preemption; wrong pictures end their own request alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

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

// Memory for one request's pictures at a time: each gives its own back when it ends, not when
// another one needs its slot.
TEST(EngineImages, TheBytesOfPicturesComeBackWithTheEnd) {
    EngineConfig c = demo();
    c.image_bytes = 250'000;
    const auto engine = make(c);
    for (const char* name : {"0001.png", "0002.png", "0003.png", "0001.png"}) {
        const auto done = [&] {
            std::mutex mutex;
            std::condition_variable changed;
            bool ended = false;
            RequestCallbacks callbacks;
            callbacks.on_output = [&](const Output& o) {
                const std::lock_guard<std::mutex> lock(mutex);
                ended = ended || o.finished();
                changed.notify_all();
                return true;
            };
            const Result<uint64_t> number =
                engine->submit(ask(*engine, {picture(name)}, "What do you see?"), callbacks);
            EXPECT_TRUE(number.ok()) << number.status().to_string();
            if (!number.ok()) return false;
            std::unique_lock<std::mutex> lock(mutex);
            const bool in_time =
                changed.wait_for(lock, std::chrono::minutes(2), [&] { return ended; });
            lock.unlock();
            if (!in_time) engine->abort(number.value());
            engine->wait_idle();
            return in_time;
        };
        ASSERT_TRUE(done()) << name << " waits for bytes that nobody uses";
    }
    // It was one at a time.
    EXPECT_EQ(engine->submit(ask(*engine, {picture("0001.png"), picture("0002.png")}, "Both?"), {})
                  .status()
                  .code(),
              StatusCode::kOutOfRange);
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

#if !defined(__SANITIZE_ADDRESS__)  // whose workers end themselves (multimodal_processor_test.cpp)
/// Children of this process's children: the picture workers, below their zygote.
std::vector<pid_t> picture_workers() {
    std::map<pid_t, pid_t> parent;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string name = entry.path().filename();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        std::ifstream f(entry.path() / "stat");
        std::string stat((std::istreambuf_iterator<char>(f)), {});
        const size_t close = stat.rfind(')');  // "pid (name) state parent …"
        if (close == std::string::npos) continue;
        std::istringstream rest(stat.substr(close + 1));
        char state = 0;
        pid_t of = 0;
        if (rest >> state >> of) parent[std::stoi(name)] = of;
    }
    std::vector<pid_t> workers;
    for (const auto& [pid, of] : parent) {
        const auto grand = parent.find(of);
        if (grand != parent.end() && grand->second == getpid()) workers.push_back(pid);
    }
    return workers;
}

// Workers die all the time while text and pictures are answered: text never notices, a picture's
// answer is the right one or an error of its own request, and the pool is whole afterwards.
TEST(EngineImages, KilledWorkersEndTheirOwnRequestsAlone) {
    EngineConfig c = demo();
    c.image_workers = 2;
    const auto engine = make(c);
    const auto text = [&](int i) { return ask(*engine, {}, "Count to " + std::to_string(i)); };
    const auto shown = [&](int i) {
        return ask(*engine, {picture("000" + std::to_string(1 + i) + ".png")}, "What do you see?");
    };
    constexpr int kTexts = 3, kPictures = 4, kRounds = 12;
    std::vector<Answer> want_text, want_picture;
    for (int i = 0; i < kTexts; ++i) want_text.push_back(run(*engine, text(i)));
    for (int i = 0; i < kPictures; ++i) want_picture.push_back(run(*engine, shown(i)));

    std::atomic<bool> stop{false};
    std::atomic<int> kills{0}, failed{0}, right{0};
    std::thread killer([&] {
        while (!stop) {
            for (const pid_t pid : picture_workers()) kills += kill(pid, SIGKILL) == 0;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    });
    const auto ask_pictures = [&] {
        for (int round = 0; round < kRounds; ++round) {
            for (int i = 0; i < kPictures; ++i) {
                const Result<Completion> done = engine->generate(shown(i));
                ASSERT_TRUE(done.ok()) << done.status().to_string();
                const CompletionChoice& choice = done->choices[0];
                if (choice.error.ok()) {
                    EXPECT_EQ(choice.token_ids, want_picture[static_cast<size_t>(i)].ids);
                    ++right;
                } else {
                    EXPECT_EQ(choice.error.code(), StatusCode::kInternal)
                        << choice.error.to_string();
                    EXPECT_THAT(choice.error.message(), HasSubstr("picture 1"));
                    ++failed;
                }
            }
        }
    };
    std::thread one(ask_pictures), two(ask_pictures);
    for (int i = 0; i < 2 * kRounds; ++i) {
        EXPECT_TRUE(run(*engine, text(i % kTexts)) == want_text[static_cast<size_t>(i % kTexts)]);
    }
    one.join();
    two.join();
    stop = true;
    killer.join();
    EXPECT_GT(kills, 0);
    EXPECT_EQ(right + failed, 2 * kRounds * kPictures);
    EXPECT_TRUE(run(*engine, shown(0)) == want_picture[0]);
    engine->wait_idle();
    // The step that noticed the end lets go of the pictures.
    for (int i = 0; i < 500 && engine->stats().image_bytes_held > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(engine->stats().image_bytes_held, 0);
}
#endif

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
