// SPDX-License-Identifier: Apache-2.0
#include "memory/page_list.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headrace {

PageColumnsBuilder::PageColumnsBuilder(std::uint64_t count) {
  columns_.offsets.reserve(count);
  columns_.lengths.reserve(count);
  columns_.region_of.reserve(count);
}

std::uint32_t PageColumnsBuilder::slot_for(std::uint32_t region_id) {
  if (slots_.empty()) slots_.emplace(columns_.region_ids.front(), 0);
  const auto [at, fresh] =
      slots_.try_emplace(region_id, static_cast<std::uint32_t>(columns_.region_ids.size()));
  if (fresh) columns_.region_ids.push_back(region_id);
  return at->second;
}

PageColumns PageColumnsBuilder::finish() && {
  if (columns_.region_ids.size() == 1) {
    columns_.region_of = {};
    if (affine_) columns_.offsets = {};  // only one region's offsets have a meaning in common
  }
  if (!columns_.offsets.empty()) columns_.base_offset = columns_.stride_bytes = 0;
  if (one_length_) {
    columns_.lengths = {};
  } else {
    columns_.page_bytes = 0;
  }
  return std::move(columns_);
}

namespace {

/// Values that lie `stride` bytes apart. For an array the stride is a constant, so that loops over it become
/// vector code.
template <class Stride>
struct Values {
  const std::byte* first;
  Stride stride;
  std::uint64_t operator[](std::uint64_t i) const {
    std::uint64_t value;
    std::memcpy(&value, first + static_cast<std::int64_t>(i) * stride, sizeof value);
    return value;
  }
};
using Array = std::integral_constant<std::int64_t, sizeof(std::uint64_t)>;

/// What `use` makes of a column's values.
template <class Use>
auto with_values(const PageColumn& column, Use&& use) {
  const auto* const first = static_cast<const std::byte*>(column.first);
  if (column.stride_bytes == Array::value) return use(Values<Array>{first, {}});
  return use(Values<std::int64_t>{first, column.stride_bytes});
}

/// So many values are looked at together: long lists that are not what is asked for show it in the first of
/// them.
constexpr std::uint64_t piece = 1024;

bool has_one_value(const PageColumn& column, std::uint64_t count) {
  if (column.stride_bytes == 0) return true;
  return with_values(column, [count](auto values) {
    const std::uint64_t first = values[0];
    for (std::uint64_t begin = 0; begin < count; begin += piece) {
      std::uint64_t differs = 0;
      for (std::uint64_t i = begin; i < std::min(begin + piece, count); ++i) differs |= values[i] ^ first;
      if (differs != 0) return false;
    }
    return true;
  });
}

/// Puts offsets that are equally far apart into `columns` as base and stride, and says so. `largest`: of
/// those looked at.
template <class Offsets>
bool take_line(Offsets offsets, std::uint64_t origin, PageColumns& columns, std::uint64_t& largest) {
  const std::uint64_t base = offsets[0] - origin;
  const std::uint64_t stride = columns.count > 1 ? offsets[1] - offsets[0] : 0;
  largest = 0;
  for (std::uint64_t begin = 0; begin < columns.count; begin += piece) {
    std::uint64_t differs = 0;
    for (std::uint64_t i = begin; i < std::min(begin + piece, columns.count); ++i) {
      const std::uint64_t offset = offsets[i] - origin;
      differs |= offset ^ (base + i * stride);
      largest = std::max(largest, offset);
    }
    if (differs != 0) return false;
  }
  columns.base_offset = base;
  columns.stride_bytes = stride;
  return true;
}

template <class Offsets>
std::uint64_t take_all(Offsets offsets, std::uint64_t origin, PageColumns& columns) {
  columns.offsets.resize(columns.count);
  std::uint64_t largest = 0;
  for (std::uint64_t i = 0; i < columns.count; ++i) {
    const std::uint64_t offset = offsets[i] - origin;
    columns.offsets[i] = offset;
    largest = std::max(largest, offset);
  }
  return largest;
}

/// All pages have one length: where the last of them begins tells whether all lie inside.
std::optional<PageColumns> of_one_length(const RegionPages& pages, std::uint64_t region_length) {
  PageColumns columns;
  columns.count = pages.count;
  columns.region_ids = {pages.region.value};
  columns.page_bytes = page_at(pages, 0).length_bytes;
  columns.bytes = columns.page_bytes * columns.count;
  std::uint64_t largest = 0;
  with_values(pages.offsets, [&](auto offsets) {
    if (!take_line(offsets, pages.origin_bytes, columns, largest))
      largest = take_all(offsets, pages.origin_bytes, columns);
  });
  if (columns.page_bytes == 0 || !lies_inside(largest, columns.page_bytes, region_length))
    return std::nullopt;
  return columns;
}

bool fits(const Page& page, std::uint64_t region_length) {
  return page.length_bytes != 0 && lies_inside(page.offset_bytes, page.length_bytes, region_length);
}

}  // namespace

Page page_at(const RegionPages& pages, std::uint64_t i) {
  const auto value = [i](const PageColumn& column) {
    return with_values(column, [i](auto values) { return values[i]; });
  };
  return {pages.region.value, value(pages.offsets) - pages.origin_bytes, value(pages.lengths)};
}

std::optional<PageColumns> columns_of(const RegionPages& pages, std::uint64_t region_length) {
  if (has_one_value(pages.lengths, pages.count)) return of_one_length(pages, region_length);
  PageColumnsBuilder builder(pages.count);
  for (std::uint64_t i = 0; i < pages.count; ++i) {
    const Page page = page_at(pages, i);
    if (!fits(page, region_length)) return std::nullopt;
    builder.add(pages.region.value, page.offset_bytes, page.length_bytes);
  }
  return std::move(builder).finish();
}

