// SPDX-License-Identifier: Apache-2.0
// Reads the arrays that say where pages lie. columns_v1.h has the rule.
#pragma once

#include <headrace/plugin/columns_v1.h>
#include <headrace/result.hpp>

#include <cstdint>

namespace headrace {

/// The place of page i in the arrays.
inline std::uint64_t slot_of(const headrace_columns_v1& columns, std::uint64_t i) {
  return columns.indices != nullptr ? columns.indices[i] : i;
}
inline std::uint64_t offset_of(const headrace_columns_v1& columns, std::uint64_t i) {
  const std::uint64_t slot = slot_of(columns, i);
  return columns.offsets != nullptr ? columns.offsets[slot]
                                    : columns.base_offset + slot * columns.stride_bytes;
}
inline std::uint64_t length_of(const headrace_columns_v1& columns, std::uint64_t i) {
  return columns.lengths != nullptr ? columns.lengths[slot_of(columns, i)] : columns.page_bytes;
}
/// The number of the region of page i.
inline std::uint32_t region_of(const headrace_columns_v1& columns, std::uint64_t i) {
  return columns.region_of != nullptr ? columns.region_of[slot_of(columns, i)] : 0;
}
/// The first of `count` pages that lies in the region of that number; none: no_page.
inline std::uint64_t first_page_in(const headrace_columns_v1& columns, std::uint64_t count,
                                   std::uint64_t number) {
  for (std::uint64_t page = 0; page < count; ++page)
    if (region_of(columns, page) == number) return page;
  return no_page;
}

}  // namespace headrace
