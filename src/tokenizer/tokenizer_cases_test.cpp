// The handed field cases about the tokenizer: tests/data/cases/tokenizer.json, row by row.
#include <array>
#include <cstring>

#include "tokenizer/tokenizer_test_util.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::released_tokenizer;
using Ids = std::vector<int32_t>;

json rows_of(const std::string& id) {
    const json document = json::parse(testing::read_packed("cases/tokenizer.json"));
    for (const json& c : document) {
        if (c["id"] == id) return c["rows"];
    }
    ADD_FAILURE() << "no case " << id;
    return json::array();
}

// SHA-256 (FIPS 180-4), here because the cases give long id lists by their hash.
std::string sha256_hex(std::string bytes, size_t digits) {
    const auto rotr = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
    // Fractional parts of the roots of the first primes, by integer search instead of a table.
    std::vector<uint32_t> primes;
    for (uint32_t n = 2; primes.size() < 64; ++n) {
        bool prime = true;
        for (const uint32_t p : primes) prime = prime && n % p != 0;
        if (prime) primes.push_back(n);
    }
    using Wide = unsigned __int128;
    const auto root_fraction = [](uint32_t n, int power) {
        uint64_t low = 0;  // largest x with x^power <= n · 2^(32·power)
        for (int bit = 40; bit >= 0; --bit) {
            const uint64_t x = low | uint64_t{1} << bit;
            Wide product = 1;
            for (int i = 0; i < power; ++i) product *= x;
            if (product <= static_cast<Wide>(n) << (32 * power)) low = x;
        }
        return static_cast<uint32_t>(low);
    };
    std::array<uint32_t, 8> h;
    for (size_t i = 0; i < 8; ++i) h[i] = root_fraction(primes[i], 2);
    const uint64_t bits = bytes.size() * 8;
    bytes += '\x80';
    while (bytes.size() % 64 != 56) bytes += '\0';
    for (int i = 7; i >= 0; --i) bytes += static_cast<char>(static_cast<uint8_t>(bits >> (8 * i)));
    std::array<uint32_t, 64> k;
    for (size_t i = 0; i < 64; ++i) k[i] = root_fraction(primes[i], 3);
    for (size_t block = 0; block < bytes.size(); block += 64) {
        std::array<uint32_t, 64> w;
        for (size_t i = 0; i < 16; ++i) {
            w[i] = 0;
            for (size_t j = 0; j < 4; ++j)
                w[i] = w[i] << 8 | static_cast<uint8_t>(bytes[block + 4 * i + j]);
        }
        for (size_t i = 16; i < 64; ++i) {
            const uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
            const uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        std::array<uint32_t, 8> v = h;
        for (size_t i = 0; i < 64; ++i) {
            const uint32_t s1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25);
            const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
            const uint32_t s0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
            const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
        }
        for (size_t i = 0; i < 8; ++i) h[i] += v[i];
    }
    std::string hex;
    for (const uint32_t word : h) {
        for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
    }
    return hex.substr(0, digits);
}

std::string hash_of_ids(const Ids& ids) {
    std::string bytes;
    for (const int32_t id : ids) {
        for (int shift = 0; shift < 32; shift += 8) {
            bytes += static_cast<char>(static_cast<uint8_t>(static_cast<uint32_t>(id) >> shift));
        }
    }
    return sha256_hex(std::move(bytes), 16);
}

TEST(TokenizerCases, HashIsSha256) {
    EXPECT_EQ(sha256_hex("abc", 16), "ba7816bf8f01cfea");
    EXPECT_EQ(sha256_hex("", 16), "e3b0c44298fc1c14");
}

TEST(TokenizerCases, C006CharactersOverTwoTokensComeOutWhole) {
    for (const json& row : rows_of("C-006")) {
        const Ids ids = row["in"]["ids"].get<Ids>();
        StreamDecoder stream(released_tokenizer());
        std::vector<std::string> pieces;
        for (const int32_t id : ids) pieces.push_back(stream.push(id).value());
        EXPECT_EQ(pieces, row["want"]["pieces"].get<std::vector<std::string>>());
        EXPECT_EQ(stream.finish(), row["want"]["at_end"]);
        EXPECT_EQ(released_tokenizer().decode(ids).value(), row["want"]["text"]);
        for (size_t cut = 0; cut <= ids.size(); ++cut) {
            std::string text = stream.push(std::span(ids).first(cut)).value();
            text += stream.push(std::span(ids).subspan(cut)).value();
            text += stream.finish();
            EXPECT_EQ(text, row["want"]["text"]);
        }
    }
}

TEST(TokenizerCases, C007TheSideFileChangesNoIds) {
    const std::string file = testing::read_packed("tokenizer/tokenizer.json.gz");
    for (const json& row : rows_of("C-007")) {
        const Result<Tokenizer> t =
            Tokenizer::from_json(file, row["in"]["tokenizer_config"].dump());
        ASSERT_TRUE(t.ok()) << t.status().to_string();
        const std::string text = row["in"]["text"];
        const Ids ids = t.value().encode(text);
        EXPECT_EQ(ids, row["want"]["ids"].get<Ids>()) << row["in"];
        EXPECT_EQ(t.value().decode(ids).value(), row["want"]["decoded"]);
    }
}

// The texts of C-008 in the order of its rows, which describe them in words.
std::vector<std::string> long_texts(const json& rows) {
    std::vector<std::string> out = {std::string(100000, 'a'), std::string(50000, '_'), "", ""};
    for (char32_t i = 0; i < 40000; ++i) append_utf8(0x4E00 + i * 7919 % 20902, out[2]);
    const std::string unit = rows[3]["in"]["unit"];
    while (out[3].size() < 4194304) out[3] += unit;
    out[3].resize(4194304);
    std::string whole;  // an incomplete last character is dropped
    append_repaired_utf8(out[3], true, whole);
    out[3] = whole;
    return out;
}

TEST(TokenizerCases, C008LongRunsGiveTheReferenceIds) {
    const json rows = rows_of("C-008");
    ASSERT_EQ(rows.size(), 4u);
    const std::vector<std::string> texts = long_texts(rows);
    for (size_t i = 0; i < texts.size(); ++i) {
        const Ids ids = released_tokenizer().encode(texts[i]);
        EXPECT_EQ(ids.size(), rows[i]["want"]["count"].get<size_t>()) << i;
        EXPECT_EQ(hash_of_ids(ids),
                  rows[i]["want"]["sha256_first16_of_u32le_ids"].get<std::string>())
            << i;
    }
}

TEST(TokenizerCases, C009EveryNumberOfTokensPerStepGivesTheText) {
    for (const json& row : rows_of("C-009")) {
        const Ids ids = row["in"]["ids"].get<Ids>();
        const size_t given = row["in"].value("tokens_per_step", size_t{0});
        for (size_t first = given > 0 ? given : 0; first <= (given > 0 ? given : ids.size());
             ++first) {
            StreamDecoder stream(released_tokenizer());
            std::string text;
            for (size_t begin = 0; begin < ids.size();) {
                size_t end =
                    given > 0 ? begin + given : (begin == 0 && first > 0 ? first : ids.size());
                end = std::min(end, ids.size());
                text += stream.push(std::span(ids).subspan(begin, end - begin)).value();
                begin = end;
            }
            text += stream.finish();
            EXPECT_EQ(text, row["want"]["text"].get<std::string>()) << first;
        }
    }
}

}  // namespace
}  // namespace deepinfer
