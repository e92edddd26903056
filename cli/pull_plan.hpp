// SPDX-License-Identifier: Apache-2.0
// What is pulled, and where in the output file each of its bytes goes.
#pragma once

#include "cli/npz.hpp"
#include "cli/safetensors.hpp"
#include "cli/tensor_file.hpp"
#include "cli/tensor_note.hpp"

#include <optional>

namespace headrace::cli {

/// The tensors that the names and patterns ask for, in the file's order, each once; no names: all.
///   errors  not_found (a name or pattern that fits none; near names)
[[nodiscard]] Result<std::vector<ServedTensor>> select_tensors(const std::vector<ServedTensor>& served,
                                                               const std::vector<std::string>& wanted);

class PullPlan {
 public:
  /// `source_header` is the header of the served safetensors file, or empty. A copy of a whole safetensors
  /// file takes it over as it is; else a header is made, with the metadata of the source's.
  static Result<PullPlan> make(std::vector<ServedTensor> tensors, FileFormat format,
                               std::string_view source_header);

  [[nodiscard]] const std::vector<ServedTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const {
    return offsets_;
  }  ///< of each tensor in the file
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t tensor_bytes() const;
  /// Stands for all of this: another source, selection or format has another.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// Whether the file is just what this plan would make: the same tensors in the same order, each with the
  /// checksum that is served, under the same header.
  [[nodiscard]] bool has_made(const TensorFile& file) const;
  /// Writes what can be written before the tensors are there, and what needs them.
  void write_head(std::span<std::byte> file) const;
  void write_rest(std::span<std::byte> file) const;

 private:
  Result<void> lay_out_safetensors(std::string_view source_header);

  std::vector<ServedTensor> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t file_bytes_ = 0;
  std::string head_;
  std::optional<NpzLayout> npz_;
};

}  // namespace headrace::cli
