// SPDX-License-Identifier: Apache-2.0
#include "engine/page_lists.hpp"

#include "memory/page_list.hpp"

#include <algorithm>

namespace headrace::engine {
namespace {

Error at_page(Error error, std::uint64_t page) {
  error.page = page;
  return error;
}

Error zero_length(std::uint64_t page) {
  return at_page(
      make_error(Code::invalid_argument, "page {} has length 0: a page has at least one byte", page), page);
}

std::shared_ptr<PageList::State> from_columns(PageColumns columns, std::optional<PageShape> shape) {
  auto list = std::make_shared<PageList::State>();
  list->shape = std::move(shape);
  list->columns = std::move(columns);
  return list;
}

Error past_the_end(std::uint64_t page, std::uint64_t offset, std::uint64_t length, std::uint64_t region,
                   std::uint64_t region_length, bool spread = false) {
  return at_page(
      make_error(Code::invalid_argument,
                 "page {} (offset {}, {}{} bytes) runs over the end of region {}, which has {} bytes", page,
                 offset, spread ? "spread over " : "", length, region, region_length),
      page);
}

Error in_no_region(std::uint64_t page, std::uint64_t address, std::uint64_t length) {
  return at_page(
      make_error(Code::not_found,
                 "page {} (address {:#x}, {} bytes) lies in no registered region: register its memory first",
                 page, address, length),
      page);
}

Error uniform_past_the_end(const UniformPages& pages, std::uint64_t page, std::uint64_t stride,
                           std::uint64_t length, std::uint64_t region_length, bool spread) {
  return at_page(
      make_error(
          Code::invalid_argument,
          "page {} (offset {} + {} x {}, {}{} bytes) runs over the end of region {}, which has {} bytes",
          page, pages.base_bytes, page, stride, spread ? "spread over " : "", length, pages.region.value,
          region_length),
      page);
}

Result<std::optional<PageShape>> shape_of(const PageView* view) {
  if (view == nullptr) return std::optional<PageShape>();
  HEADRACE_TRY(shape, PageShape::make(*view));
  return std::optional<PageShape>(std::move(shape));
}

/// That page `page` is as long as its view has it.
Result<void> check_length(std::uint64_t length, std::uint64_t page, const std::optional<PageShape>& shape) {
  if (length == 0) return zero_length(page);
  if (!shape || length == shape->bytes()) return {};
  return at_page(
      make_error(Code::invalid_argument, "page {} has {} bytes, and its view, {}, has {}: give that length",
                 page, length, shape->described(), shape->bytes()),
      page);
}

/// What a page of `length` bytes spreads over.
std::uint64_t extent_of(std::uint64_t length, const std::optional<PageShape>& shape) {
  return shape ? shape->extent() : length;
}

/// Pages that follow one another are mostly of one region: the last answer is kept.
template <class Find>
class LengthOfRegion {
 public:
  explicit LengthOfRegion(Find find) : find_(std::move(find)) {}
  /// Empty if there is no such region.
  std::optional<std::uint64_t> operator()(std::uint64_t region) {
    if (known_ && region == region_) return length_;
    length_ = region <= UINT32_MAX ? find_(static_cast<std::uint32_t>(region)) : std::nullopt;
    known_ = length_.has_value();
    region_ = region;
    return length_;
  }

 private:
  Find find_;
  bool known_ = false;
  std::uint64_t region_ = 0;
  std::optional<std::uint64_t> length_;
};

/// Adds every page to the columns, checked against the length of its region.
template <class Find>
Result<void> add_pages(PageColumnsBuilder& columns, std::span<const Page> pages,
                       const std::optional<PageShape>& shape, Find find, std::string_view owner_without_it) {
  LengthOfRegion<Find> length_of(std::move(find));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Page& page = pages[i];
    HEADRACE_TRY_VOID(check_length(page.length_bytes, i, shape));
    const auto length = length_of(page.region);
    if (!length)
      return at_page(
          make_error(Code::not_found, "page {} names region {}, and {}", i, page.region, owner_without_it),
          i);
    if (const std::uint64_t extent = extent_of(page.length_bytes, shape);
        !lies_inside(page.offset_bytes, extent, *length))
      return past_the_end(i, page.offset_bytes, extent, page.region, *length, shape.has_value());
    columns.add(static_cast<std::uint32_t>(page.region), page.offset_bytes, page.length_bytes);
  }
  return {};
}

/// The number of pages from the first on that fit into the region, counted without overflow.
std::uint64_t fitting_pages(std::uint64_t base, std::uint64_t extent, std::uint64_t stride,
                            std::uint64_t region_length) {
  if (!lies_inside(base, extent, region_length)) return 0;
  const std::uint64_t room = (region_length == 0 ? UINT64_MAX : region_length) - extent - base;
  return room / stride + 1;
}

Result<void> check_stride(const UniformPages& pages, const std::optional<PageShape>& shape) {
  if (!shape || pages.stride_bytes != 0 || pages.count <= 1) return {};
  return make_error(Code::invalid_argument,
                    "the stride of {} pages that are views is 0: say how many bytes lie between two begins "
                    "of pages, which the view does not tell",
                    pages.count);
}

std::uint64_t page_count(const PageSpec& spec) {
  const auto count = [](const auto& pages) -> std::uint64_t {
    if constexpr (requires { pages.size(); })
      return pages.size();
    else
      return pages.count;
  };
  return std::visit(count, spec.pages());
}

Error no_pages() { return make_error(Code::invalid_argument, "the list has no pages: give at least one"); }

}  // namespace

