// SPDX-License-Identifier: Apache-2.0
// Page lists: which bytes of which regions, in order. Preparing checks and resolves them once; requests then
// choose pages by index.
#pragma once

#include <headrace/memory.hpp>

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
