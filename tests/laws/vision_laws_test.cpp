// Laws of the picture path on the nano checkpoint: a picture alone is the picture in any batch,
// work in pieces is work in one, every path gives the exact twin's rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/ref/ref_backend.h"
#include "model/vision_encoder.h"
#include "support/golden_file.h"
#include "support/seeded_random.h"
#include "vision/image_preprocess.h"

namespace deepinfer {
namespace {

using testing::checkpoint_path;
using testing::SeededRandom;

class Tower {
  public:
    Tower(const std::string& backend, const std::string& isa, int threads = 2) {
        static const bool registered = [] {
            register_ref_backends();
            register_cpu_backend();
            return true;
        }();
        (void)registered;
        BackendOptions options;
        options.isa = isa;
        options.num_threads = threads;
        Result<std::unique_ptr<Backend>> b = create_backend(backend, options);
        if (!b.ok()) return;
        backend_ = std::move(b).value();
        Result<Checkpoint> c = Checkpoint::open(checkpoint_path("nano"));
        if (!c.ok()) std::abort();
        checkpoint_ = std::make_unique<Checkpoint>(std::move(c).value());
        Result<std::unique_ptr<VisionEncoder>> e =
            VisionEncoder::load(*checkpoint_, *backend_, 1000);
        if (!e.ok()) std::abort();
        encoder_ = std::move(e).value();
    }
    bool ok() const { return encoder_ != nullptr; }
    VisionEncoder& encoder() { return *encoder_; }

    PreparedImage picture(int64_t w, int64_t h, const std::string& seed) const {
        SeededRandom random(seed);
        ImageInput input;
        input.width = w;
        input.height = h;
        for (int64_t i = 0; i < w * h * 3; ++i)
            input.rgb.push_back(static_cast<uint8_t>(random.below(256)));
        Result<PreparedImage> p = preprocess_image(input, checkpoint_->config().vision, 8192);
        if (!p.ok()) std::abort();
        return std::move(p).value();
    }
    static EncoderPicture view(const PreparedImage& p) {
        return {p.plan.grid_h, p.plan.grid_w, p.patches.data()};
    }
    std::vector<bf16> alone(const PreparedImage& p) {
        const EncoderPicture v = view(p);
        return encoder_->encode({&v, 1})[0].rows;
    }

  private:
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<VisionEncoder> encoder_;
};

bool same(const std::vector<bf16>& a, const std::vector<bf16>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0;
}

double distance(const std::vector<bf16>& a, const std::vector<bf16>& b) {
    double d = 0, n = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        d += std::pow(to_float(a[i]) - to_float(b[i]), 2);
        n += std::pow(to_float(b[i]), 2);
    }
    return std::sqrt(d / n);
}

// C-079: every size of the table on every path, within the reference's bf16 bound.
TEST(VisionLaws, EveryPathGivesTheExactTwinsRows) {
    Tower exact("exact", "");
    const std::pair<int64_t, int64_t> sizes[] = {{42, 42},
                                                 {43, 41},
                                                 {100, 50},
                                                 {50, 100},
                                                 {84, 84},
                                                 {85, 83},
                                                 {126, 42},
                                                 {42, 126},
                                                 {640, 480},
                                                 {8192, 1},
                                                 {1, 8192},
                                                 {1, 1}};
    std::vector<std::vector<bf16>> want;
    for (const auto& [w, h] : sizes)
        want.push_back(exact.alone(exact.picture(w, h, std::to_string(w))));
    for (const char* isa : {"baseline", "avx2", "avx512", "amx"}) {
        Tower fast("cpu", isa);
        if (!fast.ok()) continue;
        for (size_t i = 0; i < want.size(); ++i) {
            const auto [w, h] = sizes[i];
            const PreparedImage p = fast.picture(w, h, std::to_string(w));
            const std::vector<bf16> got = fast.alone(p);
            ASSERT_EQ(got.size(), want[i].size());
            EXPECT_EQ(static_cast<int64_t>(got.size()), p.plan.num_tokens() * 256);
            EXPECT_LT(distance(got, want[i]), 1e-2) << isa << " " << w << " x " << h;
        }
    }
}

TEST(VisionLaws, APictureAloneIsThePictureInAnyBatch) {
    for (const auto& [backend, isa] :
         {std::pair<const char*, const char*>{"ref", ""}, {"cpu", "avx2"}, {"cpu", ""}}) {
        Tower tower(backend, isa);
        if (!tower.ok()) continue;
        const PreparedImage a = tower.picture(100, 50, "a"), b = tower.picture(90, 230, "b"),
                            c = tower.picture(8192, 1, "c");
        const std::vector<bf16> alone_a = tower.alone(a), alone_b = tower.alone(b);
        const std::vector<EncoderPicture> batch = {
            Tower::view(c), Tower::view(a), Tower::view(b), Tower::view(a)};
        const std::vector<EncodedImage> packed = tower.encoder().encode(batch);
        EXPECT_TRUE(same(packed[1].rows, alone_a)) << backend << isa;
        EXPECT_TRUE(same(packed[2].rows, alone_b)) << backend << isa;
        EXPECT_TRUE(same(packed[3].rows, alone_a)) << backend << isa;
    }
}

TEST(VisionLaws, StagesAndThreadsDoNotMatter) {
    Tower one("cpu", "", 1), many("cpu", "", 3);
    const PreparedImage p = one.picture(300, 200, "stages");
    const std::vector<bf16> whole = many.alone(p);
    const EncoderPicture v = Tower::view(p);
    one.encoder().begin({&v, 1});
    int calls = 0;
    while (!one.encoder().advance(1)) ++calls;
    EXPECT_EQ(calls, one.encoder().num_stages() - 1);
    EXPECT_TRUE(one.encoder().busy());
    EXPECT_TRUE(same(one.encoder().take()[0].rows, whole));
    EXPECT_FALSE(one.encoder().busy());
}

TEST(VisionLaws, DelimitersStandBetweenTheRows) {
    Tower tower("cpu", "");
    const PreparedImage p = tower.picture(100, 50, "roles");
    const std::vector<bf16> rows = tower.alone(p);
    const std::vector<int32_t> roles = span_roles(p.plan);
    ASSERT_EQ(static_cast<int64_t>(roles.size()), p.plan.num_tokens());
    const auto row = [&](size_t i) { return rows.data() + i * 256; };
    const auto equal = [&](size_t i, size_t j) {
        return std::memcmp(row(i), row(j), 256 * sizeof(bf16)) == 0;
    };
    size_t newline = 0;
    for (size_t i = 0; i < roles.size(); ++i) {
        if (roles[i] != 2) continue;
        EXPECT_TRUE(newline == 0 || equal(i, newline));
        newline = i;
    }
    ASSERT_GT(newline, 0u);
    EXPECT_FALSE(equal(0, newline));
    EXPECT_FALSE(equal(0, roles.size() - 1));
    EXPECT_FALSE(equal(1, 2)) << "cells differ";
}

}  // namespace
}  // namespace deepinfer
