// SPDX-License-Identifier: Apache-2.0
// The safetensors format: u64 length of the header, the header in JSON, the tensors' bytes without gaps. The
// readers trust no file and no header: they check every field before they use it.
#pragma once

#include "formats/tensor_info.hpp"

#include <map>

namespace headrace::formats {

struct SafetensorsEntry {
  TensorInfo info;
  std::uint64_t offset = 0;  ///< of its bytes, counted from the beginning of the file
};

struct SafetensorsHeader {
  std::uint64_t bytes = 0;  ///< of the length and the header; the tensors begin after them
  std::map<std::string, std::string> metadata;  ///< `__metadata__`
  std::vector<SafetensorsEntry> tensors;        ///< sorted by offset
};

/// Reads the header at the beginning of `file`. `file_bytes` is the length of the whole file; `file` may end
/// after the header.
///   errors  corrupt (the text names the tensor)
[[nodiscard]] Result<SafetensorsHeader> read_safetensors(std::span<const std::byte> file,
                                                         std::uint64_t file_bytes);

/// The `__metadata__` of a whole header; empty if the bytes are not a header.
[[nodiscard]] std::map<std::string, std::string> safetensors_metadata(std::span<const std::byte> header);

/// The header, with its length, of a file that holds the tensors one after the other.
///   errors  invalid_argument (a name that is not UTF-8 or occurs twice, a type that the format lacks), those
///           of check_tensors
[[nodiscard]] Result<std::string> write_safetensors(std::span<const TensorInfo> tensors,
                                                    const std::map<std::string, std::string>& metadata);

}  // namespace headrace::formats
