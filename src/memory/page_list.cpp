// SPDX-License-Identifier: Apache-2.0
#include "memory/page_list.hpp"

#include <algorithm>
#include <numeric>

namespace headrace {

PageColumnsBuilder::PageColumnsBuilder(std::uint64_t count) {
  columns_.offsets.reserve(count);
  columns_.lengths.reserve(count);
  columns_.region_of.reserve(count);
}

std::uint32_t PageColumnsBuilder::slot_for(std::uint32_t region_id) {
  if (slots_.empty()) slots_.emplace(columns_.region_ids.front(), 0);
  const auto [at, fresh] = slots_.try_emplace(region_id, static_cast<std::uint32_t>(columns_.region_ids.size()));
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

/// The largest index seen, and the upper halves of all in one: what tells a good list from a bad one without a branch an index,
/// so that the loop becomes vector code (this file is compiled for that). The rare error is searched for again.
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
Result<void> copy_checked(std::span<const Index> indices, std::uint64_t count, const char* whose, std::span<std::uint32_t> copy) {
  const Extent extent = narrow(indices, copy.data());
  if (extent.upper == 0 && (extent.largest < count || indices.empty())) {
    // A negative 32-bit index looks like one of 2^31 or more, of which only a list that long has any.
    if (!std::is_same_v<Index, std::int32_t> || extent.largest <= std::numeric_limits<std::int32_t>::max()) return {};
  }
  const std::uint64_t limit = std::min<std::uint64_t>(count, std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1);
  std::size_t first = 0;
  while (static_cast<std::uint64_t>(static_cast<std::int64_t>(indices[first])) < limit) ++first;
  Error error = make_error(Code::invalid_argument, "{} index {} is {}, and the list has {} pages", whose, first, indices[first], count);
  error.page = first;
  return error;
}

}  // namespace

Result<void> copy_indices(std::span<const std::int64_t> indices, std::uint64_t count, const char* whose, std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}
Result<void> copy_indices(std::span<const std::int32_t> indices, std::uint64_t count, const char* whose, std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}
Result<void> copy_indices(std::span<const std::uint32_t> indices, std::uint64_t count, const char* whose, std::span<std::uint32_t> copy) {
  return copy_checked(indices, count, whose, copy);
}

std::pair<std::optional<std::uint64_t>, std::uint64_t> compare_lengths(const PageSelection& a, const PageSelection& b, std::uint64_t count) {
  if (a.lengths.empty() && b.lengths.empty()) {
    if (a.page_bytes != b.page_bytes && count > 0) return {0, 0};
    return {std::nullopt, a.page_bytes * count};
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

std::optional<std::pair<std::uint64_t, std::uint64_t>> find_overlap_of_views(const PageSelection& pages, std::uint64_t count) {
  struct Place {
    std::uint32_t region;
    std::uint64_t offset;
    std::uint64_t page;
  };
  const PageShape::Steps runs = runs_by_place(*pages.shape);
  std::vector<Place> places;
  const std::uint64_t a_page = pages.shape->bytes() / runs.item_bytes;
  places.reserve(count * a_page);
  for (std::uint64_t i = 0; i < count; ++i) {
    for (std::uint64_t k = 0; k < a_page; ++k) places.push_back({pages.region(i), pages.offset(i) + place_of(runs, k), i});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return std::pair(a.region, a.offset) < std::pair(b.region, b.offset); });
  for (std::size_t i = 1; i < places.size(); ++i) {
    const Place &before = places[i - 1], &after = places[i];
    if (before.region == after.region && before.offset + runs.item_bytes > after.offset) {
      return std::pair(std::min(before.page, after.page), std::max(before.page, after.page));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<std::uint64_t, std::uint64_t>> find_overlap(const PageSelection& pages, std::uint64_t count) {
  if (pages.shape != nullptr) return find_overlap_of_views(pages, count);
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) {
    return std::pair(pages.region(a), pages.offset(a)) < std::pair(pages.region(b), pages.offset(b));
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint64_t before = order[i - 1];
    const std::uint64_t after = order[i];
    if (pages.region(before) == pages.region(after) && pages.offset(before) + pages.length(before) > pages.offset(after)) {
      return std::pair(std::min(before, after), std::max(before, after));
    }
  }
  return std::nullopt;
}

}  // namespace headrace
