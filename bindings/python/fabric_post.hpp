// SPDX-License-Identifier: Apache-2.0
// The arguments that all posts of a fabric have in Python.
#pragma once

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/text.hpp"
#include "bindings/python/time_limit.hpp"

#include <optional>
#include <string>

namespace headrace::python {

inline constexpr EnumNames<FabricCountBy, 3> count_names{
    {{"request", FabricCountBy::request}, {"page", FabricCountBy::page}, {"shard", FabricCountBy::shard}}};
inline constexpr EnumNames<FabricSpread, 4> spread_names{{{"free", FabricSpread::free},
                                                          {"in_turn", FabricSpread::in_turn},
                                                          {"pinned", FabricSpread::pinned},
                                                          {"by_peer", FabricSpread::by_peer}}};

/// The arguments that all posts have.
struct FabricPostInput {
  nb::handle immediate, scope;
  const std::string& count_by;
  const std::string& spread;
  const std::optional<std::uint32_t>& nic;
  const TimeLimit& timeout;

  [[nodiscard]] FabricPost read() const {
    FabricPost post;
    if (!immediate.is_none())
      post.immediate = Immediate{to_u32(immediate, "the immediate"), to_u32(scope, "the scope")};
    post.count_by = to_enum(count_by, "count_by", count_names);
    post.spread = to_enum(spread, "spread", spread_names);
    if (nic) {
      if (post.spread != FabricSpread::free && post.spread != FabricSpread::pinned)
        raise_invalid("a post with `nic` is pinned to it: leave `spread` out");
      post.spread = FabricSpread::pinned;
      post.nic = *nic;
    } else if (post.spread == FabricSpread::pinned) {
      raise_invalid("a pinned post needs `nic`: its place in FabricGroup.nics");
    }
    post.timeout = timeout.or_else(std::nullopt);
    return post;
  }
};

inline constexpr const char* fabric_post_signature =
    "immediate: int | None = None, scope: int = 0, count_by: str = 'request', spread: str = 'free', nic: int "
    "| None = None, timeout: float | datetime.timedelta | None = None";

inline const FabricDescriptor& given_descriptor(const FabricDescriptor* descriptor) {
  if (descriptor != nullptr) return *descriptor;
  raise_invalid(
      "the descriptor is None: local memory has none. Its owner has to register it as \"writable\" for peers "
      "that write, or as \"readable\"");
}

}  // namespace headrace::python
