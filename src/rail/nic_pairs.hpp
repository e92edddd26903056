// SPDX-License-Identifier: Apache-2.0
// Which NIC here is connected with which NIC there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace::rail {

struct NicPair {
  std::uint32_t here = 0;
  std::uint32_t there = 0;
  friend bool operator==(const NicPair&, const NicPair&) = default;
};

/// By their addresses: NICs of one kind, which is what an address has before its colon, are paired in order.
/// Where one side has more of a kind, NICs of the other side have several rails. Without a kind in common the
/// first ones are paired, so that their provider says why this cannot be. At most `max_rails` pairs.
[[nodiscard]] std::vector<NicPair> pair_nics(std::span<const std::string> here,
                                             std::span<const std::string> there);

/// Whether a NIC here is of the kind of one there. It may be out of reach all the same.
[[nodiscard]] bool have_a_kind_in_common(std::span<const std::string> here,
                                         std::span<const std::string> there);

}  // namespace headrace::rail
