// SPDX-License-Identifier: Apache-2.0
// Building blocks of prepared lists: columns from rows, the cheapest shape that says the same, and checks
// over indices.
#pragma once

#include <headrace/pages.hpp>

#include "base/errors.hpp"
#include "memory/columns.hpp"
#include "memory/page_view.hpp"

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace {

/// A list of pages as columns. Columns that would be constant or affine are empty: see headrace_side_v1.
struct PageColumns {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> region_of;  ///< indices into region_ids; empty: all pages lie in the one region
  std::vector<std::uint64_t> offsets;    ///< empty: base_offset + i * stride_bytes
  std::vector<std::uint64_t> lengths;    ///< empty: page_bytes
  std::uint64_t base_offset = 0;
  std::uint64_t stride_bytes = 0;
  std::uint64_t page_bytes = 0;
  std::vector<std::uint32_t> region_ids;  ///< distinct, in the order of first use

  /// The arrays for a backend; `indices` empty: all pages in order. It points into both.
  [[nodiscard]] headrace_columns_v1 view(const std::vector<std::uint32_t>& indices) const {
    const auto data = [](const auto& column) { return column.empty() ? nullptr : column.data(); };
    return {data(region_of), data(offsets), data(lengths), data(indices),
            base_offset,     stride_bytes,  page_bytes};
  }
};

/// Collects pages one by one and finds the cheapest shape at the end.
class PageColumnsBuilder {
 public:
  explicit PageColumnsBuilder(std::uint64_t count);

  /// Appends a page that was checked already: length > 0, inside its region.
  void add(std::uint32_t region_id, std::uint64_t offset, std::uint64_t length) {
    if (columns_.count == 0) {
      columns_.region_ids.push_back(region_id);
      columns_.base_offset = offset;
      columns_.page_bytes = length;
    } else {
      if (columns_.count == 1) columns_.stride_bytes = offset - columns_.base_offset;
      affine_ = affine_ && offset == columns_.base_offset + columns_.count * columns_.stride_bytes;
      one_length_ = one_length_ && length == columns_.page_bytes;
      if (region_id != last_region_) slot_ = slot_for(region_id);
    }
    last_region_ = region_id;
    columns_.offsets.push_back(offset);
    columns_.lengths.push_back(length);
    columns_.region_of.push_back(slot_);
    columns_.bytes += length;
    ++columns_.count;
  }
  PageColumns finish() &&;

 private:
  std::uint32_t slot_for(std::uint32_t region_id);

  PageColumns columns_;
  std::unordered_map<std::uint32_t, std::uint32_t> slots_;  // region id -> its place in region_ids
  std::uint32_t last_region_ = 0;
  std::uint32_t slot_ = 0;
  bool affine_ = true;
  bool one_length_ = true;
};

/// Whether [offset, offset + length) lies in a region of `region_length` bytes. 0 stands for a file or object
/// whose size its backend knows.
constexpr bool lies_inside(std::uint64_t offset, std::uint64_t length, std::uint64_t region_length) {
  return region_length == 0 || (length <= region_length && offset <= region_length - length);
}

/// Columns of pages that are given by columns, at least one, in the cheapest shape. Nothing if a page is
/// empty or does not lie in its region, which has `region_length` bytes (0: as in lies_inside): first_misfit
/// tells which.
std::optional<PageColumns> columns_of(const RegionPages& pages, std::uint64_t region_length);
/// The first such page.
std::optional<std::uint64_t> first_misfit(const RegionPages& pages, std::uint64_t region_length);
/// Page i as it lies in its region; its offset wraps around where it begins before the origin.
Page page_at(const RegionPages& pages, std::uint64_t i);

/// Copies indices to 32 bits into `copy`, which has their number. invalid_argument names the first that is
/// not below `count`.
Result<void> copy_indices(std::span<const std::int64_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy);
Result<void> copy_indices(std::span<const std::int32_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy);
Result<void> copy_indices(std::span<const std::uint32_t> indices, std::uint64_t count, const char* whose,
                          std::span<std::uint32_t> copy);

/// The pages of one side of a request; no handles needed.
struct PageSelection {
  headrace_columns_v1 columns;
  const PageShape* shape = nullptr;  ///< null: a page is one stretch

  [[nodiscard]] std::uint64_t length(std::uint64_t i) const { return length_of(columns, i); }
  [[nodiscard]] std::uint64_t offset(std::uint64_t i) const { return offset_of(columns, i); }
  [[nodiscard]] std::uint32_t region(std::uint64_t i) const { return headrace::region_of(columns, i); }
};

/// The first i whose lengths differ, and the sum of all lengths if none does.
std::pair<std::optional<std::uint64_t>, std::uint64_t> compare_lengths(const PageSelection& a,
                                                                       const PageSelection& b,
                                                                       std::uint64_t count);

/// Two pages of the selection that share a byte, if any do; of a view, a page may share one with itself. n
/// log n, n being the stretches that lie apart.
std::optional<std::pair<std::uint64_t, std::uint64_t>> find_overlap(const PageSelection& pages,
                                                                    std::uint64_t count);

/// A stretch of a page that lies in one piece.
struct PageStretch {
  std::uint32_t region;
  std::uint64_t begin, end;
  std::uint32_t list;  ///< whose page it is of, where there are several
  std::uint64_t page;
  auto operator<=>(const PageStretch&) const = default;
};

/// Appends those of the selection's pages. `region_ids`: what the list's numbers of regions stand for; empty:
/// themselves.
void add_stretches(const PageSelection& pages, std::uint64_t count, std::span<const std::uint32_t> region_ids,
                   std::uint32_t list, std::vector<PageStretch>& stretches);
/// Two that share a byte, if any do, the one that begins first ahead; sorts them. n log n.
std::optional<std::pair<PageStretch, PageStretch>> find_shared(std::vector<PageStretch>& stretches);

}  // namespace headrace
