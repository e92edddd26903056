// SPDX-License-Identifier: Apache-2.0
// The safetensors format: u64 length of the header, the header in JSON, the tensors' bytes without holes.
// Readers take files and headers from anybody: everything is checked before it is believed.
#pragma once

#include "cli/tensor.hpp"

#include <map>

namespace headrace::cli {

struct SafetensorsEntry {
  TensorInfo info;
  std::uint64_t offset = 0;  ///< of its bytes, from the file's beginning
};

struct SafetensorsHeader {
  std::uint64_t bytes = 0;                      ///< of the header with its length: where the tensors begin
  std::map<std::string, std::string> metadata;  ///< `__metadata__`
  std::vector<SafetensorsEntry> tensors;        ///< by offset
};

/// Reads the header at the beginning of `file`, whose whole length is `file_bytes` (the rest need not be
/// there).
///   errors  corrupt (what is wrong, and of which tensor)
[[nodiscard]] Result<SafetensorsHeader> read_safetensors(std::span<const std::byte> file,
                                                         std::uint64_t file_bytes);

/// The `__metadata__` of a header that is all there; empty where it is not one.
[[nodiscard]] std::map<std::string, std::string> safetensors_metadata(std::span<const std::byte> header);

/// The header, with its length, of a file that holds the tensors one after the other.
///   errors  invalid_argument (a name that is not UTF-8 or stands twice, a type that the format lacks)
[[nodiscard]] Result<std::string> write_safetensors(std::span<const TensorInfo> tensors,
                                                    const std::map<std::string, std::string>& metadata);

}  // namespace headrace::cli
