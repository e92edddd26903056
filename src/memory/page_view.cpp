// SPDX-License-Identifier: Apache-2.0
#include "memory/page_view.hpp"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

using Steps = PageShape::Steps;

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string text = "(";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", numbers[i]);
  return text + (numbers.size() == 1 ? ",)" : ")");
}

Result<void> check_dimensions(const PageView& view) {
  const auto wrong = [&](std::string why) {
    return Error{Code::invalid_argument, fmt::format("a page of shape {}: {}", listed(view.shape), why)};
  };
  if (view.shape.empty() || view.shape.size() > PageView::most_dimensions) {
    return wrong(fmt::format(
        "it has {} dimensions, and a view has 1 to {}{}", view.shape.size(), PageView::most_dimensions,
        view.shape.empty()
            ? ""
            : ": make one of those that lie without a gap, or prepare more and smaller pages"));
  }
  if (!view.strides_bytes.empty() && view.strides_bytes.size() != view.shape.size()) {
    return wrong(
        fmt::format("it has {} strides, {}: give one for each dimension, or none where there are no gaps",
                    view.strides_bytes.size(), listed(view.strides_bytes)));
  }
  if (view.item_bytes == 0) return wrong("its elements have 0 bytes: an element has at least one");
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] < 1)
      return wrong(fmt::format("dimension {} has extent {}: extents are at least 1", i, view.shape[i]));
    if (view.strides_bytes.empty()) continue;
    if (view.strides_bytes[i] < 0) {
      return wrong(
          fmt::format("dimension {} has stride {}: strides go forward, so begin at its other end and turn it "
                      "round on the far side",
                      i, view.strides_bytes[i]));
    }
    if (view.strides_bytes[i] == 0 && view.shape[i] > 1)
      return wrong(fmt::format("dimension {} has stride 0: each of its {} elements needs a place of its own",
                               i, view.shape[i]));
  }
  return {};
}

/// Last dimensions without gaps become part of the item.
Steps fold(Steps shape) {
  while (shape.dimensions > 0 && shape.strides[shape.dimensions - 1] == shape.item_bytes)
    shape.item_bytes *= shape.counts[--shape.dimensions];
  return shape;
}

/// A last dimension without gaps as the item: where one side counts bytes, say, and the other halves. No more
/// than that: two dense pages of other shapes name their elements in another order, most likely.
Steps by_last_dimension(Steps shape) {
  if (shape.dimensions > 0 && shape.strides[shape.dimensions - 1] == shape.item_bytes)
    shape.item_bytes *= shape.counts[--shape.dimensions];
  return shape;
}

bool same_counts(const Steps& a, const Steps& b) {
  return a.item_bytes == b.item_bytes && a.dimensions == b.dimensions &&
         std::equal(a.counts.begin(), a.counts.begin() + a.dimensions, b.counts.begin());
}

/// The same elements, one behind another.
Steps dense(Steps shape) {
  std::uint64_t stride = shape.item_bytes;
  for (std::uint32_t d = shape.dimensions; d-- > 0;) {
    shape.strides[d] = stride;
    stride *= shape.counts[d];
  }
  return shape;
}

/// Two shapes of the same counts: dimensions that continue one another on both sides become one, or part of
/// the run.
headrace_page_grid_v1 merged(const Steps& local, const Steps& remote) {
  headrace_page_grid_v1 grid{};
  grid.run_bytes = local.item_bytes;
  grid.runs = 1;
  std::uint32_t left = local.dimensions;
  for (; left > 0 && local.strides[left - 1] == grid.run_bytes && remote.strides[left - 1] == grid.run_bytes;
       --left)
    grid.run_bytes *= local.counts[left - 1];
  for (std::uint32_t d = 0; d < left; ++d) {
    grid.runs *= local.counts[d];
    std::uint64_t count = local.counts[d];
    if (grid.dimensions > 0) {
      const std::uint32_t before = grid.dimensions - 1;
      // The one before steps over exactly this one: they are one dimension that is counted through.
      if (grid.local_strides[before] == count * local.strides[d] &&
          grid.remote_strides[before] == count * remote.strides[d]) {
        count *= grid.counts[before];
        --grid.dimensions;
      }
    }
    grid.counts[grid.dimensions] = count;
    grid.local_strides[grid.dimensions] = local.strides[d];
    grid.remote_strides[grid.dimensions] = remote.strides[d];
    ++grid.dimensions;
  }
  return grid;
}

}  // namespace

