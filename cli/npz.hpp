// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz format: a zip archive of .npy members. The reader trusts no archive: it checks every length.
#pragma once

#include "cli/tensor.hpp"

namespace headrace::cli {

/// An array of an archive. `bytes` is a range of the file if the member is uncompressed, else of `inflated`.
struct NpzArray {
  TensorInfo info;
  std::span<const std::byte> bytes;
  std::vector<std::byte> inflated;
};

/// Reads all members of the archive at `path`, whose bytes are `file`.
///   owns    the result refers to `file`, which must stay
///   errors  corrupt, not_supported (encrypted, another compression, those of read_npy): with the member's
///   name
[[nodiscard]] Result<std::vector<NpzArray>> read_npz(const std::string& path,
                                                     std::span<const std::byte> file);

/// The layout of an archive whose members are uncompressed.
class NpzLayout {
 public:
  ///   errors  invalid_argument (a type that NumPy lacks, a name that is too long)
  static Result<NpzLayout> plan(std::span<const TensorInfo> tensors);

  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const {
    return offsets_;
  }  ///< of each tensor's elements
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

}  // namespace headrace::cli
