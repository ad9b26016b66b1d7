#include "vision/image_plan.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr double kLowDetailSide = 512;

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

}  // namespace

ImageSize size_after_detail(ImageSize size, ImageDetail detail) {
    const int64_t longest = std::max(size.width, size.height);
    if (detail == ImageDetail::kHigh || longest <= static_cast<int64_t>(kLowDetailSide))
        return size;
    const double scale = kLowDetailSide / static_cast<double>(longest);
    const auto side = [&](int64_t n) {
        return std::max<int64_t>(1, std::llround(static_cast<double>(n) * scale));
    };
    return {side(size.width), side(size.height)};
}

ImagePlan plan_image(ImageSize size, const VisionConfig& c) {
    DI_CHECK(size.width >= 1 && size.height >= 1);
    const int64_t p = c.patch_size, r = c.downsample_ratio, limit = c.max_image_tokens;
    const double dp = static_cast<double>(p), cell = static_cast<double>(p * r);
    double w = static_cast<double>(size.width), h = static_cast<double>(size.height);
    ImagePlan plan;
    if (c.max_wh_ratio > 0) {
        plan.stretch = w >= h * c.max_wh_ratio;
        if (w > h * c.max_wh_ratio) w = h * c.max_wh_ratio;
    }
    const double min_pixels = static_cast<double>(c.min_pixels);
    if (w * h > 0 && w * h < min_pixels) {  // an area, not a side
        const double s = std::sqrt(min_pixels / (w * h));
        w = std::trunc(w * s);
        h = std::trunc(h * s);
    }
    int64_t bw = static_cast<int64_t>(std::ceil(w / dp)) * p,
            bh = static_cast<int64_t>(std::ceil(h / dp)) * p;
    const auto cells = [&] {
        plan.llm_h = ceil_div(bh / p, r);
        plan.llm_w = ceil_div(bw / p, r);
    };
    cells();
    if (plan.num_tokens() > limit) {
        const double aspect = h / w;
        const double fw = std::sqrt(static_cast<double>(limit - 2) / aspect + 0.25) - 0.5;
        const double fh = fw * aspect;
        // The two collapsed cases are not symmetric: every row ends in a NEWLINE.
        if (fw < 1) {
            bh = (limit - 2) / 2 * (p * r);
            bw = p * r;
        } else if (fh < 1) {
            bh = p * r;
            bw = (limit - 3) * (p * r);
        } else {
            const double b = std::min(std::floor(fw) * cell / w, std::floor(fh) * cell / h);
            bh = static_cast<int64_t>(std::floor(h * b / dp)) * p;
            bw = static_cast<int64_t>(std::floor(w * b / dp)) * p;
        }
        cells();
        DI_CHECK_LE(plan.num_tokens(), limit);
    }
    plan.target = {bw, bh};
    plan.grid_h = bh / p;
    plan.grid_w = bw / p;
    return plan;
}

std::vector<int32_t> span_roles(const ImagePlan& plan) {
    std::vector<int32_t> roles{0};
    for (int64_t y = 0; y < plan.llm_h; ++y) {
        roles.insert(roles.end(), static_cast<size_t>(plan.llm_w), 1);
        roles.push_back(2);
    }
    roles.push_back(3);
    return roles;
}

}  // namespace deepinfer
