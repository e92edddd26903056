// SPDX-License-Identifier: Apache-2.0
// The tensors to pull, and the place of each in the output file.
#pragma once

#include "cli/common/tensor_note.hpp"
#include "formats/npz_layout.hpp"
#include "formats/safetensors.hpp"
#include "formats/tensor_file.hpp"

#include <optional>

namespace headrace::cli {

/// The tensors that the names and patterns select, in the file's order, each once; without names all.
///   errors  not_found (a name or pattern selects none; the text has similar names)
[[nodiscard]] Result<std::vector<ServedTensor>> select_tensors(const std::vector<ServedTensor>& served,
                                                               const std::vector<std::string>& wanted);

class PullPlan {
 public:
  /// Plans the output file. `source_header` is the header of the served safetensors file, or empty. A copy of
  /// a whole safetensors file gets the same header; else a new header gets the metadata of the source's.
  static Result<PullPlan> make(std::vector<ServedTensor> tensors, formats::FileFormat format,
                               std::string_view source_header);

  [[nodiscard]] const std::vector<ServedTensor>& tensors() const { return tensors_; }
  /// The offset of each tensor in the file.
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const { return offsets_; }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t tensor_bytes() const;
  /// A hash of the whole plan: another source, selection or format has another one.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// Whether the file is what this plan would make: the same header, and the same tensors in the same order,
  /// each with the served checksum.
  [[nodiscard]] bool has_made(const formats::TensorFile& file) const;
  /// Write everything but the tensors: write_head before the tensors are written, write_rest after it.
  void write_head(std::span<std::byte> file) const;
  void write_rest(std::span<std::byte> file) const;

 private:
  Result<void> lay_out_safetensors(std::string_view source_header);

  std::vector<ServedTensor> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t file_bytes_ = 0;
  std::string head_;
  std::optional<formats::NpzLayout> npz_;
};

}  // namespace headrace::cli
