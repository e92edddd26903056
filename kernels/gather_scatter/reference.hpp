// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU: the truth that they are compared with, and what the fake
// driver runs.
#pragma once

#include "kernels/gather_scatter/one_part.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace headrace::kernels::reference {

template <class T>
T* at(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

/// Where page `page` of a side begins.
inline std::uint64_t page_address(const headrace_move_side_v1& side, std::uint64_t page) {
  const std::uint64_t number = side.indices != 0 ? at<const std::uint32_t>(side.indices)[page] : page;
  const std::uint64_t base =
      side.base_of != 0 ? at<const std::uint64_t>(side.bases)[at<const std::uint32_t>(side.base_of)[page]]
                        : side.base;
  return base + number * side.stride;
}

/// Whether both numbers of a page are within the bounds; tells if one is not.
inline bool is_within_bounds(const headrace_move_pages_v1& args, std::uint64_t page) {
  const auto& bounds = *at<const headrace_move_bounds_v1>(args.bounds);
  const bool source = at<const std::uint32_t>(args.source.indices)[page] < bounds.source_pages;
  const bool target = at<const std::uint32_t>(args.target.indices)[page] < bounds.target_pages;
  if (!source || !target)
    __atomic_store_n(at<std::uint64_t>(args.refused), 2 * page + (source ? 2 : 1), __ATOMIC_RELAXED);
  return source && target;
}

/// Tells `part(source, target, bytes)` of each part that the arguments name, in order.
template <class Part>
void each_part(const headrace_move_pages_v1& args, Part part) {
  std::uint64_t count = args.count;
  if (args.bounds != 0)
    count = std::min<std::uint64_t>(count, at<const headrace_move_bounds_v1>(args.bounds)->count);
  for (std::uint64_t i = 0; i < count; ++i)
    if (args.bounds == 0 || is_within_bounds(args, i))
      part(page_address(args.source, i), page_address(args.target, i), args.page_bytes);
}
template <class Part>
void each_part(const headrace_move_parts_v1& args, Part part) {
  for (std::uint64_t i = 0; i < args.count; ++i)
    part(args.source_base + at<const std::uint64_t>(args.sources)[i],
         args.target_base + at<const std::uint64_t>(args.targets)[i],
         std::uint64_t{at<const std::uint32_t>(args.lengths)[i]});
}
template <class Part>
void each_part(const headrace_move_few_v1& args, Part part) {
  for (std::uint64_t i = 0; i < args.count; ++i) part(args.sources[i], args.targets[i], args.lengths[i]);
}
template <class Part>
void each_part(const OnePart& args, Part part) {
  part(args.source, args.target, args.bytes);
}

inline void tell_done(const headrace_move_done_v1& done) {
  if (done.word == 0) return;
  std::uint64_t value = done.value;
  if (value == 0) value = ++at<headrace_move_state_v1>(done.state)->launches;
  __atomic_store_n(at<std::uint64_t>(done.word), value, __ATOMIC_RELEASE);
}

/// Moves and tells. Parts may not overlap one another's targets, as on the GPU.
template <class Args>
void move(const Args& args) {
  each_part(args, [](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
    std::memcpy(at<void>(target), at<const void>(source), bytes);
  });
  tell_done(args.done);
}

}  // namespace headrace::kernels::reference
