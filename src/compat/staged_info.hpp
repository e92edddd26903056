// SPDX-License-Identifier: Apache-2.0
// What the two sides of staged transfers tell each other before the first one.
#pragma once

#include "base/errors.hpp"

#include <headrace/fabric.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::compat {

/// Before the bytes of each chunk, in the staging buffer.
struct ChunkHead {
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
};

struct StagedInfo {
  bool is_server = false;
  std::uint32_t scope = 0;          ///< of its immediates
  std::uint64_t staging_bytes = 0;  ///< of a chunk; at least 1
  FabricDescriptor staging;         ///< a ChunkHead, and a chunk
  FabricAddress address;
};
[[nodiscard]] std::string encode(const StagedInfo& info);
/// Bytes of a peer.
///   errors  corrupt, not_supported
[[nodiscard]] Result<StagedInfo> read_staged_info(std::string_view bytes);

}  // namespace headrace::compat
