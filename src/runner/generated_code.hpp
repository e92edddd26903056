// SPDX-License-Identifier: Apache-2.0
// Inputs from the C++ that AOTInductor generated, where it was left in the package: the function
// check_input_N of each input holds its type, lengths, bounds and strides. They are off unless a variable of
// the environment is set, so nobody else looks at them.
#pragma once

#include "runner/io_spec.hpp"

#include <optional>
#include <string_view>

namespace headrace {

/// Nothing, if the text is not as torch 2.11 to 2.13 write it. A lower bound of 2 is read as 1: the compiler
/// puts it there for itself whatever the export allowed, and a batch of one runs.
[[nodiscard]] std::optional<IoSpec> read_generated_code(std::string_view code);

/// How many inputs and outputs the generated code says that it has.
struct InputOutputCount {
  std::size_t inputs = 0, outputs = 0;
};
[[nodiscard]] std::optional<InputOutputCount> read_counts(std::string_view code);

}  // namespace headrace
