// SPDX-License-Identifier: Apache-2.0
// A file with tensors, of either format, open for reading.
#pragma once

#include "cli/mapped_file.hpp"
#include "cli/npz.hpp"
#include "cli/tensor.hpp"

#include <optional>

namespace headrace::cli {

enum class FileFormat { safetensors, npz };

/// By the name's end.
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
  /// A safetensors file's header with its length, byte for byte; empty for others.
  [[nodiscard]] std::span<const std::byte> header() const { return header_; }
  [[nodiscard]] std::uint64_t bytes() const;  ///< of all tensors

 private:
  explicit TensorFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<NpzArray> arrays_;
  std::vector<Tensor> tensors_;
  std::span<const std::byte> header_;
};

}  // namespace headrace::cli
