// SPDX-License-Identifier: Apache-2.0
// The operations by number: lines carry it, so that ranks in different operations find out.
#pragma once

#include <array>
#include <cstdint>

namespace headrace::collectives {

enum class Operation : std::uint8_t {
  open,
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  barrier,
  split,
  send,
  recv,
};

inline constexpr std::array operation_names{
    "open",   "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all",
    "gather", "scatter",    "barrier",   "split",  "send",       "recv",
};

[[nodiscard]] constexpr const char* operation_name(Operation operation) {
  return operation_names[static_cast<std::size_t>(operation) % operation_names.size()];
}

// A tag holds the operation and the lower 24 bits of its number.
[[nodiscard]] constexpr std::uint32_t operation_tag(Operation operation, std::uint64_t number) {
  return static_cast<std::uint32_t>(operation) << 24 | static_cast<std::uint32_t>(number & 0xffffff);
}
[[nodiscard]] constexpr Operation operation_of(std::uint32_t tag) {
  return static_cast<Operation>(tag >> 24);
}
[[nodiscard]] constexpr std::uint32_t number_of(std::uint32_t tag) { return tag & 0xffffff; }

}  // namespace headrace::collectives
