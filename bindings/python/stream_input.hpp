// SPDX-License-Identifier: Apache-2.0
// A stream of a GPU as Python gives it.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace headrace::python {

/// Of a torch.cuda.Stream, or of the number of a CUDA stream, of which 0 is the default one. Raises
/// InvalidArgument.
void* to_stream(nb::handle given);

}  // namespace headrace::python
