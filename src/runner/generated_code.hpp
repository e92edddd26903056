// SPDX-License-Identifier: Apache-2.0
// Inputs from the C++ code that AOTInductor generated, if it was kept in the package. The function
// check_input_N of each input contains its type, lengths, bounds and strides. The compiled checks are off
// unless a variable of the environment is set.
#pragma once

#include "runner/io_spec.hpp"

#include <optional>
#include <string_view>

namespace headrace {

/// Nullopt if the text is not in the form of torch 2.11 to 2.13. A lower bound of 2 is read as 1: the
/// compiler writes 2 for its own reasons, even if the export allowed 1, and a batch of one runs.
[[nodiscard]] std::optional<IoSpec> read_generated_code(std::string_view code);

/// The number of inputs and outputs in the generated code.
struct InputOutputCount {
  std::size_t inputs = 0, outputs = 0;
};
[[nodiscard]] std::optional<InputOutputCount> read_counts(std::string_view code);

}  // namespace headrace
