// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz: a zip archive of .npy members. Readers take archives from anybody.
#pragma once

#include "cli/tensor.hpp"

namespace headrace::cli {

/// An array of an archive: bytes of the file where they are stored plainly, else bytes that were inflated.
struct NpzArray {
  TensorInfo info;
  std::span<const std::byte> bytes;
  std::vector<std::byte> inflated;
};

/// Reads all members of the archive at `path`, whose bytes are `file`: those are referred to, and have to
/// stay.
///   errors  corrupt, not_supported (encrypted, another compression, what read_npy says: which member)
[[nodiscard]] Result<std::vector<NpzArray>> read_npz(const std::string& path,
                                                     std::span<const std::byte> file);

/// Where everything comes to lie in an archive whose members are stored plainly.
class NpzLayout {
 public:
  ///   errors  invalid_argument (a type that NumPy lacks, a name that is too long)
  static Result<NpzLayout> plan(std::span<const TensorInfo> tensors);

  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const {
    return offsets_;
  }  ///< of each tensor's elements
  /// Writes all but the elements into `file`, once those are there: checksums are made of them.
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
