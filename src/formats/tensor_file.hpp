// SPDX-License-Identifier: Apache-2.0
// A safetensors or .npz file, open for reading.
#pragma once

#include "formats/mapped_file.hpp"
#include "formats/npz.hpp"
#include "formats/tensor_info.hpp"

#include <optional>

namespace headrace::formats {

enum class FileFormat { safetensors, npz };

/// The format, from the end of the file's name.
///   errors  invalid_argument
[[nodiscard]] Result<FileFormat> format_of(const std::string& path);

class TensorFile {
 public:
  struct Tensor {
    TensorInfo info;
    std::span<const std::byte> bytes;
  };

  ///   errors  not_found, corrupt, not_supported: with the file's name
  static Result<TensorFile> open(const std::string& path);

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The length and header of a safetensors file, byte for byte; empty for an .npz.
  [[nodiscard]] std::span<const std::byte> header() const { return header_; }
  [[nodiscard]] std::uint64_t bytes() const;  ///< of all tensors

 private:
  explicit TensorFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<NpzArray> arrays_;
  std::vector<Tensor> tensors_;
  std::span<const std::byte> header_;
};

}  // namespace headrace::formats
