// SPDX-License-Identifier: Apache-2.0
// The table of contents of a zip archive with stored (uncompressed) members, as torch writes it.
//
// Read without the members: the directory at the end has names, lengths and checksums of all. Its hash, with
// the file's size, is a cheap key of the archive's content.
#pragma once

#include "base/errors.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace headrace::formats {

struct ZipMember {
  std::string name;  ///< "model/data/x.so"; never absolute, without ".." and control characters
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t header_offset = 0;  ///< of its local header
};

struct ZipDirectory {
  std::uint64_t file_bytes = 0;
  std::uint64_t hash = 0;  ///< of the directory's bytes
  std::vector<ZipMember> members;

  /// Reads as many bytes as the span has, from `offset` of the archive.
  using Reader = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> into)>;

  /// Checks everything: an archive may come from anywhere.
  ///   errors  corrupt (not an archive, cut off, or damaged: how), not_supported (compressed or encrypted
  ///           members)
  [[nodiscard]] static Result<ZipDirectory> read(std::uint64_t file_bytes, const Reader& reader);

  [[nodiscard]] const ZipMember* find(std::string_view name) const;
  /// The offset of a member's bytes, after its local header.
  [[nodiscard]] Result<std::uint64_t> data_offset(const ZipMember& member, const Reader& reader) const;
};

}  // namespace headrace::formats
