// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "formats/tensor_info.hpp"

namespace headrace::formats {

/// The description of a tensor whose type and shape are possible.
inline TensorInfo named_tensor(const char* name, const char* type, std::vector<std::uint64_t> shape) {
  TensorInfo info{name, element_type(type), std::move(shape), 0};
  info.bytes = tensor_bytes(*info.type, info.shape).value();
  return info;
}

}  // namespace headrace::formats
