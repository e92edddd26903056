// SPDX-License-Identifier: Apache-2.0
// A regular file that is read at offsets.
#pragma once

#include "base/errors.hpp"
#include "base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headrace::formats {

class FileReader {
 public:
  ///   errors  not_found, and those of the system
  [[nodiscard]] static Result<FileReader> open(const std::string& path);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// The time of the last write to the file.
  [[nodiscard]] std::int64_t changed_ns() const { return changed_ns_; }
  [[nodiscard]] int descriptor() const { return file_.get(); }
  ///   errors  corrupt (the file ends earlier), and those of the system
  [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  UniqueFd file_;
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::int64_t changed_ns_ = 0;
};

}  // namespace headrace::formats
