#include "engine/sequence_images.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

Status over(const std::string& what, int64_t found, int64_t most) {
    return Status(StatusCode::kOutOfRange,
                  what + " is " + std::to_string(found) + ", at most " + std::to_string(most));
}

std::string of_picture(size_t i) {
    return "images[" + std::to_string(i) + "]: ";
}

}  // namespace

const SequenceImage* SequenceImages::at(int64_t position) const {
    if (position >= end()) return nullptr;
    const auto it = std::upper_bound(
        spans.begin(), spans.end(), position, [](int64_t p, const SequenceImage& s) {
            return p < s.end;
        });
    return it != spans.end() && position >= it->begin ? &*it : nullptr;
}

std::shared_ptr<const SequenceImages> SequenceImages::places() const {
    auto places = std::make_shared<SequenceImages>();
    places->spans = spans;
    for (SequenceImage& s : places->spans) s.picture = nullptr;
    return places;
}

bool SequenceImages::same_places(const SequenceImages& o) const {
    return std::equal(spans.begin(),
                      spans.end(),
                      o.spans.begin(),
                      o.spans.end(),
                      [](const SequenceImage& a, const SequenceImage& b) {
                          return a.begin == b.begin && a.end == b.end && a.key == b.key;
                      });
}

std::vector<ImageSpan> SequenceImages::cache_spans() const {
    std::vector<ImageSpan> out;
    for (const SequenceImage& s : spans) out.push_back({s.begin, s.end, s.picture->digest});
    return out;
}

Result<ExpandedPrompt> expand_images(const Request& request,
                                     const VisionConfig& config,
                                     int32_t image_token_id,
                                     const ImageLimits& limits,
                                     int64_t* max_side) {
    const auto& images = request.images;
    const auto count = static_cast<int64_t>(images.size());
    const int64_t placeholders = std::count(
        request.prompt_token_ids.begin(), request.prompt_token_ids.end(), image_token_id);
    if (placeholders != count) {
        return Status(StatusCode::kInvalidArgument,
                      "the prompt holds " + std::to_string(placeholders) + " image tokens (id " +
                          std::to_string(image_token_id) + "), but there are " +
                          std::to_string(count) + " images");
    }
    if (count > limits.max_images) return over("the number of images", count, limits.max_images);
    int64_t total = 0;
    for (size_t i = 0; i < images.size(); ++i) {
        const auto bytes = static_cast<int64_t>(images[i].encoded.size());
        if (bytes > limits.max_image_bytes)
            return over(of_picture(i) + "its size in bytes", bytes, limits.max_image_bytes);
        total += bytes;
    }
    if (total > limits.max_request_bytes)
        return over("the size of all images in bytes", total, limits.max_request_bytes);
    *max_side = count >= limits.many ? limits.max_side_of_many : limits.max_side;

    ExpandedPrompt out;
    size_t next = 0;
    for (const int32_t id : request.prompt_token_ids) {
        if (id != image_token_id) {
            out.token_ids.push_back(id);
            continue;
        }
        const Result<ImagePlan> plan = plan_input(images[next], config, *max_side);
        if (!plan.ok())
            return Status(plan.status().code(), of_picture(next) + plan.status().message());
        SequenceImage span;
        span.plan = plan.value();
        span.begin = static_cast<int64_t>(out.token_ids.size());
        span.end = span.begin + span.plan.num_tokens();
        out.token_ids.resize(static_cast<size_t>(span.end), image_token_id);
        out.images.spans.push_back(std::move(span));
        ++next;
    }
    return out;
}

void attach_images(PreparedImages prepared,
                   const std::string& tenant,
                   const std::string& salt,
                   SequenceImages* images) {
    DI_CHECK_EQ(prepared.images.size(), images->spans.size());
    const CacheKey scope = salt_id("pictures", tenant, salt);
    for (size_t i = 0; i < prepared.images.size(); ++i) {
        SequenceImage& s = images->spans[i];
        s.picture = std::move(prepared.images[i]);
        s.key.assign(s.picture->digest.begin(), s.picture->digest.end());
        s.key.append(scope.begin(), scope.end());
    }
    images->lease = std::move(prepared.lease);
}

}  // namespace deepinfer
