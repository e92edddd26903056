// SPDX-License-Identifier: Apache-2.0
// An .npy file, open for reading.
#pragma once

#include "formats/mapped_file.hpp"
#include "formats/tensor_info.hpp"

namespace headrace::formats {

class NpyFile {
 public:
  ///   errors  not_found, corrupt, not_supported: with the file's name
  static Result<NpyFile> open(const std::string& path);

  /// The tensor's name is the file's without ".npy".
  [[nodiscard]] const TensorInfo& info() const { return info_; }
  /// The elements.
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  NpyFile(MappedFile file, TensorInfo info, std::span<const std::byte> bytes)
      : file_(std::move(file)), info_(std::move(info)), bytes_(bytes) {}

  MappedFile file_;
  TensorInfo info_;
  std::span<const std::byte> bytes_;  ///< of file_
};

}  // namespace headrace::formats
