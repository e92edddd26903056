// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_info.hpp"

#include "base/errors.hpp"
#include "formats/names.hpp"

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

Result<std::uint64_t> check_tensors(std::span<const TensorInfo> tensors) {
  std::uint64_t all = 0;
  for (const TensorInfo& tensor : tensors) {
    if (has_control_character(tensor.name))
      return make_error(Code::invalid_argument, "the name of tensor {} has a control character",
                        name_text(tensor.name));
    if (__builtin_add_overflow(all, tensor.bytes, &all) || all > most_file_bytes)
      return make_error(Code::invalid_argument,
                        "tensor \"{}\" of {} bytes is too large for the file: the limit of all is {} bytes",
                        tensor.name, tensor.bytes, most_file_bytes);
  }
  return all;
}

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.type->name, fmt::join(tensor.shape, ", "));
}

}  // namespace headrace::formats
