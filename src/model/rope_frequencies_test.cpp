// RoPE frequencies against the reference's tables and the released values.
#include "model/rope_frequencies.h"

#include <gtest/gtest.h>

#include "support/golden_file.h"

namespace deepinfer {
namespace {

using testing::data_path;
using testing::GoldenTensor;
using testing::read_golden;

RopeScaling yarn(double factor, int64_t original) {
    RopeScaling s;
    s.yarn = true;
    s.factor = factor;
    s.original_max_position_embeddings = original;
    return s;
}

TEST(RopeFrequencies, EqualTheReferenceBitForBit) {
    const std::map<std::string, GoldenTensor> golden =
        read_golden(data_path("unit/rope.safetensors"));
    const RopeScaling nano = yarn(16, 256), release = yarn(16, 65536);
    const struct {
        const char* name;
        int64_t dim;
        double theta;
        const RopeScaling* scaling;
    } rows[] = {{"nano_window.freq", 16, 10000, nullptr},
                {"nano_compress.freq", 16, 160000, &nano},
                {"nano512_compress.freq", 64, 160000, &nano},
                {"release_window.freq", 64, 10000, nullptr},
                {"release_compress.freq", 64, 160000, &release}};
    for (const auto& row : rows) {
        const std::vector<float> want = golden.at(row.name).floats();
        const std::vector<float> got = rope_frequencies(row.dim, row.theta, row.scaling);
        ASSERT_EQ(got.size(), want.size()) << row.name;
        for (size_t i = 0; i < got.size(); ++i)
            EXPECT_EQ(got[i], want[i]) << row.name << "[" << i << "]";
    }
}

TEST(RopeFrequencies, ReleasedCompressTableHasThePublishedValues) {
    const RopeScaling release = yarn(16, 65536);
    const std::vector<float> f = rope_frequencies(64, 160000, &release);
    EXPECT_EQ(f[15], 0.0036355385f);  // below the ramp: unchanged
    EXPECT_EQ(f[16], 0.0022656249f);
    EXPECT_EQ(f[20], 2.9697779e-4f);
    EXPECT_EQ(f[25], 5.3723124e-6f);
    EXPECT_EQ(f[31], 5.6805294e-7f);
}

}  // namespace
}  // namespace deepinfer
