// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy format: a magic word, a header in Python's syntax, the elements.
#pragma once

#include "formats/tensor_info.hpp"

namespace headrace::formats {

struct NpyHeader {
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t header_bytes = 0;  ///< the elements begin after them
  std::uint64_t data_bytes = 0;
};

/// Reads the header at the beginning of `file`, which may be longer.
///   errors  corrupt, not_supported (objects, structures, big-endian, Fortran order; the text says what to
///   do)
[[nodiscard]] Result<NpyHeader> read_npy(std::span<const std::byte> file);

/// The header of a tensor whose type NumPy has, padded so that the elements begin at a multiple of 64.
[[nodiscard]] std::string write_npy(const TensorInfo& tensor);

}  // namespace headrace::formats
