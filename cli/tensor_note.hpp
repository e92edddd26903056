// SPDX-License-Identifier: Apache-2.0
// What a served region's note says, so that whoever has the metadata knows the tensor without a byte of the
// file.
#pragma once

#include <headrace/memory.hpp>

#include "cli/tensor.hpp"

namespace headrace::cli {

/// The region that holds a safetensors file's own header, so that a copy of the whole file is the same to the
/// byte.
inline constexpr std::string_view header_region_name = ".safetensors header";

/// A tensor that a peer serves.
struct ServedTensor {
  TensorInfo info;
  std::uint64_t checksum = 0;
  std::uint64_t index = 0;  ///< its place in the file
  RegionId region;
};

/// JSON: {"dtype":"F16","shape":[2,3],"bytes":12,"xxh3":"00f1...","index":7}. A tensor's name is its
/// region's; one that is too long for that stands in the note as well.
[[nodiscard]] std::string write_note(const ServedTensor& tensor, bool with_name);
/// Of the header region: {"header":"safetensors","bytes":N,"xxh3":"..."}.
[[nodiscard]] std::string write_header_note(std::span<const std::byte> header);

/// What a peer's regions say that they are.
struct Served {
  std::vector<ServedTensor> tensors;  ///< by index
  /// The header's region, bytes and checksum; region 0: there is none.
  RegionId header;
  std::uint64_t header_bytes = 0;
  std::uint64_t header_checksum = 0;
};

/// Reads the notes. Regions whose notes are not ours are passed over.
///   errors  corrupt (a note that is ours and contradicts itself or its region: which)
[[nodiscard]] Result<Served> read_notes(std::span<const Region> regions);

}  // namespace headrace::cli
