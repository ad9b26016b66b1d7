#include "tensor/quant_block.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/case_file.h"
#include "support/golden_file.h"

namespace deepinfer::testing {
namespace {

TEST(QuantBlock, GoldenScaleBytes) {
    auto g = read_golden(data_path("unit/ue8m0.safetensors"));
    const std::vector<float> amax = g["amax"].floats();
    for (size_t i = 0; i < amax.size(); ++i) {
        ASSERT_EQ(ue8m0_scale(amax[i], 1.0f / 448.0f), g["byte_fp8"].bytes[i]) << amax[i];
        ASSERT_EQ(ue8m0_scale(amax[i], 1.0f / 6.0f), g["byte_fp4"].bytes[i]) << amax[i];
    }
}

struct Quantizer {
    const char* name;
    int block;
    int code_bytes;
    uint8_t (*quantize)(const float* x, uint8_t* codes);
    void (*unpack)(const uint8_t* row, int64_t dim, float* out);
};
constexpr Quantizer kQuantizers[] = {
    {"q8", kQ8Block, 32, &q8_block, &unpack_window_row},
    {"q4m", kQ4mBlock, 16, &q4m_block, &unpack_index_key},
    {"q4n", kQ4nBlock, 8, &q4n_block, &unpack_kv_entry},
};

TEST(QuantBlock, GoldenCodesScalesAndValues) {
    for (const Quantizer& q : kQuantizers) {
        auto g = read_golden(data_path(std::string("unit/") + q.name + ".safetensors"));
        const GoldenTensor& codes = g[std::string(q.name) == "q8" ? "codes" : "packed"];
        const std::vector<float> x = g["x"].floats(), y = g["y"].floats();
        const int64_t rows = g["x"].shape[0], dim = g["x"].shape[1], blocks = dim / q.block;
        for (int64_t r = 0; r < rows; ++r) {
            std::vector<uint8_t> row(static_cast<size_t>(blocks * q.code_bytes + blocks));
            for (int64_t b = 0; b < blocks; ++b) {
                row[static_cast<size_t>(blocks * q.code_bytes + b)] =
                    q.quantize(x.data() + r * dim + b * q.block, row.data() + b * q.code_bytes);
            }
            std::vector<uint8_t> want(codes.bytes.begin() + r * blocks * q.code_bytes,
                                      codes.bytes.begin() + (r + 1) * blocks * q.code_bytes);
            want.insert(want.end(),
                        g["scales"].bytes.begin() + r * blocks,
                        g["scales"].bytes.begin() + (r + 1) * blocks);
            ASSERT_EQ(row, want) << q.name << " row " << r;
            std::vector<float> values(static_cast<size_t>(dim));
            q.unpack(row.data(), dim, values.data());
            for (int64_t i = 0; i < dim; ++i)
                ASSERT_EQ(round_bf16(values[static_cast<size_t>(i)]),
                          y[static_cast<size_t>(r * dim + i)])
                    << q.name << " " << r << ", " << i;
        }
    }
}

/// Hand vectors of model spec 7.4: eight values, zeros filling the block.
TEST(QuantBlock, HandVectors) {
    float x[32] = {0.30078125f, -1.2f, 0.004f, 2.5f, -0.75f, 0.1f, 0.0f, -2.0f};
    uint8_t codes[32];
    EXPECT_EQ(q8_block(x, codes), 120);
    const uint8_t want8[] = {0x62, 0xF2, 0x30, 0x7A, 0xEC, 0x55, 0x00, 0xF8};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], want8[i]) << i;
    const auto expect_nibbles = [&](const uint8_t(&want)[8]) {
        for (int i = 0; i < 8; ++i) EXPECT_EQ((codes[i / 2] >> (4 * (i & 1))) & 15, want[i]) << i;
    };
    EXPECT_EQ(q4m_block(x, codes), 126);
    expect_nibbles({1, 0xC, 0, 6, 0xB, 0, 0, 0xE});
    EXPECT_EQ(q4n_block(x, codes), 0x2D);
    expect_nibbles({1, 0xD, 0, 7, 0xC, 0, 0, 0xE});
    float row[16];
    codes[8] = 0x2D;
    unpack_kv_entry(codes, 16, row);
    const float values[] = {0.203125f, -1.21875f, 0, 2.4375f, -0.8125f, 0, 0, -1.625f};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(row[i], values[i]) << i;
}

/// "448, then 31 ones" and its like.
std::vector<float> block_of(const std::string& text, int size) {
    std::vector<float> x(static_cast<size_t>(size), 0.0f);
    if (text.find("zeros") == std::string::npos || text.find(',') != std::string::npos)
        x[0] = std::stof(text);
    const float rest = text.find("ones") != std::string::npos    ? 1.0f
                       : text.find("fives") != std::string::npos ? 5.0f
                                                                 : 0.0f;
    for (size_t i = 1; i < x.size(); ++i) x[i] = rest;
    return x;
}

TEST(QuantBlock, FieldCaseC108) {
    int rows = 0;
    for (const auto& row : case_rows("op_numerics.json", "C-108")) {
        if (!row["in"].contains("quantiser"))
            continue;  // the RMS norm row: RmsNorm.EpsilonIsNotFlushed
        ++rows;
        const Quantizer* q = nullptr;
        for (const Quantizer& candidate : kQuantizers) {
            if (row["in"]["quantiser"] == candidate.name) q = &candidate;
        }
        ASSERT_NE(q, nullptr);
        uint8_t codes[32];
        const uint8_t scale = q->quantize(block_of(row["in"]["block"], q->block).data(), codes);
        const auto& want = row["want"];
        const auto& scale_field =
            want.contains("scale_byte") ? want["scale_byte"] : want["scale_code"];
        EXPECT_EQ(scale,
                  scale_field.is_string() ? std::stoi(scale_field.get<std::string>(), nullptr, 16)
                                          : scale_field.get<int>())
            << row;
        // "all 0", or the first code and then "code x count"
        const int first = want["codes"].is_string()
                              ? 0
                              : std::stoi(want["codes"][0].get<std::string>(), nullptr, 16);
        const int rest = want["codes"].is_string()
                             ? 0
                             : std::stoi(want["codes"][1].get<std::string>(), nullptr, 16);
        for (int i = 0; i < q->block; ++i) {
            const int code =
                q->code_bytes == q->block ? codes[i] : (codes[i / 2] >> (4 * (i & 1))) & 15;
            EXPECT_EQ(code, i == 0 ? first : rest) << row << " element " << i;
        }
    }
    EXPECT_EQ(rows, 8);
}

TEST(QuantBlock, RowSizesOfTheRelease) {
    EXPECT_EQ(window_row_bytes(512), 528);
    EXPECT_EQ(kv_entry_bytes(512), 288);
    EXPECT_EQ(index_key_bytes(128), 68);
}

}  // namespace
}  // namespace deepinfer::testing
