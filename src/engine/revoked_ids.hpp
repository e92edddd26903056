// SPDX-License-Identifier: Apache-2.0
// The regions that a peer has revoked. Metadata from before a revocation, from a store or a late message,
// does not bring its regions back.
#pragma once

#include "engine/remote_regions.hpp"
#include "wire/metadata.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace headrace::engine {

/// Not locked: its owner does that.
class RevokedIds {
 public:
  static constexpr std::size_t most_ranges = 65536;

  /// Revoked in that version of the peer's regions. Ranges that touch become one with the later version.
  void add(std::span<const IdRange> ranges, std::uint64_t version);
  /// False: metadata of that version is older than revocations of which the ids are not kept any more.
  [[nodiscard]] bool can_judge(std::uint64_t version) const { return version >= forgotten_; }
  /// Takes out of the metadata what has been revoked since, and returns how many regions that are. `rows`
  /// goes with `m.ids`.
  std::size_t take_out(wire::Metadata& m, std::vector<RemoteRegion>& rows) const;

 private:
  struct Revoked {
    std::uint64_t end = 0;  ///< one past the last id
    std::uint64_t version = 0;
  };
  [[nodiscard]] bool hides(std::uint32_t id, std::uint64_t version) const;

  std::map<std::uint64_t, Revoked> by_first_;  // apart from one another
  std::uint64_t latest_ = 0;                   // version of all in the map at most
  std::uint64_t forgotten_ = 0;                // version of all that the map has lost at most
};

}  // namespace headrace::engine
