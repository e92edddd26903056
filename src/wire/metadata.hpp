// SPDX-License-Identifier: Apache-2.0
// The metadata of an agent: how peers reach it, and which regions it has. docs/wire.md section 2.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::wire {

/// The limits of docs/wire.md; both sides enforce them.
struct MetadataLimits {
  static constexpr std::uint16_t major = 1;
  static constexpr std::uint16_t minor = 0;
  static constexpr std::size_t envelope_bytes = 24;
  static constexpr std::uint64_t body_bytes = std::uint64_t{1} << 30;
  static constexpr std::size_t name_bytes = 255;         ///< of an agent and of a region
  static constexpr std::size_t backends = 16;            ///< one bit of a mask each
  static constexpr std::size_t backend_name_bytes = 64;  ///< also of its version
  static constexpr std::size_t info_bytes = 64 * 1024;
  static constexpr std::size_t regions = std::size_t{64} << 20;
  static constexpr std::size_t note_bytes = 64 * 1024;
  static constexpr std::size_t public_data_bytes = 4096;
  static constexpr std::size_t gone_ranges = std::size_t{1} << 20;
  /// Each of the 2^32 ids is registered once; a revocation may fail and come again.
  static constexpr std::uint64_t version = std::uint64_t{1} << 40;
  static constexpr std::uint8_t greatest_kind = 4;     ///< regions of greater kinds are ignored
  static constexpr std::uint8_t read_only_bit = 0x80;  ///< flag in a kind: peers may not write the region
};

/// The ids first, first + 1, ... first + count - 1.
struct IdRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const IdRange&, const IdRange&) = default;
};

/// A whole export, a part of one, or an update. The five columns have one element for each region, ids
/// rising.
struct Metadata {
  struct Backend {
    std::string name;
    std::string version;
    std::optional<std::string> info;  ///< how to reach it; nullopt: omitted in this export
    friend bool operator==(const Backend&, const Backend&) = default;
  };
  /// Name and note of a region. Only regions with one of them are listed, ids rising.
  struct Named {
    std::uint32_t id = 0;
    std::string name;
    std::string note;
    friend bool operator==(const Named&, const Named&) = default;
  };
  /// A backend's data about a region. Rising by (id, backend).
  struct PublicData {
    std::uint32_t id = 0;
    std::uint16_t backend = 0;  ///< index in backends
    std::string bytes;
    friend bool operator==(const PublicData&, const PublicData&) = default;
  };

  std::string name;
  std::uint64_t incarnation = 0;
  std::uint64_t version = 0;
  std::uint64_t since = 0;  ///< an update since this version; 0: everything
  bool partial = false;     ///< regions that are not listed may exist
  /// Of a whole export: lower ids have been given, so those that are not listed are gone. Otherwise 0.
  std::uint64_t end = 0;
  std::vector<Backend> backends;

  std::vector<std::uint32_t> ids;
  std::vector<std::uint64_t> addresses;
  std::vector<std::uint64_t> lengths;
  std::vector<std::uint8_t> kinds;   ///< headrace::MemoryKind, with read_only_bit
  std::vector<std::uint16_t> masks;  ///< bit b: registered with backends[b]

  std::vector<Named> named;
  std::vector<PublicData> public_data;
  std::vector<IdRange> gone;  ///< revoked ids; rising, none of them listed

  /// Neither a part nor an update.
  [[nodiscard]] bool whole() const { return since == 0 && !partial; }

  friend bool operator==(const Metadata&, const Metadata&) = default;
};

/// Encodes metadata. Constant columns, and ids that count up, take a few bytes each.
///   errors  invalid_argument (a limit or rule of docs/wire.md is broken: which), exhausted (body over 1 GiB)
[[nodiscard]] Result<std::string> encode(const Metadata& metadata);

/// Decodes metadata. Trusts nothing: it checks the checksum, then the structure, then every limit and rule.
///   owns    a copy; its memory is at most a small multiple of `bytes`, for any input
///   errors  corrupt (with the offset), not_supported (another major version)
[[nodiscard]] Result<Metadata> decode(std::string_view bytes);

/// The checksum for an envelope (offset 16) before this body; it covers the first 16 bytes too.
[[nodiscard]] std::uint64_t metadata_checksum(std::string_view first_16_bytes,
                                              std::string_view body) noexcept;

}  // namespace headrace::wire
