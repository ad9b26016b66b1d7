#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/hf_config.h"

namespace deepinfer {
namespace {

using testing::data_path;

TEST(EngramMultipliers, EqualNumpyForEveryStoredVocabularyAndLayer) {
    const auto vectors = testing::read_json(data_path("unit/engram_multipliers.json"));
    int checked = 0;
    for (const auto& item : vectors.items()) {
        const size_t colon = item.key().find(':');
        const int64_t vocab = std::stoll(item.key().substr(0, colon));
        const int64_t layer = std::stoll(item.key().substr(colon + 1));
        std::vector<int64_t> want;
        for (const auto& s : item.value()) want.push_back(std::stoll(s.get<std::string>()));
        EXPECT_EQ(engram_multipliers(layer, static_cast<int64_t>(want.size()), vocab), want)
            << item.key();
        ++checked;
    }
    EXPECT_GE(checked, 10);
}

TEST(EngramMultipliers, EqualTheReleasedOnes) {
    EXPECT_EQ(
        engram_multipliers(1, 4, 99092),
        (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
    EXPECT_EQ(
        engram_multipliers(14, 4, 99092),
        (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
    EXPECT_EQ(engram_multipliers(2, 4, 1024),
              (std::vector<int64_t>{
                  7403591982942173, 3589937225856557, 2191576883771873, 6911720411037529}));
}

// Values of numpy 1.24: 2 * default_rng(10007 * layer).integers(0, bound, 4, dtype=int64) + 1 on
// both sides of the bound 2^32, where numpy goes over to 32-bit draws.
TEST(EngramMultipliers, EqualNumpyWhereItDraws32BitWords) {
    struct Row {
        int64_t layer, vocab;
        std::vector<int64_t> want;
    };
    const Row rows[] = {
        {0, 1073741824, {7306806461, 5471459229, 4390628929, 2317450223}},
        {1, 1073741824, {1288453221, 7072116863, 5325383785, 446655787}},
        {14, 2147483648, {3473391887, 3124677671, 274795387, 2376879037}},
        {1,
         1789569706,
         {773071933, 4243270119, 267993473, 2823278337}},  // two words in five are redrawn
        {14,
         1789569706,
         {4168070267, 329754465, 1712175907, 3796914775}},  // two words in five are redrawn
        {1, 3221225472, {429484407, 2357372287, 1775127929, 148885263}},
        {0, 1099511627776, {7135551, 5343221, 4287723, 2263135}},
        {14, 1099511627776, {6783967, 6102885, 536709, 4642341}},
        {1, 2305843009213693952, {1, 1, 1, 1}},
        {0, 536870912, {10942918463, 4634900449, 703919781, 283942617}},
        {1, 1073741823, {7072116871, 446655789, 3318596495, 6828041049}},
    };
    for (const Row& row : rows) {
        EXPECT_EQ(engram_multipliers(row.layer, 4, row.vocab), row.want)
            << row.layer << ":" << row.vocab;
    }
}

std::vector<std::vector<int64_t>> primes_of(std::vector<int64_t> layers,
                                            int64_t vocab,
                                            int64_t heads) {
    ModelConfig c;
    c.engram_layer_ids = std::move(layers);
    c.engram_vocab_size = vocab;
    c.engram_n_heads = heads;
    c.engram_max_ngram_size = 4;
    return c.engram_primes();
}

TEST(EngramPrimes, EqualTheStoredVectors) {
    const auto golden = testing::read_golden(data_path("unit/engram_hash.safetensors"));
    struct Row {
        const char* name;
        std::vector<std::vector<int64_t>> primes;
    };
    const Row rows[] = {{"release.primes", primes_of({1, 14}, 16000000, 8)},
                        {"small.primes", primes_of({1, 4}, 500, 2)}};
    for (const Row& row : rows) {
        std::vector<int64_t> flat;
        for (const auto& table : row.primes) flat.insert(flat.end(), table.begin(), table.end());
        EXPECT_EQ(flat, golden.at(row.name).ints()) << row.name;
    }
}

TEST(EngramPrimes, SumToTheReleasedTableSizes) {
    const auto primes = primes_of({1, 14}, 16000000, 8);
    ASSERT_EQ(primes.size(), 2u);
    EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), int64_t{0}), 384006168);
    EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), int64_t{0}), 384016682);
}

TEST(EngramPrimes, StartAtTheSmallestPrimes) {
    const auto primes = primes_of({0}, 1, 2);
    EXPECT_EQ(primes[0], (std::vector<int64_t>{2, 3, 5, 7, 11, 13}));
}

}  // namespace
}  // namespace deepinfer
