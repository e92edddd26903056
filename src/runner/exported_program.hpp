// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs from the exported program, where it was packed together with the compiled model:
// models/<model>.json.
//
// It is torch's own serialization, which carries a version; what is not as expected is left unknown rather
// than refused, since the model itself may run all the same.
#pragma once

#include "runner/io_spec.hpp"

#include <optional>
#include <string_view>

namespace headrace {

/// Nothing, if the program has inputs that are no tensors, or is of a form that is not known here.
[[nodiscard]] std::optional<IoSpec> read_exported_program(std::string_view json);

}  // namespace headrace
