// SPDX-License-Identifier: Apache-2.0
// The table of contents of a zip archive whose members are stored plainly, as torch writes them.
//
// Read without the members: the directory at the end says names, lengths and checksums of them all, which
// makes it, with the file's size, a key for what is in the archive that costs nothing to make.
#pragma once

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct ZipMember {
  std::string name;  ///< "model/data/x.so"; never absolute, never with ".."
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t header_offset = 0;  ///< of its local header
};

struct ZipDirectory {
  std::uint64_t file_bytes = 0;
  std::uint64_t hash = 0;  ///< of the directory's own bytes
  std::vector<ZipMember> members;

  /// Reads bytes of the archive: as many as the span holds, from that offset.
  using Reader = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> into)>;

  /// Everything is checked before it is believed: archives come from anybody.
  ///   errors  corrupt (not an archive, cut off, or damaged: how), not_supported (compressed or encrypted
  ///   members)
  [[nodiscard]] static Result<ZipDirectory> read(std::uint64_t file_bytes, const Reader& reader);

  [[nodiscard]] const ZipMember* find(std::string_view name) const;
  /// Where a member's own bytes begin, behind its local header.
  [[nodiscard]] Result<std::uint64_t> data_offset(const ZipMember& member, const Reader& reader) const;
};

/// Reads a file at offsets.
class FileReader {
 public:
  ///   errors  not_found, and what the system says
  [[nodiscard]] static Result<FileReader> open(const std::string& path);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t changed_ns() const {
    return changed_ns_;
  }  ///< when the file was last written to
  [[nodiscard]] int descriptor() const { return file_.get(); }
  ///   errors  corrupt (the file ends before), and what the system says
  [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  UniqueFd file_;
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::int64_t changed_ns_ = 0;
};

}  // namespace headrace
