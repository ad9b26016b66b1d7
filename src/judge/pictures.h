// Pictures for the judge: files to encoded spans, spans to their places among the tokens, and the
// picture path itself with every intermediate.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/image.h"
#include "judge/sequence.h"
#include "judge/tensor_file.h"
#include "model/vision_encoder.h"

namespace deepinfer {

/// A picture file, or a safetensors file with rgb U8 [h, w, 3]. kNotFound, kInvalidFile.
Result<ImageInput> read_picture(const std::string& path);
/// rgb U8 [h, w, 3] of a file.
Result<ImageInput> picture_of(const TensorMap& file, const std::string& path);

/// Encodes the pictures, each alone.
Result<std::vector<EncodedImage>> encode_pictures(const std::vector<std::string>& paths,
                                                  const Checkpoint& checkpoint,
                                                  Backend& backend);

/// Places of the spans: the k-th run of image tokens in `ids` is picture k's. kInvalidFile if their
/// number or lengths do not fit, or if `token_types` (may be null) says otherwise.
Result<std::vector<LoneSequence::Span>> place_spans(const std::vector<int32_t>& ids,
                                                    int32_t image_token_id,
                                                    const std::vector<EncodedImage>& images,
                                                    const NamedTensor* token_types,
                                                    const std::string& where);

/// The picture path up to the aligner's rows: padded, grid, patches, patch_embed, block{i}, tower,
/// rows, token_types.
Result<TensorMap> picture_run(const TensorMap& file,
                              const std::string& path,
                              const Checkpoint& checkpoint,
                              Backend& backend);

}  // namespace deepinfer
