// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_info.hpp"

#include "base/errors.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace headrace::formats {

Result<std::uint64_t> tensor_bytes(const ElementType& type, std::span<const std::uint64_t> shape) {
  if (shape.size() > most_dimensions)
    return make_error(Code::invalid_argument, "it has {} dimensions; the limit is {}", shape.size(),
                      most_dimensions);
  // A length of 0 makes the tensor empty, even if the product of the other lengths would overflow.
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return std::uint64_t{0};
  std::uint64_t bits = type.bits;
  for (const std::uint64_t length : shape)
    if (__builtin_mul_overflow(bits, length, &bits))
      return make_error(Code::invalid_argument, "shape [{}] is larger than any memory",
                        fmt::join(shape, ", "));
  if (bits % 8 != 0)
    return make_error(Code::invalid_argument, "shape [{}] of {} does not fill its last byte",
                      fmt::join(shape, ", "), type.name);
  return bits / 8;
}

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.type->name, fmt::join(tensor.shape, ", "));
}

}  // namespace headrace::formats
