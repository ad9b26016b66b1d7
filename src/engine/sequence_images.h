// SequenceImages: the pictures of a request, at their places among its tokens.
//
// The mask "inside a picture" travels by position, never by id: a generated token that happens to
// be the image token is text (vision spec 7.2).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deepinfer/request.h"
#include "kvcache/cache_key.h"
#include "vision/multimodal_processor.h"

namespace deepinfer {

/// One picture and its positions [begin, end).
struct SequenceImage {
    int64_t begin = 0, end = 0;
    ImagePlan plan;
    std::shared_ptr<const PreparedImage> picture;  ///< null until it is prepared
    /// Identity in the encoder cache: the picture's digest within the request's tenant and salt, so
    /// that no tenant can time another one's pictures.
    std::string key;
};

class SequenceImages {
  public:
    std::vector<SequenceImage> spans;  ///< ascending, disjoint
    std::shared_ptr<void> lease;       ///< on the processor's bytes

    /// The picture at this position, null for text.
    const SequenceImage* at(int64_t position) const;
    /// One past the last span.
    int64_t end() const { return spans.empty() ? 0 : spans.back().end; }
    /// Positions and keys alone, without pictures and lease: what the executor's slots may keep,
    /// which forget a sequence only when the next one takes the slot.
    std::shared_ptr<const SequenceImages> places() const;
    /// The same pictures at the same positions.
    bool same_places(const SequenceImages& o) const;
    /// What the keys of prefix blocks need.
    std::vector<ImageSpan> cache_spans() const;
};

/// A request's prompt with each image token replaced by its picture's span.
struct ExpandedPrompt {
    std::vector<int32_t> token_ids;
    SequenceImages images;  ///< planned, not prepared
};

/// Checks the pictures' number, bytes and headers, plans them and expands the prompt. Headers alone
/// are read. `max_side` gets the bound that decoding has to keep. kInvalidArgument: pictures and
/// image tokens do not fit together, or a broken header; kOutOfRange: a limit, with both numbers.
Result<ExpandedPrompt> expand_images(const Request& request,
                                     const VisionConfig& config,
                                     int32_t image_token_id,
                                     const ImageLimits& limits,
                                     int64_t* max_side);

/// Puts the prepared pictures in and names them. `tenant` and `salt` as in the request.
void attach_images(PreparedImages prepared,
                   const std::string& tenant,
                   const std::string& salt,
                   SequenceImages* images);

}  // namespace deepinfer
