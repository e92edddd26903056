// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/common/tensor_note.hpp"

namespace headrace::cli {

/// A tensor as a peer serves it, with a region and a checksum of its own.
inline ServedTensor served(const std::string& name, const char* type, std::vector<std::uint64_t> shape,
                           std::uint64_t index) {
  ServedTensor tensor{{name, formats::element_type(type), std::move(shape), 0},
                      0x1234 + index,
                      index,
                      RegionId{static_cast<std::uint32_t>(index + 1)}};
  tensor.info.bytes = formats::tensor_bytes(*tensor.info.type, tensor.info.shape).value();
  return tensor;
}

inline std::vector<std::string> names_of(const std::vector<ServedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& tensor : tensors) names.push_back(tensor.info.name);
  return names;
}

}  // namespace headrace::cli
