#include "sampler/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "sampler/sampler_oracle.h"

namespace deepinfer {
namespace {

using Pieces = std::vector<std::string>;

struct Outcome {
    std::string text;
    int matched = -1;
    size_t pieces_used = 0;  ///< pieces up to and including the one with the match
    bool operator==(const Outcome&) const = default;
};

Outcome run(const Pieces& pieces, const std::vector<std::string>& stops, bool include = false) {
    StopMatcher matcher(stops, include);
    Outcome o;
    for (const std::string& piece : pieces) {
        if (!matcher.stopped()) ++o.pieces_used;
        o.text += matcher.push(piece);
    }
    o.text += matcher.flush();
    o.matched = matcher.matched_stop();
    return o;
}

/// The rule by brute force: the first end of any match, the longest stop string there.
Outcome twin(const std::string& text, const std::vector<std::string>& stops, bool include) {
    for (size_t end = 1; end <= text.size(); ++end) {
        int best = -1;
        for (size_t i = 0; i < stops.size(); ++i) {
            const std::string& s = stops[i];
            if (s.empty() || s.size() > end || text.compare(end - s.size(), s.size(), s) != 0)
                continue;
            if (best < 0 || s.size() > stops[static_cast<size_t>(best)].size())
                best = static_cast<int>(i);
        }
        if (best >= 0) {
            const size_t cut = include ? end : end - stops[static_cast<size_t>(best)].size();
            return {text.substr(0, cut), best, 0};
        }
    }
    return {text, -1, 0};
}

TEST(StopMatcher, EqualsBruteForceHoweverTheTextIsCut) {
    std::mt19937_64 rng(testing::test_seed());
    const auto random_text = [&](size_t max, int letters) {
        std::string s(rng() % (max + 1), 'a');
        for (char& c : s)
            c = static_cast<char>('a' + static_cast<int>(rng() % static_cast<uint64_t>(letters)));
        return s;
    };
    for (int i = 0; i < 20000; ++i) {
        const int letters = 1 + static_cast<int>(rng() % 3);
        const std::string text = random_text(30, letters);
        std::vector<std::string> stops(rng() % 5);
        for (std::string& s : stops) s = random_text(6, letters);
        const bool include = rng() % 2 == 0;
        Pieces pieces;
        for (size_t at = 0; at < text.size();) {
            const size_t n = std::min<size_t>(1 + rng() % 5, text.size() - at);
            pieces.push_back(text.substr(at, n));
            at += n;
        }
        const Outcome want = twin(text, stops, include);
        const Outcome got = run(pieces, stops, include);
        ASSERT_EQ(got.text, want.text) << text;
        ASSERT_EQ(got.matched, want.matched) << text;
    }
}

TEST(StopMatcher, HoldsBackNoMoreThanAPossibleStart) {
    StopMatcher m({"abcd", "bx"}, false);
    EXPECT_EQ(m.push("zz"), "zz");
    EXPECT_EQ(m.push("ab"), "");
    EXPECT_EQ(m.push("c"), "");
    EXPECT_EQ(m.push("c"), "abcc");
    EXPECT_EQ(m.push("qab"), "q");
    EXPECT_EQ(m.push("b"), "ab");  // "b" may still become "bx"
    EXPECT_EQ(m.push("x tail"), "");
    EXPECT_TRUE(m.stopped());
    EXPECT_EQ(m.matched_stop(), 1);
    EXPECT_EQ(m.push("more"), "");
    EXPECT_EQ(m.flush(), "");
}

TEST(StopMatcher, GivesOutWholeCodePointsForWholeCodePoints) {
    StopMatcher m({"é"}, false);  // C3 A9; è is C3 A8
    EXPECT_EQ(m.push("è"), "è");
    EXPECT_EQ(m.push("x\xC3"), "x");
    EXPECT_EQ(m.push("\xA9"), "");
    EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, NothingToFindPassesEverything) {
    StopMatcher none({}, false), empty({"", ""}, false);
    EXPECT_FALSE(none.active());
    EXPECT_FALSE(empty.active());
    EXPECT_EQ(none.push("abc"), "abc");
    EXPECT_EQ(empty.push("abc"), "abc");
}

TEST(StopMatcher, TakesTheLargestAllowedStops) {
    std::vector<std::string> stops;
    for (int i = 0; i < 16; ++i) {
        std::string s(256, '\0');
        for (size_t j = 0; j < s.size(); ++j)
            s[j] = static_cast<char>(j * 7 + static_cast<size_t>(i) * 31);
        stops.push_back(s);
    }
    EXPECT_EQ(run({"head", stops[9], "tail"}, stops).text, "head");
    EXPECT_EQ(run({"head", stops[9].substr(0, 255)}, stops).text, "head" + stops[9].substr(0, 255));
}

TEST(StopMatcher, TokensAfterTheMatchDoNotCount) {
    EXPECT_EQ(run({"Count: ", "four, ", "five", ", six"}, {"five"}).pieces_used, 3u);
}

}  // namespace
}  // namespace deepinfer
