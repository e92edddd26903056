// SPDX-License-Identifier: Apache-2.0
// Writes NumPy's .npz format. The layout is known before the elements, which may be written into their places
// in any order.
#pragma once

#include "formats/tensor_info.hpp"

namespace headrace::formats {

/// The layout of an archive whose members are uncompressed.
class NpzLayout {
 public:
  ///   errors  invalid_argument (a type that NumPy lacks, a name that is too long), those of check_tensors
  static Result<NpzLayout> plan(std::span<const TensorInfo> tensors);

  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  /// Of each tensor's elements.
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const { return offsets_; }
  /// Writes everything but the elements into `file`. The elements must be there: it computes their checksums.
  void finish(std::span<std::byte> file) const;

 private:
  struct Member {
    std::string name;  ///< "weight.npy"
    std::string npy;   ///< its header
    std::uint64_t data_bytes = 0;
    std::uint64_t header_offset = 0;
  };
  std::vector<Member> members_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t directory_offset_ = 0, file_bytes_ = 0;
};

}  // namespace headrace::formats
