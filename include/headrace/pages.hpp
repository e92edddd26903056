// SPDX-License-Identifier: Apache-2.0
// Page lists: parts of regions, in order. Preparing checks and resolves them once; requests then pick from
// them by index.
#pragma once

#include <headrace/memory.hpp>

#include <vector>

namespace headrace {

/// One part of a region: a row of the N x 3 arrays (uint64: region, offset, length).
struct Page {
  std::uint64_t region = 0;  ///< RegionId::value
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};
static_assert(sizeof(Page) == 24);

/// A part of this process's memory, by address: a row of N x 2 arrays (uint64: address, length).
struct AddressPage {
  std::uint64_t address = 0;
  std::uint64_t length_bytes = 0;
};
static_assert(sizeof(AddressPage) == 16);

/// `count` pages of one length: page i begins at base + i * stride of one region. The cheapest list to make
/// and to keep.
struct UniformPages {
  RegionId region;
  std::uint64_t base_bytes = 0;
  std::uint64_t stride_bytes = 0;  ///< 0: page_bytes
  std::uint64_t page_bytes = 0;
  std::uint64_t count = 0;
};

/// 64-bit integers that lie `stride_bytes` apart: an array, a column of a table (any alignment, either
/// direction), or with a stride of 0 one value for all.
struct PageColumn {
  const void* first = nullptr;
  std::int64_t stride_bytes = sizeof(std::uint64_t);
};

/// `count` pages of one region, given by columns: page i has lengths[i] bytes and begins at offsets[i] -
/// origin_bytes. For tables whose rows hold more than pages need, and for offsets that count from elsewhere:
/// an origin that is the region's address makes them addresses, a peer's too.
///   owns  nothing; the columns are read while the list is prepared
struct RegionPages {
  RegionId region;
  PageColumn offsets = {};
  PageColumn lengths = {};
  std::uint64_t count = 0;
  std::uint64_t origin_bytes = 0;
};

/// What every page of a list consists of where that is not one stretch: an array of up to four dimensions, by
/// its strides.
///
/// A page then is the array's elements in the order of their indices, the last index fastest, whatever their
/// order in memory; it begins where element 0, 0, ... lies. Two sides of a request whose views have one shape
/// move element to element, so that heads are split off, joined or transposed on the way: what differs is the
/// strides. Pages without a view go with any view of as many bytes: they have the elements one behind
/// another.
struct PageView {
  std::vector<std::int64_t> shape;  ///< 1 to 4 extents, each at least 1
  std::vector<std::int64_t>
      strides_bytes;             ///< one for each, from an element to the next, above 0; none: no gaps
  std::uint64_t item_bytes = 1;  ///< of an element, which is one stretch

  static constexpr std::size_t most_dimensions = 4;
};

/// A prepared list. Immutable, cheap to copy, shared by any number of requests; it keeps nothing of the
/// caller's arrays.
class PageList {
 public:
  struct State;
  explicit PageList(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  [[nodiscard]] HEADRACE_API std::uint64_t count() const;
  [[nodiscard]] HEADRACE_API std::uint64_t bytes() const;
  /// Whose memory: the peer's name, or empty for our own.
  [[nodiscard]] HEADRACE_API std::string_view peer() const;
  [[nodiscard]] const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace headrace
