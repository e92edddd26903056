// SPDX-License-Identifier: Apache-2.0
// What `prepare` and `make_request` take from Python: lists of tuples, tables of integers, arrays, indices.
#pragma once

#include <headrace/pages.hpp>

#include "bindings/python/array_view.hpp"

#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace headrace::python {

/// Pages as C++ takes them. Tables of 64-bit integers are used where they lie; `held` keeps them there.
struct PageInput {
  std::variant<std::span<const AddressPage>, std::span<const Page>, UniformPages, RegionPages> pages;

  std::vector<AddressPage> own_addresses;
  std::vector<Page> own_pages;
  std::shared_ptr<ArrayView> held;
};

PageInput to_pages(nb::handle object);

/// RegionPages as Python holds them: the arrays stay where they are for as long as this lives.
class PyRegionPages {
 public:
  /// lengths: an array, or an int for all.
  PyRegionPages(nb::handle region, nb::handle offsets, nb::handle lengths, std::uint64_t origin_bytes);
  ~PyRegionPages();
  PyRegionPages(const PyRegionPages&) = delete;
  PyRegionPages& operator=(const PyRegionPages&) = delete;
  [[nodiscard]] const RegionPages& pages() const { return pages_; }

 private:
  RegionPages pages_;
  std::uint64_t common_length_ = 0;
  std::shared_ptr<ArrayView> offsets_, lengths_;
};

/// Indices into a page list. Integers of 32 and 64 bits are used where they lie.
struct IndexInput {
  std::variant<std::span<const std::uint32_t>, std::span<const std::int32_t>, std::span<const std::int64_t>>
      indices;

  std::vector<std::int64_t> own;
  std::shared_ptr<ArrayView> held;

  /// The same as 64-bit integers.
  void widen();
  /// The same as unsigned 32-bit integers, in `room` where they are not. Raises at one that is no page's
  /// number.
  [[nodiscard]] std::span<const std::uint32_t> narrow(const char* what,
                                                      std::vector<std::uint32_t>& room) const;
};

/// `what` names the argument in error messages.
IndexInput to_indices(nb::handle object, const char* what);
/// Page numbers in GPU memory, which only its GPU reads; null if they are not there.
std::shared_ptr<ArrayView> to_gpu_indices(nb::handle object, const char* what);
/// 0, 1, 2, ...: the whole list in order.
IndexInput all_indices(std::uint64_t count);

/// The ids in a Region, an allocated Memory, an int, or a list of these.
RegionId to_region_id(nb::handle object);
std::vector<RegionId> to_region_ids(nb::handle object);

}  // namespace headrace::python
