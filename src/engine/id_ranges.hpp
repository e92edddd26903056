// SPDX-License-Identifier: Apache-2.0
// Region ids that follow one another, as one range.
#pragma once

#include "wire/metadata.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace::engine {

using wire::IdRange;

[[nodiscard]] inline bool contains(std::span<const IdRange> ranges, std::uint32_t id) {
  return std::ranges::any_of(ranges, [id](const IdRange& range) { return id - range.first < range.count; });
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
