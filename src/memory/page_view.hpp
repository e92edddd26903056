// SPDX-License-Identifier: Apache-2.0
// Pages that are strided views: checked once, and paired with the far side's into the grid of runs that
// backends move.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/pages.hpp>

#include "base/errors.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

/// A PageView that was checked: extents and strides fit, nothing overflows.
class PageShape {
 public:
  ///   errors   invalid_argument: what is wrong, and what is expected
  static Result<PageShape> make(const PageView& view);

  /// The bytes that a page moves, and what they spread over: from the first element's begin to the last one's
  /// end.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t extent() const { return extent_; }
  /// "(2, 16, 8, 128) of 2 bytes"
  [[nodiscard]] std::string described() const;

  /// Without the dimensions of extent 1.
  struct Steps {
    std::uint32_t dimensions = 0;
    std::array<std::uint64_t, PageView::most_dimensions> counts{};
    std::array<std::uint64_t, PageView::most_dimensions> strides{};
    std::uint64_t item_bytes = 0;
  };
  [[nodiscard]] const Steps& steps() const { return steps_; }

 private:
  PageShape() = default;

  std::uint64_t bytes_ = 0;
  std::uint64_t extent_ = 0;
  std::string described_;
  Steps steps_;
};

/// How the pages of two lists go together. Null: a list's pages are one stretch. The lists' lengths have been
/// compared. nullopt: the pages are one stretch on both sides after all.
///   errors   invalid_argument (the shapes differ: both)
Result<std::optional<headrace_page_grid_v1>> pair_shapes(const PageShape* local, const PageShape* remote);

/// The runs of one page that are apart, by the largest stride first: as few as can be. Where two of them
/// touch the same byte is not looked at.
PageShape::Steps runs_by_place(const PageShape& shape);

}  // namespace headrace
