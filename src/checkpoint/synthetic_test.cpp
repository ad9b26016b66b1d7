// Generated checkpoints: the same bytes whatever the order and the cuts, the statistics they
// promise, what --synthetic refuses.
#include "checkpoint/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "support/golden_file.h"
#include "support/scratch_dir.h"
#include "tensor/dtype.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

std::string demo_config_path() {
    return testing::checkpoint_path("demo") + "/config.json";
}

SyntheticModel demo_geometry(uint64_t seed) {
    return parse_synthetic(demo_config_path() + ":" + std::to_string(seed)).value();
}

std::vector<uint8_t> fill(const ExpectedTensor& t, uint64_t seed) {
    std::vector<uint8_t> bytes(static_cast<size_t>(synthetic_bytes(t)));
    int64_t elements = 1;
    for (const int64_t d : t.shape) elements *= d;
    fill_synthetic(t, seed, 4, 0, elements, bytes.data());
    return bytes;
}

uint64_t fnv(const std::vector<uint8_t>& bytes) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001B3u;
    return h;
}

double rms_bf16(const std::vector<uint8_t>& bytes) {
    double sum = 0;
    for (size_t i = 0; i < bytes.size(); i += 2) {
        bf16 v;
        std::memcpy(&v.bits, &bytes[i], 2);
        sum += static_cast<double>(to_float(v)) * to_float(v);
    }
    return std::sqrt(sum / (static_cast<double>(bytes.size()) / 2));
}

TEST(Synthetic, AnyCutGivesTheSameBytes) {
    for (const ExpectedTensor& t :
         {ExpectedTensor{"layers.0.attn.wkv.weight", WeightKind::kFp8, {32, 96}, "", false},
          ExpectedTensor{"layers.0.ffn.experts.3.w1.weight", WeightKind::kFp4, {32, 48}, "", false},
          ExpectedTensor{"head.weight", WeightKind::kPlain, {64, 32}, "", false},
          ExpectedTensor{"layers.0.hc_attn_fn", WeightKind::kPlain, {24, 64}, "", false},
          ExpectedTensor{"layers.0.attn_norm.weight", WeightKind::kPlain, {96}, "", false}}) {
        const std::vector<uint8_t> whole = fill(t, 5);
        int64_t elements = 1;
        for (const int64_t d : t.shape) elements *= d;
        const int64_t width = synthetic_bytes(t) / elements;
        std::vector<uint8_t> parts(whole.size(), 0xEE);
        for (int64_t end = elements; end > 0;) {  // backwards
            const int64_t begin =
                std::max<int64_t>(0, (end - 1) / kSyntheticBlock * kSyntheticBlock);
            fill_synthetic(t, 5, 4, begin, end, parts.data() + begin * width);
            end = begin;
        }
        EXPECT_EQ(whole, parts) << t.name;
        EXPECT_NE(whole, fill(t, 6)) << t.name << " ignores its seed";
    }
}

/// Pinned: a change here changes every number measured on generated weights.
TEST(Synthetic, BytesAreTheseOnEveryMachine) {
    EXPECT_EQ(fnv(fill({"layers.0.attn.wkv.weight", WeightKind::kFp8, {32, 96}, "", false}, 1)),
              12990824585726813499u);
    EXPECT_EQ(
        fnv(fill({"layers.0.ffn.experts.3.w1.weight", WeightKind::kFp4, {32, 48}, "", false}, 1)),
        9985339604111391050u);
    EXPECT_EQ(fnv(fill({"head.weight", WeightKind::kPlain, {64, 32}, "", false}, 1)),
              1981311367993451698u);
}

TEST(Synthetic, StatisticsAreTheReleasedOnes) {
    const ExpectedTensor w1{
        "layers.0.ffn.experts.0.w1.weight", WeightKind::kFp4, {64, 2560}, "", false};
    std::array<int, 16> count{};
    double sum = 0;
    for (const uint8_t byte : fill(w1, 1)) {
        for (const int code : {byte & 15, byte >> 4}) {
            ++count[static_cast<size_t>(code)];
            const double v = e2m1_to_float(static_cast<uint8_t>(code));
            sum += v * v;
        }
    }
    const double codes = 2.0 * 64 * 2560;
    for (const int c : count) EXPECT_NEAR(c / codes, 1.0 / 16, 0.002);
    EXPECT_NEAR(std::sqrt(sum / codes), 2.93, 0.02);
    // The scales of the kernel plan: 2^-8 for 5120 columns, 2^-7 for 2304.
    EXPECT_EQ(
        fill({"layers.0.ffn.experts.0.w1.scale", WeightKind::kFp4Scale, {1, 160}, "", false}, 1)[7],
        127 - 8);
    EXPECT_EQ(
        fill({"layers.0.ffn.experts.0.w2.scale", WeightKind::kFp4Scale, {1, 72}, "", false}, 1)[7],
        127 - 7);

    double fp8 = 0;
    const std::vector<uint8_t> wkv =
        fill({"a.wkv.weight", WeightKind::kFp8, {64, 512}, "", false}, 1);
    for (const uint8_t c : wkv) {
        ASSERT_NE(c & 0x7F, 0x7F) << "a NaN code";
        fp8 += static_cast<double>(e4m3_to_float(c)) * e4m3_to_float(c);
    }
    EXPECT_NEAR(std::sqrt(fp8 / static_cast<double>(wkv.size())), 16, 0.3);

    EXPECT_NEAR(
        rms_bf16(fill({"embed.weight", WeightKind::kPlain, {64, 256}, "", false}, 1)), 0.12, 0.003);
    EXPECT_NEAR(
        rms_bf16(fill({"layers.1.ffn.gate.weight", WeightKind::kPlain, {64, 256}, "", false}, 1)),
        2.9 / 16,
        0.005);
    EXPECT_NEAR(
        rms_bf16(fill({"layers.1.attn_norm.weight", WeightKind::kPlain, {512}, "", false}, 1)),
        0.025,
        0.001);
    EXPECT_NEAR(
        rms_bf16(fill({"layers.1.attn.kv_norm.weight", WeightKind::kPlain, {512}, "", false}, 1)),
        0.4,
        0.01);
}

