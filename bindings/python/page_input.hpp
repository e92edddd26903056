// SPDX-License-Identifier: Apache-2.0
// Reads the arguments of `prepare` and `make_request`: lists of tuples, tables of integers, arrays, indices.
#pragma once

#include <headrace/pages.hpp>

#include "bindings/python/array_view.hpp"

#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace headrace::python {

/// Pages for C++. Tables of 64-bit integers are used in place; `held` keeps them there.
struct PageInput {
  std::variant<std::span<const AddressPage>, std::span<const Page>, UniformPages, RegionPages> pages;

  std::vector<AddressPage> own_addresses;
  std::vector<Page> own_pages;
  std::shared_ptr<ArrayView> held;
};

PageInput to_pages(nb::handle object);

/// RegionPages for Python. It keeps the arrays in place while it lives.
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

/// Indices of a page list. Integers of 32 and 64 bits are used in place.
struct IndexInput {
  std::variant<std::span<const std::uint32_t>, std::span<const std::int32_t>, std::span<const std::int64_t>>
      indices;

  std::vector<std::int64_t> own;
  std::shared_ptr<ArrayView> held;

  /// Converts the indices to 64-bit integers.
  void widen();
  /// The indices as unsigned 32-bit integers; converted ones are stored in `room`. Raises if one is not a
  /// page number.
  [[nodiscard]] std::span<const std::uint32_t> narrow(const char* what,
                                                      std::vector<std::uint32_t>& room) const;
};

/// `what` names the argument in error messages.
IndexInput to_indices(nb::handle object, const char* what);
/// Page numbers in GPU memory; the host does not read them. Null if the object is not in GPU memory.
std::shared_ptr<ArrayView> to_gpu_indices(nb::handle object, const char* what);
/// The indices 0, 1, 2, ...: all pages in order.
IndexInput all_indices(std::uint64_t count);

/// The ids in a Region, an allocated Memory, an int, or a list of these.
RegionId to_region_id(nb::handle object);
std::vector<RegionId> to_region_ids(nb::handle object);

}  // namespace headrace::python
