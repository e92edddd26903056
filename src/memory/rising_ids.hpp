// SPDX-License-Identifier: Apache-2.0
// Looking up an id in a column whose ids rise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace {

/// The place of `id` among `count` ids that rise, `id_at(place)`; `count` if it is not there. Ids mostly
/// follow one another: where none is missing before it, or none behind it, no search is needed.
template <class IdAt>
[[nodiscard]] std::size_t find_rising(std::uint32_t id, std::size_t count, IdAt id_at) {
  if (count == 0 || id < id_at(0) || id > id_at(count - 1)) return count;
  const std::size_t last = count - 1;
  std::size_t high = std::min<std::size_t>(id - id_at(0), last);  // each id before it takes a place at most
  if (id_at(high) == id) return high;
  const std::size_t behind = std::min<std::size_t>(id_at(last) - id, last);
  std::size_t low = last - behind;
  if (id_at(low) == id) return low;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (id_at(middle) < id)
      low = middle + 1;
    else
      high = middle;
  }
  return id_at(low) == id ? low : count;
}

}  // namespace headrace
