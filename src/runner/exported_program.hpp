// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs from the exported program, if it was packed together with the compiled model:
// models/<model>.json.
//
// The format is torch's own serialization, which has a version. Unexpected parts are left unknown and not
// refused: the model itself may run all the same.
#pragma once

#include "runner/io_spec.hpp"

#include <optional>
#include <string_view>

namespace headrace {

/// Nullopt if the program has inputs that are not tensors, or has an unknown form.
[[nodiscard]] std::optional<IoSpec> read_exported_program(std::string_view json);

}  // namespace headrace
