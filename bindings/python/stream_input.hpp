// SPDX-License-Identifier: Apache-2.0
// Reads a CUDA stream argument.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace headrace::python {

/// The stream of a torch.cuda.Stream, or of the number of a CUDA stream (0: the default stream). Raises
/// InvalidArgument.
void* to_stream(nb::handle given);

}  // namespace headrace::python