Result<PageShape> PageShape::make(const PageView& view) {
  HEADRACE_TRY_VOID(check_dimensions(view));
  PageShape shape;
  shape.described_ =
      fmt::format("{} of {} byte{}", listed(view.shape), view.item_bytes, view.item_bytes == 1 ? "" : "s");
  shape.steps_.item_bytes = view.item_bytes;
  const auto too_large = [&] {
    return make_error(Code::invalid_argument,
                      "a page of shape {} with strides {} spreads over more than 2^63 bytes",
                      shape.described_, listed(view.strides_bytes));
  };
  shape.bytes_ = shape.extent_ = view.item_bytes;
  constexpr auto most = std::uint64_t{1} << 63;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    const auto count = static_cast<std::uint64_t>(view.shape[i]);
    const std::uint64_t stride =
        view.strides_bytes.empty() ? shape.bytes_ : static_cast<std::uint64_t>(view.strides_bytes[i]);
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(shape.bytes_, count, &shape.bytes_) ||
        __builtin_mul_overflow(count - 1, stride, &reach) ||
        __builtin_add_overflow(shape.extent_, reach, &shape.extent_) || shape.bytes_ > most ||
        shape.extent_ > most)
      return too_large();
    if (count == 1) continue;
    // From the last dimension on: turned round below.
    shape.steps_.counts[shape.steps_.dimensions] = count;
    shape.steps_.strides[shape.steps_.dimensions++] = stride;
  }
  if (shape.bytes_ > shape.extent_) {
    return make_error(Code::invalid_argument,
                      "a page of shape {} with strides {} has {} bytes, and they spread over {} only: "
                      "elements overlap, so make the strides longer",
                      shape.described_, listed(view.strides_bytes), shape.bytes_, shape.extent_);
  }
  std::reverse(shape.steps_.counts.begin(), shape.steps_.counts.begin() + shape.steps_.dimensions);
  std::reverse(shape.steps_.strides.begin(), shape.steps_.strides.begin() + shape.steps_.dimensions);
  return shape;
}

std::string PageShape::described() const { return described_; }

Result<std::optional<headrace_page_grid_v1>> pair_shapes(const PageShape* local, const PageShape* remote) {
  if (local == nullptr && remote == nullptr) return std::optional<headrace_page_grid_v1>();
  Steps here, there;
  if (local == nullptr || remote == nullptr) {
    const Steps& told = (local != nullptr ? local : remote)->steps();
    here = local != nullptr ? told : dense(told);
    there = remote != nullptr ? told : dense(told);
  } else if (same_counts(local->steps(), remote->steps())) {
    here = local->steps();
    there = remote->steps();
  } else if (same_counts(by_last_dimension(local->steps()), by_last_dimension(remote->steps()))) {
    here = by_last_dimension(local->steps());
    there = by_last_dimension(remote->steps());
  } else {
    return make_error(Code::invalid_argument,
                      "the pages here have the shape {}, those at the far side {}: both sides name the same "
                      "elements in the same order, so give one shape and let the strides differ",
                      local->described(), remote->described());
  }
  const headrace_page_grid_v1 grid = merged(here, there);
  return grid.dimensions == 0 ? std::optional<headrace_page_grid_v1>() : grid;
}

Steps runs_by_place(const PageShape& shape) {
  Steps sorted = shape.steps();
  for (std::uint32_t placed = 1; placed < sorted.dimensions; ++placed) {  // there are four at most
    for (std::uint32_t d = placed; d > 0 && sorted.strides[d - 1] < sorted.strides[d]; --d) {
      std::swap(sorted.strides[d - 1], sorted.strides[d]);
      std::swap(sorted.counts[d - 1], sorted.counts[d]);
    }
  }
  return fold(sorted);
}

}  // namespace headrace
