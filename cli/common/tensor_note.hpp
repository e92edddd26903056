// SPDX-License-Identifier: Apache-2.0
// The note of a served region. It describes the tensor, so that a peer that has the metadata need not read
// the file.
#pragma once

#include <headrace/memory.hpp>

#include "formats/tensor_info.hpp"

namespace headrace::cli {

/// The region that holds the header of a safetensors file, so that a copy of the whole file is equal byte for
/// byte.
inline constexpr std::string_view header_region_name = ".safetensors header";

/// A tensor that a peer serves.
struct ServedTensor {
  formats::TensorInfo info;
  std::uint64_t checksum = 0;
  std::uint64_t index = 0;  ///< its number in the file
  RegionId region;
};

/// The note of a tensor: {"dtype":"F16","shape":[2,3],"bytes":12,"xxh3":"00f1...","index":7}. The tensor's
/// name is the region's name; a name that is too long for a region is in the note ("name").
[[nodiscard]] std::string write_note(const ServedTensor& tensor, bool with_name);
/// The note of the header region: {"header":"safetensors","bytes":N,"xxh3":"..."}.
[[nodiscard]] std::string write_header_note(std::span<const std::byte> header);

/// The tensors and the header that a peer serves, from the notes of its regions.
struct Served {
  std::vector<ServedTensor> tensors;  ///< sorted by index
  /// The header's region (0: none), bytes and checksum.
  RegionId header;
  std::uint64_t header_bytes = 0;
  std::uint64_t header_checksum = 0;
};

/// Reads the notes. It ignores regions whose notes are not ours.
///   errors  corrupt (a note of ours contradicts itself or its region; the text names the region)
[[nodiscard]] Result<Served> read_notes(std::span<const Region> regions);

}  // namespace headrace::cli