Result<PageListState> PageLists::prepare(Side side, const PageSpec& spec) {
  HEADRACE_TRY_VOID(calls_.usable());
  HEADRACE_TRY(shape, shape_of(spec.view()));
  if (page_count(spec) == 0) return no_pages();
  HEADRACE_TRY(owner, owner_of(side));
  return std::visit([&](const auto& pages) { return prepare_pages(owner, pages, std::move(shape)); },
                    spec.pages());
}

Result<PageListState> PageLists::prepare_pages(const Owner& owner, std::span<const AddressPage> pages,
                                               Shape shape) {
  if (owner.life || owner.far_side)
    return make_error(
        Code::invalid_argument,
        "pages of peer {} are given by address, which is valid in the peer's process only: give "
        "(region, offset, length), or Regions from peer_regions",
        owner.life ? owner.life->name : self_.name);
  PageColumnsBuilder columns(pages.size());
  {
    const auto regions = regions_.look_by_address();
    std::uint64_t begin = 1, end = 0;  // of the region that held the page before: neighbours share it
    std::uint32_t id = 0;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const AddressPage& page = pages[i];
      HEADRACE_TRY_VOID(check_length(page.length_bytes, i, shape));
      const std::uint64_t extent = extent_of(page.length_bytes, shape);
      const std::uint64_t last = page.address + extent;
      if (page.address < begin || last > end || last < page.address) {
        const LocalRegion* const region = regions.at_address(page.address, extent);
        if (region == nullptr) return in_no_region(i, page.address, extent);
        id = region->info.id.value;
        begin = region->info.address;
        end = begin + region->info.length_bytes;
      }
      columns.add(id, page.address - begin, page.length_bytes);
    }
  }
  return finish(from_columns(std::move(columns).finish(), std::move(shape)), owner);
}

Result<PageListState> PageLists::prepare_pages(const Owner& owner, std::span<const Page> pages, Shape shape) {
  PageColumnsBuilder columns(pages.size());
  if (const auto& life = owner.life) {
    const std::shared_lock lock(life->mutex);
    const auto length = [&](std::uint32_t id) {
      const RemoteRegion* const row = life->regions.find(id);
      return row != nullptr ? std::optional(row->length) : std::nullopt;
    };
    HEADRACE_TRY_VOID(
        add_pages(columns, pages, shape, length,
                  fmt::format("peer {} has none of that id{}", life->name,
                              life->has_metadata ? " (any more)" : ": import its metadata first")));
  } else {
    const auto regions = regions_.look();
    const auto length = [&](std::uint32_t id) {
      const LocalRegion* const region = regions.find(id);
      return region != nullptr ? std::optional(region->info.length_bytes) : std::nullopt;
    };
    HEADRACE_TRY_VOID(add_pages(columns, pages, shape, length, "this agent has none of that id (any more)"));
  }
  return finish(from_columns(std::move(columns).finish(), std::move(shape)), owner);
}

Result<PageListState> PageLists::prepare_pages(const Owner& owner, const RegionPages& pages,
                                               const Shape& shape) {
  if (shape)
    return make_error(
        Code::invalid_argument,
        "RegionPages has contiguous pages only: for a view give rows (region, offset, length) or "
        "UniformPages");
  if (pages.offsets.first == nullptr || pages.lengths.first == nullptr)
    return make_error(Code::invalid_argument, "pages of a region without a column of {}: give both",
                      pages.offsets.first == nullptr ? "offsets" : "lengths");
  HEADRACE_TRY(length, region_length(owner, pages.region));
  auto columns = columns_of(pages, length);
  if (!columns) {
    const std::uint64_t misfit = first_misfit(pages, length).value_or(0);
    const Page page = page_at(pages, misfit);
    if (page.length_bytes == 0) return zero_length(misfit);
    return past_the_end(misfit, page.offset_bytes, page.length_bytes, page.region, length);
  }
  return finish(from_columns(*std::move(columns), std::nullopt), owner);
}

