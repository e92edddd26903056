// SPDX-License-Identifier: Apache-2.0
// Page lists: which bytes of which regions, in order. Preparing checks and resolves them once; requests then
// choose pages by index.
#pragma once

#include <headrace/memory.hpp>

#include <optional>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace headrace {

/// Bytes of a region: a row of an N x 3 array (uint64: region, offset, length).
struct Page {
  std::uint64_t region = 0;  ///< RegionId::value
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};
static_assert(sizeof(Page) == 24);

/// Bytes of this process's memory, by address: a row of an N x 2 array (uint64: address, length).
struct AddressPage {
  std::uint64_t address = 0;
  std::uint64_t length_bytes = 0;
};
static_assert(sizeof(AddressPage) == 16);

/// `count` pages of one length: page i begins at base + i * stride of one region. The cheapest list to
/// prepare and to keep.
struct UniformPages {
  RegionId region;
  std::uint64_t base_bytes = 0;
  std::uint64_t stride_bytes = 0;  ///< 0: page_bytes
  std::uint64_t page_bytes = 0;
  std::uint64_t count = 0;
};

/// 64-bit integers at a distance of `stride_bytes`: an array, a column of a table (any alignment, forward or
/// backward), or with a stride of 0 one value for all pages.
struct PageColumn {
  const void* first = nullptr;
  std::int64_t stride_bytes = sizeof(std::uint64_t);
};

/// `count` pages of one region, given by columns: page i has lengths[i] bytes and begins at offsets[i] -
/// origin_bytes. For tables with more columns than pages need, and for offsets that count from another
/// origin. If the origin is the region's address, offsets are addresses; this works for peers' regions too.
///   owns  nothing; the columns are read while the list is prepared
struct RegionPages {
  RegionId region;
  PageColumn offsets = {};
  PageColumn lengths = {};
  std::uint64_t count = 0;
  std::uint64_t origin_bytes = 0;
};

/// A page that is a strided array of up to four dimensions and not one contiguous piece of memory.
///
/// The bytes of the page are the elements in the order of their indices, the last index fastest, in any
/// memory order. The page begins at element 0, 0, ... . Views of one shape on both sides of a request move
/// element to element. With different strides this splits, joins or transposes heads on the way. Pages
/// without a view go with any view of the same number of bytes: their elements are contiguous.
struct PageView {
  std::vector<std::int64_t> shape;  ///< 1 to 4 extents, each at least 1
  /// Distance from one element to the next, one for each dimension, each above 0. Empty: no gaps.
  std::vector<std::int64_t> strides_bytes;
  std::uint64_t item_bytes = 1;  ///< length of an element, which is contiguous

  static constexpr std::size_t most_dimensions = 4;
};

/// Which bytes are the pages of a list: rows, columns of a table, or pages at one distance; each page
/// contiguous or a strided view.
///   owns  nothing of rows and columns, which are read while the list is prepared
class PageSpec {
 public:
  using Pages = std::variant<std::span<const Page>, std::span<const AddressPage>, UniformPages, RegionPages>;

  /// Rows: a vector, an array or a span of Page, or of AddressPage for memory of this agent.
  template <std::ranges::contiguous_range Rows>
    requires std::is_same_v<std::ranges::range_value_t<Rows>, Page> ||
             std::is_same_v<std::ranges::range_value_t<Rows>, AddressPage>
  PageSpec(const Rows& rows)
      : pages_(std::span<const std::ranges::range_value_t<Rows>>(std::ranges::data(rows),
                                                                 std::ranges::size(rows))) {}
  PageSpec(const UniformPages& pages) : pages_(pages) {}
  PageSpec(const RegionPages& pages) : pages_(pages) {}
  /// The same pages, each a strided view. The length of a page is the product of `shape` and `item_bytes`.
  /// Uniform pages may have length 0 here, but must set their stride. Columns have no views.
  template <class Given>
  PageSpec(const Given& pages, PageView view) : PageSpec(pages) {
    view_ = std::move(view);
  }

  [[nodiscard]] const Pages& pages() const { return pages_; }
  /// Null: every page is contiguous.
  [[nodiscard]] const PageView* view() const { return view_ ? &*view_ : nullptr; }

 private:
  Pages pages_;
  std::optional<PageView> view_;
};

/// Indices of pages in a list: a vector, an array or a span of uint32, int32 or int64. None: all pages in
/// order.
///   owns  nothing; they are read while the request is made
class PageNumbers {
 public:
  using Numbers = std::variant<std::monostate, std::span<const std::uint32_t>, std::span<const std::int32_t>,
                               std::span<const std::int64_t>>;

  PageNumbers() = default;
  template <std::ranges::contiguous_range Range>
    requires std::is_same_v<std::ranges::range_value_t<Range>, std::uint32_t> ||
             std::is_same_v<std::ranges::range_value_t<Range>, std::int32_t> ||
             std::is_same_v<std::ranges::range_value_t<Range>, std::int64_t>
  PageNumbers(const Range& numbers)
      : numbers_(std::span<const std::ranges::range_value_t<Range>>(std::ranges::data(numbers),
                                                                    std::ranges::size(numbers))) {}

  [[nodiscard]] bool all() const { return numbers_.index() == 0; }
  [[nodiscard]] const Numbers& numbers() const { return numbers_; }

 private:
  Numbers numbers_;
};

/// A prepared list. Immutable, cheap to copy, used by any number of requests. It keeps nothing of the
/// caller's arrays.
class PageList {
 public:
  struct State;
  explicit PageList(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  [[nodiscard]] HEADRACE_API std::uint64_t count() const;
  [[nodiscard]] HEADRACE_API std::uint64_t bytes() const;
  /// The owner of the regions: the peer's name, or empty for this agent.
  [[nodiscard]] HEADRACE_API std::string_view peer() const;
  [[nodiscard]] const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace headrace
