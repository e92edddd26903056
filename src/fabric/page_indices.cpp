// SPDX-License-Identifier: Apache-2.0
#include "fabric/page_indices.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace headrace::fabric {
namespace {

/// Without a branch: which one does not fit is looked for afterwards. A negative number has the highest bits.
template <class Number>
bool narrow_all(std::span<const Number> from, std::span<std::uint32_t> to) {
  std::make_unsigned_t<Number> bits = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    bits |= static_cast<std::make_unsigned_t<Number>>(from[i]);
    to[i] = static_cast<std::uint32_t>(from[i]);
  }
  constexpr int free_bits = sizeof(Number) == sizeof(std::int32_t) ? 31 : 32;
  return bits >> free_bits == 0;
}

}  // namespace

bool narrow(std::span<const std::int32_t> from, std::span<std::uint32_t> to) { return narrow_all(from, to); }
bool narrow(std::span<const std::int64_t> from, std::span<std::uint32_t> to) { return narrow_all(from, to); }

std::uint32_t greatest(std::span<const std::uint32_t> numbers) {
  std::uint32_t most = 0;
  for (const std::uint32_t number : numbers) most = std::max(most, number);
  return most;
}

}  // namespace headrace::fabric
