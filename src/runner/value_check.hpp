// SPDX-License-Identifier: Apache-2.0
// Checks the values of inputs that a model uses as indices. Compiled code checks them inside a parallel
// region, and ends the process if one is out of range.
#pragma once

#include <headrace/model.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

/// The first value that is out of range.
struct Outside {
  std::int64_t element = 0;  ///< its number in row-major order
  std::string value;
};

/// Looks at every element of a tensor in host memory; nullopt: all are in range, or it has no integers.
[[nodiscard]] std::optional<Outside> find_outside(const TensorView& view, ValueRange range);

}  // namespace headrace
