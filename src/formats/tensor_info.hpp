// SPDX-License-Identifier: Apache-2.0
// The description of a tensor in a file: name, element type, shape and number of bytes.
#pragma once

#include <headrace/result.hpp>

#include "formats/element_type.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::formats {

struct TensorInfo {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;  ///< follows from type and shape
};

inline constexpr std::size_t most_dimensions = 64;
/// A quarter of what 64 bits can count: so no offset in a file wraps, with any gaps between the tensors.
inline constexpr std::uint64_t most_file_bytes = std::uint64_t{1} << 62;

/// The number of bytes of a tensor of that type and shape.
///   errors  invalid_argument (too many dimensions or bytes, a last byte that is not full)
[[nodiscard]] Result<std::uint64_t> tensor_bytes(const ElementType& type,
                                                 std::span<const std::uint64_t> shape);
/// The number of bytes of all tensors of a file that is to be written.
///   errors  invalid_argument (they exceed most_file_bytes; a name has a control character): with the
///           tensor's name
[[nodiscard]] Result<std::uint64_t> check_tensors(std::span<const TensorInfo> tensors);
/// "BF16 [4096, 1024]".
[[nodiscard]] std::string shape_text(const TensorInfo& tensor);

}  // namespace headrace::formats
