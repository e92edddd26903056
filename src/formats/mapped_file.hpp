// SPDX-License-Identifier: Apache-2.0
// Maps a file's bytes, read-only and private. If another process truncates the file, reading ends this
// process with SIGBUS: do not write to files that are served.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace headrace::formats {

class MappedFile {
 public:
  ///   errors  not_found (no such file), invalid_argument (not a regular file, empty), exhausted
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace headrace::formats