Result<PageListState> PageLists::prepare_pages(const Owner& owner, const UniformPages& pages, Shape shape) {
  const std::uint64_t page_bytes = pages.page_bytes == 0 && shape ? shape->bytes() : pages.page_bytes;
  HEADRACE_TRY_VOID(check_length(page_bytes, 0, shape));
  HEADRACE_TRY_VOID(check_stride(pages, shape));
  HEADRACE_TRY(length, region_length(owner, pages.region));
  const std::uint64_t extent = extent_of(page_bytes, shape);
  const std::uint64_t stride = pages.stride_bytes == 0 ? page_bytes : pages.stride_bytes;
  if (const std::uint64_t fitting = fitting_pages(pages.base_bytes, extent, stride, length);
      pages.count > fitting)
    return uniform_past_the_end(pages, fitting, stride, extent, length, shape.has_value());
  PageColumns columns;
  columns.count = pages.count;
  if (__builtin_mul_overflow(pages.count, page_bytes, &columns.bytes))
    return make_error(Code::invalid_argument,
                      "{} pages of {} bytes are more than 2^64 bytes together: prepare fewer", pages.count,
                      page_bytes);
  columns.base_offset = pages.base_bytes;
  columns.stride_bytes = stride;
  columns.page_bytes = page_bytes;
  columns.region_ids = {pages.region.value};
  return finish(from_columns(std::move(columns), std::move(shape)), owner);
}

// ------------------------------------------------------------------ owners

Result<PageLists::Owner> PageLists::owner_of(Side side) const {
  if (!side.peer) return Owner{};
  if (*side.peer == self_.name) return Owner{nullptr, true};
  HEADRACE_TRY(life, peers_.find(*side.peer));
  return Owner{std::move(life), false};
}

/// 0: its backend knows.
Result<std::uint64_t> PageLists::region_length(const Owner& owner, RegionId region) const {
  if (!owner.life) {
    if (const auto own = regions_.find(region.value)) return own->info.length_bytes;
    return at_page(
        make_error(Code::not_found, "this agent has no region {}: register its memory first", region.value),
        0);
  }
  const std::shared_lock lock(owner.life->mutex);
  if (const RemoteRegion* const row = owner.life->regions.find(region.value); row != nullptr)
    return row->length;
  return at_page(
      make_error(Code::not_found,
                 "peer {} has no region {}: see peer_regions, and take in its metadata again if it is new",
                 owner.life->name, region.value),
      0);
}

Result<PageListState> PageLists::finish(std::shared_ptr<PageList::State> list, const Owner& owner) const {
  list->life = owner.life;
  list->far_side = owner.far_side;
  if (owner.life) list->peer = owner.life->name;
  if (owner.far_side) list->peer = self_.name;
  list->sorted_ids = list->columns.region_ids;
  std::ranges::sort(list->sorted_ids);
  if (!owner.life) {
    HEADRACE_TRY_VOID(take_local_regions(*list));
    return PageListState(std::move(list));
  }
  const std::shared_lock lock(owner.life->mutex);
  for (const std::uint32_t id : list->sorted_ids) {
    const RemoteRegion* const row = owner.life->regions.find(id);
    if (row != nullptr && !row->writable) list->read_only_ids.push_back(id);
  }
  return PageListState(std::move(list));  // checked_epoch 0: the first post looks at all regions once more
}

Result<void> PageLists::take_local_regions(PageList::State& list) const {
  list.local_regions.reserve(list.columns.region_ids.size());
  for (const std::uint32_t id : list.columns.region_ids) {
    auto region = regions_.find(id);
    if (!region) return make_error(Code::not_found, "region {} was deregistered meanwhile", id);
    if (!region->info.writable) list.read_only_ids.push_back(id);
    list.local_regions.push_back(std::move(region));
  }
  return {};
}

Status PageLists::still_valid(const PageList::State& list) const {
  const std::uint64_t epoch = list.life ? list.life->epoch.load() : regions_.epoch();
  if (list.checked_epoch.load(std::memory_order_relaxed) == epoch) return {};
  if (list.life) {
    if (list.life->fate.load() != Fate::alive) return {Code::peer_lost};
    const std::shared_lock lock(list.life->mutex);
    for (const std::uint32_t id : list.columns.region_ids)
      if (list.life->regions.find(id) == nullptr) return {Code::not_found};
  } else {
    for (const auto& region : list.local_regions)
      if (!region->live.load()) return {Code::not_found};
  }
  list.checked_epoch.store(epoch, std::memory_order_relaxed);
  return {};
}

}  // namespace headrace::engine
