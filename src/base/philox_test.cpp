#include "base/philox.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// The published known-answer vectors of philox4x32, ten rounds.
TEST(Philox, KnownAnswers) {
    struct Row {
        PhiloxWords counter;
        uint32_t key0, key1;
        PhiloxWords want;
    };
    const Row rows[] = {
        {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         0xffffffff,
         0xffffffff,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         0xa4093822,
         0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (const Row& row : rows) {
        const PhiloxWords got = philox4x32_10(row.counter, row.key0, row.key1);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(got.w[i], row.want.w[i]) << i;
    }
}

TEST(Philox, NoiseWordNamesItsCounter) {
    const NoiseKey key{0x299f31d0a4093822ull, 0x243f6a88, 0x85a308d3, 0x03707344};
    const uint32_t token = 0x13198a2eu << 2;
    EXPECT_EQ(noise_word(key, token), 0xd16cfe09u);
    EXPECT_EQ(noise_word(key, token + 1), 0x94fdccebu);
    EXPECT_EQ(noise_word(key, token + 2), 0x5001e420u);
    EXPECT_EQ(noise_word(key, token + 3), 0x24126ea1u);
}

TEST(Philox, EveryPartOfTheKeyMatters) {
    const NoiseKey base{7, 11, 0, 0};
    const uint32_t word = noise_word(base, 5);
    NoiseKey k = base;
    k.seed = 8;
    EXPECT_NE(noise_word(k, 5), word);
    k = base;
    k.seed += uint64_t{1} << 32;
    EXPECT_NE(noise_word(k, 5), word);
    k = base;
    k.position = 12;
    EXPECT_NE(noise_word(k, 5), word);
    k = base;
    k.stream = kNoiseRefineOffset;
    EXPECT_NE(noise_word(k, 5), word);
    k = base;
    k.sub_sequence = 1;
    EXPECT_NE(noise_word(k, 5), word);
}

}  // namespace
}  // namespace deepinfer
