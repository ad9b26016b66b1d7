#include "vision/image_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/golden_file.h"
#include "support/seeded_random.h"
#include "support/vision_geometry.h"

namespace deepinfer::testing {
namespace {

using nlohmann::json;

const auto released = released_vision, nano = nano_vision;

json read_json(const std::string& relative) {
    std::ifstream f(data_path(relative));
    return json::parse(f);
}

std::vector<int64_t> numbers(const ImagePlan& p) {
    return {p.target.width, p.target.height, p.grid_h, p.grid_w, p.llm_h, p.llm_w};
}

VisionConfig tiny() {
    VisionConfig c = released();
    c.patch_size = 2;
    c.min_pixels = 0;
    return c;
}
/// The one before this model: a bound on the shape, fewer tokens.
VisionConfig with_ratio() {
    VisionConfig c = released();
    c.max_image_tokens = 384;
    c.min_pixels = 147456;
    c.max_wh_ratio = 8;
    return c;
}

TEST(ImagePlan, EqualsTheReferenceVectors) {
    const std::map<std::string, VisionConfig> configs = {
        {"release", released()}, {"nano", nano()}, {"small", tiny()}, {"wh_ratio", with_ratio()}};
    const json file = read_json("unit/image_plans.json");
    ASSERT_EQ(file.size(), configs.size());
    for (const auto& [name, config] : configs) {
        const json& rows = file.at(name);
        ASSERT_GE(rows.size(), 80u);
        for (const json& r : rows) {
            const ImagePlan plan = plan_image({r[0].get<int64_t>(), r[1].get<int64_t>()}, config);
            const std::vector<int64_t> want = {r[2], r[3], r[4], r[5], r[6], r[7]};
            EXPECT_EQ(numbers(plan), want) << name << " " << r[0] << " x " << r[1];
        }
    }
}

TEST(ImagePlan, EqualsTheHandedCases) {
    int64_t count = 0;
    for (const json& c : read_json("cases/vision.json")) {
        if (c["id"] != "C-078") continue;
        for (const json& row : c["rows"]) {
            if (!row["want"].contains("target")) continue;
            const json &in = row["in"], &want = row["want"];
            const bool small = in.value("config", "") == "nano";
            const ImagePlan p =
                plan_image({in["size"][0], in["size"][1]}, small ? nano() : released());
            EXPECT_EQ(json({p.target.width, p.target.height}), want["target"]) << row;
            EXPECT_EQ(json({p.grid_h, p.grid_w}), want["patch_grid"]) << row;
            EXPECT_EQ(json({p.llm_h, p.llm_w}), want["llm_grid"]) << row;
            EXPECT_EQ(p.num_tokens(), want["tokens"].get<int64_t>()) << row;
            ++count;
        }
    }
    EXPECT_EQ(count, 19);
}

TEST(ImagePlan, SmallConfigOfTheSpec) {
    EXPECT_EQ(numbers(plan_image({6, 6}, tiny())), (std::vector<int64_t>{6, 6, 3, 3, 1, 1}));
    EXPECT_EQ(numbers(plan_image({14, 8}, tiny())), (std::vector<int64_t>{14, 8, 4, 7, 2, 3}));
}

TEST(ImagePlan, NeverMoreTokensAndNeverDistorted) {
    SeededRandom random("plans");
    for (int i = 0; i < 20000; ++i) {
        const ImageSize size{1 + random.below(8192), 1 + random.below(8192)};
        const ImagePlan p = plan_image(size, released());
        ASSERT_LE(p.num_tokens(), 1024);
        ASSERT_GE(p.num_tokens(), 4);
        ASSERT_EQ(p.target.width, p.grid_w * 14);
        ASSERT_EQ(p.target.height, p.grid_h * 14);
        ASSERT_EQ(p.llm_h, (p.grid_h + 2) / 3);
        ASSERT_EQ(p.llm_w, (p.grid_w + 2) / 3);
        const auto w = static_cast<double>(size.width), h = static_cast<double>(size.height);
        if (w > 40 * h || h > 40 * w) continue;  // collapsed to one row or column
        // The side that the other one asks for is at most two patches away.
        const double wanted = static_cast<double>(p.target.width) * h / w;
        ASSERT_LE(std::abs(wanted - static_cast<double>(p.target.height)),
                  28.0 * std::max(1.0, h / w) + 28.0)
            << size.width << " x " << size.height;
    }
}

TEST(ImagePlan, AnyTokenLimitFrom4) {
    VisionConfig c = released();
    for (c.max_image_tokens = 4; c.max_image_tokens < 40; ++c.max_image_tokens) {
        for (const ImageSize size : {ImageSize{1, 1}, {640, 480}, {8192, 1}, {1, 8192}, {500, 900}})
            EXPECT_LE(plan_image(size, c).num_tokens(), c.max_image_tokens);
    }
}

TEST(ImagePlan, LowDetailShrinksTheLongSideTo512) {
    EXPECT_EQ(size_after_detail({2500, 2000}, ImageDetail::kLow), (ImageSize{512, 410}));
    EXPECT_EQ(size_after_detail({1, 8192}, ImageDetail::kLow), (ImageSize{1, 512}));
    EXPECT_EQ(size_after_detail({512, 300}, ImageDetail::kLow), (ImageSize{512, 300}));
    EXPECT_EQ(size_after_detail({2500, 2000}, ImageDetail::kHigh), (ImageSize{2500, 2000}));
    const ImageSize low = size_after_detail({2500, 2000}, ImageDetail::kLow);
    EXPECT_EQ(plan_image(low, released()).num_tokens(), 194);
}

TEST(ImagePlan, WideBeyondTheRatioIsStretched) {
    VisionConfig c = released();
    c.max_wh_ratio = 8;
    EXPECT_FALSE(plan_image({799, 100}, c).stretch);
    EXPECT_TRUE(plan_image({800, 100}, c).stretch);
    EXPECT_EQ(plan_image({8000, 100}, c).target, plan_image({800, 100}, c).target);
}

TEST(ImagePlan, RolesOfASpan) {
    ImagePlan p;
    p.llm_h = 2;
    p.llm_w = 3;
    EXPECT_EQ(span_roles(p), (std::vector<int32_t>{0, 1, 1, 1, 2, 1, 1, 1, 2, 3}));
}

}  // namespace
}  // namespace deepinfer::testing
