// SPDX-License-Identifier: Apache-2.0
// One side of a request together with the arrays that it points to.
#pragma once

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <vector>

namespace headrace::test {

struct PageSide {
  std::vector<void*> regions;
  std::vector<std::uint32_t> region_of;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> lengths;
  std::vector<std::uint32_t> indices;
  std::uint64_t base = 0, stride = 0, page_bytes = 0;

  /// The struct for a backend. It points into this object; an empty array becomes a null pointer.
  [[nodiscard]] headrace_side_v1 view() const {
    headrace_side_v1 side{};
    side.struct_size = sizeof(side);
    side.regions = regions.data();
    side.region_count = regions.size();
    side.columns.region_of = region_of.empty() ? nullptr : region_of.data();
    side.columns.offsets = offsets.empty() ? nullptr : offsets.data();
    side.columns.lengths = lengths.empty() ? nullptr : lengths.data();
    side.columns.indices = indices.empty() ? nullptr : indices.data();
    side.columns.base_offset = base;
    side.columns.stride_bytes = stride;
    side.columns.page_bytes = page_bytes;
    return side;
  }
};

/// `count` pages of `page_bytes` at base + i * stride of one region.
inline PageSide uniform_side(void* region, std::uint64_t base, std::uint64_t stride,
                             std::uint64_t page_bytes) {
  PageSide side;
  side.regions = {region};
  side.base = base;
  side.stride = stride;
  side.page_bytes = page_bytes;
  return side;
}

}  // namespace headrace::test