TEST(Synthetic, CheckpointHoldsWhatItsConfigImplies) {
    const SyntheticModel model = demo_geometry(3);
    const std::vector<ExpectedTensor> expected = expected_tensors(model.config);
    const Checkpoint c = Checkpoint::generate(model).value();
    ASSERT_EQ(c.tensors().size(), expected.size());
    EXPECT_THAT(c.dir(), HasSubstr("config.json:3"));
    EXPECT_EQ(c.find("layers.0.no_such_tensor"), nullptr);
    for (const ExpectedTensor& want : expected) {
        if (want.name.rfind("layers.1.", 0) != 0) continue;  // one layer is enough
        const StoredTensor* t = c.find(want.name);
        ASSERT_NE(t, nullptr) << want.name;
        EXPECT_TRUE(accepts_dtype(want.kind, t->dtype)) << want.name << " " << t->dtype;
        EXPECT_EQ(t->view.bytes(), synthetic_bytes(want)) << want.name;
        const std::vector<uint8_t> bytes = fill(want, 3);
        ASSERT_EQ(std::memcmp(t->view.data, bytes.data(), bytes.size()), 0) << want.name;
        c.release(want.name);
        c.release(want.name);  // a second time does no harm
        ASSERT_EQ(std::memcmp(c.find(want.name)->view.data, bytes.data(), bytes.size()), 0)
            << want.name << " after it was released";
    }
}

TEST(Synthetic, NamedGeometries) {
    EXPECT_THAT(synthetic_geometries(),
                ::testing::ElementsAre("cpu-slice", "slice-e48", "ve-slice"));
    EXPECT_EQ(synthetic_config_json("nano"), "");
    const SyntheticModel cpu = parse_synthetic("cpu-slice").value();
    EXPECT_EQ(cpu.seed, 1u);
    EXPECT_EQ(cpu.config.hidden_size, 5120);
    EXPECT_EQ(cpu.config.moe_intermediate_size, 2304);
    int64_t bytes = 0;
    for (const ExpectedTensor& t : expected_tensors(cpu.config)) bytes += synthetic_bytes(t);
    EXPECT_LT(bytes, int64_t{12'000'000'000});

    const SyntheticModel rank = parse_synthetic("slice-e48:77").value();
    EXPECT_EQ(rank.seed, 77u);
    EXPECT_EQ(rank.config.num_hidden_layers, 40);
    EXPECT_EQ(rank.config.n_routed_experts, 48);
    bytes = 0;
    for (const ExpectedTensor& t : expected_tensors(rank.config)) bytes += synthetic_bytes(t);
    EXPECT_NEAR(
        static_cast<double>(bytes), 48e9, 1e9);  // kernel plan 5: 49 GB with the picture tower
}

TEST(Synthetic, OnlyTheSliceWithATowerTakesPictures) {
    EXPECT_FALSE(parse_synthetic("cpu-slice")->config.has_vision);
    const ModelConfig config = parse_synthetic("ve-slice")->config;
    ASSERT_TRUE(config.has_vision);
    EXPECT_EQ(config.vision.num_hidden_layers, 4);
    EXPECT_EQ(config.vision.intermediate_size, 2816);
    EXPECT_EQ(config.image_token_id, 129264);
}

TEST(Synthetic, RefusesWhatItCannotMake) {
    EXPECT_THAT(parse_synthetic("no-such-geometry").status().message(), HasSubstr("cpu-slice"));
    EXPECT_EQ(parse_synthetic("").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parse_synthetic("cpu-slice:").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parse_synthetic("cpu-slice:x7").status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(parse_synthetic("cpu-slice:99999999999999999999").status().code(),
              StatusCode::kInvalidArgument);
    // A file that is no config, and a geometry whose groups no panel divides.
    EXPECT_EQ(parse_synthetic(testing::checkpoint_path("demo") + "/tokenizer_config.json")
                  .status()
                  .code(),
              StatusCode::kInvalidFile);
    std::ifstream in(demo_config_path());
    std::string text(std::istreambuf_iterator<char>(in), {});
    const std::string field = "\"o_lora_rank\": 128";
    ASSERT_NE(text.find(field), std::string::npos);
    text.replace(text.find(field), field.size(), "\"o_lora_rank\": 16");
    const testing::ScratchDir dir;
    const std::string path = dir.file("odd_rank.json");
    std::ofstream(path) << text;
    EXPECT_THAT(parse_synthetic(path).status().message(), HasSubstr("o_lora_rank"));
}

}  // namespace
}  // namespace deepinfer
