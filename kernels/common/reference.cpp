// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/reference.hpp"

namespace headrace::kernels::reference {

void tell_done(const headrace_move_done_v1& done) {
  if (done.word == 0) return;
  std::uint64_t value = done.value;
  if (value == 0) value = ++at<headrace_move_state_v1>(done.state)->launches;
  __atomic_store_n(at<std::uint64_t>(done.word), value, __ATOMIC_RELEASE);
}

bool PagesMove::can_be_read(const Memory& memory) const {
  const std::uint64_t column_bytes = args_.count * sizeof(std::uint32_t);
  const auto reaches = [&](const std::uint32_t* column) {
    return column == nullptr || memory.reachable(reinterpret_cast<std::uint64_t>(column), column_bytes);
  };
  for (const headrace_move_side_v1* side : {&args_.source, &args_.target})
    if (!reaches(side->columns.indices) || !reaches(side->columns.region_of)) return false;
  return args_.bounds == 0 || (memory.reachable(args_.bounds, sizeof(headrace_move_bounds_v1)) &&
                               memory.reachable(args_.refused, sizeof(std::uint64_t)));
}

std::uint64_t PagesMove::count() const {
  if (args_.bounds == 0) return args_.count;
  return std::min<std::uint64_t>(args_.count, at<const headrace_move_bounds_v1>(args_.bounds)->count);
}

bool PagesMove::is_within_bounds(std::uint64_t page) const {
  const auto& bounds = *at<const headrace_move_bounds_v1>(args_.bounds);
  const bool source = args_.source.columns.indices[page] < bounds.source_pages;
  const bool target = args_.target.columns.indices[page] < bounds.target_pages;
  if (!source || !target)
    __atomic_store_n(at<std::uint64_t>(args_.refused), 2 * page + (source ? 2 : 1), __ATOMIC_RELAXED);
  return source && target;
}

std::uint64_t PagesMove::address_of(const headrace_move_side_v1& side, std::uint64_t page) {
  const headrace_columns_v1& columns = side.columns;
  const std::uint64_t slot = columns.indices != nullptr ? columns.indices[page] : page;
  const std::uint64_t base = columns.region_of != nullptr ? side.bases[columns.region_of[slot]] : 0;
  return base + columns.base_offset + slot * columns.stride_bytes;
}

}  // namespace headrace::kernels::reference
