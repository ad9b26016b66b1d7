// Conversion of a body that is parsed already.
#pragma once

#include "recipe/convert_common.h"

namespace deepinfer::recipe {

ConvertResult convert_body(Protocol protocol, const Json& body, const ConvertOptions& options);

}  // namespace deepinfer::recipe
