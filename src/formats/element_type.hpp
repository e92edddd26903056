// SPDX-License-Identifier: Apache-2.0
// The element types that files of tensors have, and the name of each in each format.
#pragma once

#include <string_view>

namespace headrace::formats {

/// An element type. The name is the one of safetensors.
struct ElementType {
  std::string_view name;  ///< "BF16"
  unsigned bits;
  std::string_view npy;  ///< NumPy's spelling, little-endian: "<f4"; empty: NumPy has none
  bool safetensors;      ///< whether safetensors has it
};

/// The type of that name, or null.
[[nodiscard]] const ElementType* element_type(std::string_view name);
/// The type of that NumPy spelling, or null.
[[nodiscard]] const ElementType* element_type_from_npy(std::string_view descr);

}  // namespace headrace::formats
