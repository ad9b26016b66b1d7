#include "tensor/dtype.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstring>
#include <vector>

#include "support/case_file.h"
#include "support/golden_file.h"
#include "support/seeded_random.h"

namespace deepinfer::testing {
namespace {

uint8_t hex_byte(const std::string& s) {
    return static_cast<uint8_t>(std::stoi(s, nullptr, 16));
}

TEST(Bf16, RoundsToNearestEven) {
    EXPECT_EQ(to_bf16(1.0f).bits, 0x3F80);
    EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3F80);             // tie, even below
    EXPECT_EQ(to_bf16(1.0f + 0x1p-7f + 0x1p-8f).bits, 0x3F82);   // tie, even above
    EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-23f).bits, 0x3F81);  // just above the tie
    EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
    EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // rounds up to infinity
    EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
}

TEST(Bf16, NanStaysNanWhateverItsPayload) {
    for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0xFF800001u, 0x7F80FFFFu}) {
        EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(bits))))) << bits;
    }
}

TEST(Bf16, EveryValueSurvivesARoundTrip) {
    for (uint32_t b = 0; b < 65536; ++b) {
        const float v = to_float(bf16{static_cast<uint16_t>(b)});
        if (std::isnan(v)) continue;
        ASSERT_EQ(to_bf16(v).bits, b);
    }
}

// The exact goldens reach bf16 through fp32: 1 + 2^-8 + 2^-40 first loses its tail, then is a tie.
TEST(Bf16, DoubleIsRoundedTwice) {
    EXPECT_EQ(to_bf16(1.0 + 0x1p-8 + 0x1p-40).bits, 0x3F80);
}

TEST(E4m3, GoldenCodes) {
    auto g = read_golden(data_path("unit/e4m3.safetensors"));
    const std::vector<float> x = g["x"].floats();
    for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(float_to_e4m3(x[i]), g["codes"].bytes[i]) << x[i];
}

TEST(E4m3, EveryCodeSurvivesARoundTrip) {
    for (int c = 0; c < 256; ++c) {
        const float v = e4m3_to_float(static_cast<uint8_t>(c));
        if ((c & 0x7F) == 0x7F)
            EXPECT_TRUE(std::isnan(v));
        else
            EXPECT_EQ(float_to_e4m3(v), c);
    }
    EXPECT_EQ(float_to_e4m3(1e9f), 0x7E);
    EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
    EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

// Between every two neighbours: below the middle down, above it up, in the middle to the even code.
TEST(E4m3, TiesGoToTheEvenCode) {
    for (uint8_t c = 0; c < 0x7E; ++c) {
        const float low = e4m3_to_float(c), high = e4m3_to_float(static_cast<uint8_t>(c + 1)),
                    middle = (low + high) / 2;
        EXPECT_EQ(float_to_e4m3(middle), c % 2 == 0 ? c : c + 1) << middle;
        EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), c) << middle;
        EXPECT_EQ(float_to_e4m3(-std::nextafter(middle, 1e9f)), (c + 1) | 0x80) << middle;
    }
}

TEST(E2m1, GoldenCodes) {
    auto g = read_golden(data_path("unit/e2m1.safetensors"));
    const std::vector<float> x = g["x"].floats();
    for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(float_to_e2m1(x[i]), g["codes"].bytes[i]) << x[i];
}

TEST(E2m1, ThresholdsAndSigns) {
    const std::pair<float, int> rows[] = {{0.25f, 0},
                                          {0.26f, 1},
                                          {0.75f, 2},
                                          {0.74f, 1},
                                          {1.25f, 2},
                                          {1.75f, 4},
                                          {2.5f, 4},
                                          {2.51f, 5},
                                          {3.5f, 6},
                                          {5.0f, 6},
                                          {5.01f, 7},
                                          {100.f, 7},
                                          {-0.f, 8},
                                          {-6.f, 15}};
    for (const auto& [x, code] : rows) EXPECT_EQ(float_to_e2m1(x), code) << x;
    for (int c = 0; c < 16; ++c) {
        if (c == 8) continue;  // decodes to +0
        EXPECT_EQ(float_to_e2m1(e2m1_to_float(static_cast<uint8_t>(c))), c);
    }
}

TEST(NumberFormats, FieldCaseC002Decodes) {
    for (const auto& row : case_rows("number_formats.json", "C-002")) {
        const auto& in = row["in"];
        if (!in.contains("decode")) continue;
        const float scale = ue8m0_to_float(hex_byte(in["scale"]));
        if (in["decode"] == "e4m3") {
            const float v = e4m3_to_float(hex_byte(in["byte"])) * scale;
            if (row["want"].is_string())
                EXPECT_TRUE(std::isnan(v)) << row;
            else
                EXPECT_EQ(v, row["want"].get<float>()) << row;
        } else {
            const std::string bytes = in["bytes"];
            for (size_t i = 0; i < row["want"].size(); ++i) {
                const uint8_t byte = hex_byte(bytes.substr(i / 2 * 3, 2));
                const uint8_t code = static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
                EXPECT_EQ(e2m1_to_float(code) * scale, row["want"][i].get<float>()) << i;
            }
        }
    }
}

/// All code × scale products as the case describes: fp32 little endian, every NaN as 0x7fc00000.
std::pair<std::string, int> digest(int codes, float (*decode)(uint8_t)) {
    std::vector<uint32_t> words;
    int nans = 0;
    for (int c = 0; c < codes; ++c) {
        for (int s = 0; s < 256; ++s) {
            const float v =
                decode(static_cast<uint8_t>(c)) * ue8m0_to_float(static_cast<uint8_t>(s));
            nans += std::isnan(v);
            words.push_back(std::isnan(v) ? 0x7fc00000u : std::bit_cast<uint32_t>(v));
        }
    }
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(words.data()), words.size() * 4, hash);
    std::string hex;
    for (int i = 0; i < 8; ++i) {
        const char* digits = "0123456789abcdef";
        hex += {digits[hash[i] >> 4], digits[hash[i] & 15]};
    }
    return {hex, nans};
}

TEST(NumberFormats, FieldCaseC002Digests) {
    int rows = 0;
    for (const auto& row : case_rows("number_formats.json", "C-002")) {
        if (!row["in"].contains("digest")) continue;
        const bool fp8 = row["in"]["digest"] == "e4m3 x e8m0";
        const auto [hex, nans] = fp8 ? digest(256, &e4m3_to_float) : digest(16, &e2m1_to_float);
        EXPECT_EQ(hex, row["want"]["sha256_first16"]) << row;
        EXPECT_EQ(nans, row["want"]["nan_count"]) << row;
        ++rows;
    }
    EXPECT_EQ(rows, 2);
}

}  // namespace
}  // namespace deepinfer::testing