std::optional<std::uint64_t> first_misfit(const RegionPages& pages, std::uint64_t region_length) {
  for (std::uint64_t i = 0; i < pages.count; ++i)
    if (!fits(page_at(pages, i), region_length)) return i;
  return std::nullopt;
}

namespace {

/// The largest index seen, and the upper halves of all in one: what tells a good list from a bad one without
/// a branch an index, so that the loop becomes vector code (this file is compiled for that). The rare error
/// is searched for again.
struct Extent {
  std::uint32_t largest = 0;
  std::uint64_t upper = 0;
};

template <class Index>
Extent narrow(std::span<const Index> indices, std::uint32_t* copy) {
  Extent extent;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto low = static_cast<std::uint32_t>(indices[i]);
    if constexpr (sizeof(Index) == 8) extent.upper |= static_cast<std::uint64_t>(indices[i]) >> 32;
    extent.largest = std::max(extent.largest, low);
    copy[i] = low;
  }
  return extent;
}

template <class Index>
Result<void> copy_checked(std::span<const Index> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy) {
  const Extent extent = narrow(indices, copy.data());
  if (extent.upper == 0 && (extent.largest < count || indices.empty())) {
    // A negative 32-bit index looks like one of 2^31 or more, of which only a list that long has any.
    if (!std::is_same_v<Index, std::int32_t> || extent.largest <= std::numeric_limits<std::int32_t>::max())
      return {};
  }
  const std::uint64_t limit =
      std::min<std::uint64_t>(count, std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1);
  std::size_t first = 0;
  while (static_cast<std::uint64_t>(static_cast<std::int64_t>(indices[first])) < limit) ++first;
  Error error = make_error(Code::invalid_argument, "{} index {} is {}, and the list has {} pages", whose,
                           first, indices[first], count);
  error.page = first;
  return error;
}

}  // namespace

Result<void> copy_indices(std::span<const std::int64_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}
Result<void> copy_indices(std::span<const std::int32_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}
Result<void> copy_indices(std::span<const std::uint32_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}

std::pair<std::optional<std::uint64_t>, std::uint64_t> compare_lengths(const PageSelection& a,
                                                                       const PageSelection& b,
                                                                       std::uint64_t count) {
  if (a.columns.lengths == nullptr && b.columns.lengths == nullptr) {
    if (a.columns.page_bytes != b.columns.page_bytes && count > 0) return {0, 0};
    return {std::nullopt, a.columns.page_bytes * count};
  }
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t length = a.length(i);
    if (length != b.length(i)) return {i, 0};
    bytes += length;
  }
  return {std::nullopt, bytes};
}

namespace {

/// Where stretch `number` of a page begins, behind the page.
std::uint64_t place_of(const PageShape::Steps& runs, std::uint64_t number) {
  std::uint64_t place = 0;
  for (std::size_t d = runs.counts.size(); d-- > 0;) {
    if (d >= runs.dimensions) continue;
    place += number % runs.counts[d] * runs.strides[d];
    number /= runs.counts[d];
  }
  return place;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> find_overlap_of_views(const PageSelection& pages,
                                                                             std::uint64_t count) {
  std::vector<PageStretch> stretches;
  add_stretches(pages, count, {}, 0, stretches);
  const auto shared = find_shared(stretches);
  if (!shared) return std::nullopt;
  return std::minmax(shared->first.page, shared->second.page);
}

}  // namespace

void add_stretches(const PageSelection& pages, std::uint64_t count, std::span<const std::uint32_t> region_ids,
                   std::uint32_t list, std::vector<PageStretch>& stretches) {
  const PageShape::Steps runs = pages.shape != nullptr ? runs_by_place(*pages.shape) : PageShape::Steps{};
  const std::uint64_t a_page = pages.shape != nullptr ? pages.shape->bytes() / runs.item_bytes : 1;
  stretches.reserve(stretches.size() + count * a_page);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint32_t region = region_ids.empty() ? pages.region(i) : region_ids[pages.region(i)];
    const std::uint64_t bytes = pages.shape != nullptr ? runs.item_bytes : pages.length(i);
    for (std::uint64_t k = 0; k < a_page; ++k) {
      const std::uint64_t begin = pages.offset(i) + place_of(runs, k);
      stretches.push_back({region, begin, begin + bytes, list, i});
    }
  }
}

std::optional<std::pair<PageStretch, PageStretch>> find_shared(std::vector<PageStretch>& stretches) {
  std::ranges::sort(stretches);
  // Where any two share a byte, two neighbours do: between them none begins later than the second.
  const auto a =
      std::ranges::adjacent_find(stretches, [](const PageStretch& before, const PageStretch& after) {
        return before.region == after.region && after.begin < before.end;
      });
  if (a == stretches.end()) return std::nullopt;
  return std::pair(*a, *(a + 1));
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> find_overlap(const PageSelection& pages,
                                                                    std::uint64_t count) {
  if (pages.shape != nullptr) return find_overlap_of_views(pages, count);
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return std::pair(pages.region(a), pages.offset(a)) < std::pair(pages.region(b), pages.offset(b));
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint64_t before = order[i - 1];
    const std::uint64_t after = order[i];
    if (pages.region(before) == pages.region(after) &&
        pages.offset(before) + pages.length(before) > pages.offset(after)) {
      return std::pair(std::min(before, after), std::max(before, after));
    }
  }
  return std::nullopt;
}

}  // namespace headrace
