// What the parts of the Python module share.
//
// The rule of the module: no engine thread ever takes Python's interpreter lock. Callbacks put what
// they get into a Mailbox (mailbox.h); Python collects it, with the lock released while it waits.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/image.h"
#include "deepinfer/recipe.h"
#include "engine_handle.h"
#include "mailbox.h"

namespace deepinfer::python {

namespace nb = nanobind;

/// A rendered conversation: the ids to continue, and how the answer is to be read.
struct ChatPrompt {
    StructuredOutputArgs constraint;  ///< response format, strict tools, or the parameters' own
    std::vector<int32_t> prompt_token_ids;
    std::vector<ImageInput> images;  ///< one per image token of the prompt
    recipe::ParsingOptions parsing;
};

/// [("call", index, name), ("arguments", index, text), ("reasoning", text) …] as Python sees them.
nb::list deltas_to_python(const std::vector<recipe::Delta>& deltas);

void bind_engine(nb::module_& module);
void bind_text(nb::module_& module);

}  // namespace deepinfer::python
