// SPDX-License-Identifier: Apache-2.0
#include "fabric/part.hpp"

#include "fabric/page_indices.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

namespace headrace::fabric {
namespace {

using Wide = unsigned __int128;

Wide end_of(const PageRows& rows, std::uint64_t index, std::uint64_t page_bytes) {
  return Wide{rows.base} + Wide{index} * rows.stride + page_bytes;
}

Error at_page(Error error, std::uint64_t page) {
  error.page = page;
  return error;
}

template <class Number>
Result<void> copy_indices(std::span<const Number> from, std::vector<std::uint32_t>& to,
                          std::string_view side) {
  if constexpr (std::is_same_v<Number, std::uint32_t>) {
    to.assign(from.begin(), from.end());
  } else {
    to.resize(from.size());
    if (narrow(from, to)) return {};
    const auto bad = std::ranges::find_if_not(from, [](Number n) { return std::in_range<std::uint32_t>(n); });
    if (bad == from.end()) return {};  // another thread has changed it; the copy is looked at next
    const auto page = static_cast<std::uint64_t>(bad - from.begin());
    return at_page(
        make_error(Code::invalid_argument, "page {} of the {} has index {}; indices go from 0 to {}", page,
                   side, *bad, std::numeric_limits<std::uint32_t>::max()),
        page);
  }
  return {};
}

Error outside(const PageRows& rows, std::uint64_t page, std::uint64_t index, std::uint64_t page_bytes,
              std::uint64_t memory_bytes, std::string_view side) {
  const Wide begin = end_of(rows, index, page_bytes) - page_bytes;
  const std::string at =
      begin > UINT64_MAX ? "beyond 2^64" : fmt::format("{}", static_cast<std::uint64_t>(begin));
  return at_page(
      make_error(Code::invalid_argument,
                 "page {} of the {} (index {}) has {} bytes from byte {} on, and the memory has {}", page,
                 side, index, page_bytes, at, memory_bytes),
      page);
}

Result<void> check_ranges(const PageRows& rows, std::uint64_t page_bytes, std::uint64_t count,
                          std::uint64_t memory_bytes, std::string_view side) {
  if (count == 0) return {};
  const std::uint64_t last = rows.indices.empty() ? count - 1 : greatest(rows.indices);
  if (end_of(rows, last, page_bytes) <= memory_bytes) return {};
  for (std::uint64_t page = 0; page < rows.indices.size(); ++page)
    if (end_of(rows, rows.indices[page], page_bytes) > memory_bytes)
      return outside(rows, page, rows.indices[page], page_bytes, memory_bytes, side);
  // Without indices the first page outside follows from the distances.
  std::uint64_t first = 0;
  if (Wide{rows.base} + page_bytes <= memory_bytes)
    first = (memory_bytes - rows.base - page_bytes) / rows.stride + 1;
  return outside(rows, first, first, page_bytes, memory_bytes, side);
}

headrace_side_v1 side_of(void** region, const PageRows& rows, std::uint64_t page_bytes) {
  headrace_side_v1 side{};
  side.struct_size = sizeof side;
  side.regions = region;
  side.region_count = 1;
  side.columns.indices = rows.indices.empty() ? nullptr : rows.indices.data();
  side.columns.base_offset = rows.base;
  side.columns.stride_bytes = rows.stride;
  side.columns.page_bytes = page_bytes;
  return side;
}

headrace_prepare_v1 prepared(const Part::Setup& setup, const headrace_side_v1* here,
                             const headrace_side_v1* there) {
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = setup.op;
  args.count = setup.page_bytes == 0 ? 0 : setup.count;
  args.bytes = setup.page_bytes * args.count;
  args.local = here;
  args.remote = there;
  return args;
}

}  // namespace

Result<PageRows> read_rows(const FabricPages& pages, std::uint64_t page_bytes, std::uint64_t count,
                           std::uint64_t memory_bytes, std::string_view side) {
  PageRows rows{{}, pages.offset_bytes, pages.stride_bytes == 0 ? page_bytes : pages.stride_bytes};
  if (!pages.indices.all()) {
    Result<void> copied;
    std::visit(
        [&](const auto& numbers) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(numbers)>, std::monostate>)
            copied = copy_indices(numbers, rows.indices, side);
        },
        pages.indices.numbers());
    HEADRACE_TRY_VOID(std::move(copied));
    if (rows.indices.size() != count)
      return make_error(Code::invalid_argument, "the {} has {} indices for {} pages: give one for each", side,
                        rows.indices.size(), count);
  }
  HEADRACE_TRY_VOID(check_ranges(rows, page_bytes, count, memory_bytes, side));
  return rows;
}

Part::Part(std::shared_ptr<Work> owner, Setup given)
    : setup(std::move(given)),
      work(std::move(owner)),
      here_region_(setup.here == nullptr ? nullptr : &setup.here->region),
      here_(side_of(&here_region_, setup.here_rows, setup.page_bytes)),
      there_(side_of(&there_region_, setup.there_rows, setup.page_bytes)),
      request_(prepared(setup, &here_, &there_)) {}

}  // namespace headrace::fabric
