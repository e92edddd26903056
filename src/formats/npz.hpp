// SPDX-License-Identifier: Apache-2.0
// Reads NumPy's .npz format: a zip archive of .npy members. The reader trusts no archive: it checks every
// length.
#pragma once

#include "formats/tensor_info.hpp"

#include <string_view>

namespace headrace::formats {

/// The end of each member's name.
inline constexpr std::string_view npz_suffix = ".npy";
inline constexpr std::size_t longest_npz_name = 4096;

/// An array of an archive. `bytes` is a range of the file if the member is uncompressed, else of `inflated`.
struct NpzArray {
  TensorInfo info;
  std::span<const std::byte> bytes;
  std::vector<std::byte> inflated;
};

/// Reads all members of an archive.
///   owns    the result refers to `file`, which must stay
///   errors  corrupt, not_supported (encrypted, another compression, those of read_npy): with the member's
///           name
[[nodiscard]] Result<std::vector<NpzArray>> read_npz(std::span<const std::byte> file);

}  // namespace headrace::formats
