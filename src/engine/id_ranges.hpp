// SPDX-License-Identifier: Apache-2.0
// Region ids that follow one another, as one range; many ids as ranges that rise and do not overlap.
#pragma once

#include "wire/metadata.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::engine {

using wire::IdRange;

/// The ranges rise.
[[nodiscard]] inline bool contains(std::span<const IdRange> ranges, std::uint32_t id) {
  const auto after = std::ranges::upper_bound(ranges, id, {}, &IdRange::first);
  return after != ranges.begin() && id - std::prev(after)->first < std::prev(after)->count;
}

/// The same ids, rising: the ranges may be in any order and overlap.
[[nodiscard]] inline std::vector<IdRange> in_order(std::vector<IdRange> ranges) {
  constexpr std::uint64_t last_end = std::uint64_t{UINT32_MAX} + 1;
  std::ranges::sort(ranges, {}, &IdRange::first);
  std::uint64_t end = 0;
  std::size_t kept = 0;
  for (const IdRange& range : std::vector(ranges)) {
    const std::uint64_t first = std::max<std::uint64_t>(range.first, end);
    const std::uint64_t its_end = std::min(std::uint64_t{range.first} + range.count, last_end);
    if (its_end <= first) continue;
    ranges[kept++] = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(its_end - first)};
    end = its_end;
  }
  ranges.resize(kept);
  return ranges;
}

/// Removes these ids from a map, and returns what it had for them. Costs the ids, or the whole map if that
/// has fewer.
template <class T>
[[nodiscard]] std::vector<T> take_out(std::unordered_map<std::uint32_t, T>& by_id,
                                      std::span<const IdRange> ranges) {
  std::vector<T> taken;
  std::uint64_t ids = 0;
  for (const IdRange& range : ranges) ids += range.count;
  if (ids > by_id.size()) {
    std::erase_if(by_id, [&](auto& entry) {
      if (!contains(ranges, entry.first)) return false;
      taken.push_back(std::move(entry.second));
      return true;
    });
    return taken;
  }
  for (const IdRange& range : ranges)
    for (std::uint32_t i = 0; i < range.count; ++i)
      if (auto node = by_id.extract(range.first + i)) taken.push_back(std::move(node.mapped()));
  return taken;
}

/// Rising.
[[nodiscard]] inline std::vector<IdRange> to_ranges(std::vector<std::uint32_t> ids) {
  std::ranges::sort(ids);
  std::vector<IdRange> ranges;
  for (const std::uint32_t id : ids) {
    if (!ranges.empty() && ranges.back().first + ranges.back().count == id) {
      ++ranges.back().count;
    } else {
      ranges.push_back({id, 1});
    }
  }
  return ranges;
}

}  // namespace headrace::engine
