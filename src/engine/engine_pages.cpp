// SPDX-License-Identifier: Apache-2.0
// Preparing page lists: every page checked against its region once.
#include "engine/engine.hpp"
#include "memory/page_list.hpp"

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
  list->count = columns.count;
  list->bytes = columns.bytes;
  list->region_of = std::move(columns.region_of);
  list->offsets = std::move(columns.offsets);
  list->lengths = std::move(columns.lengths);
  list->base_offset = columns.base_offset;
  list->stride_bytes = columns.stride_bytes;
  list->page_bytes = columns.page_bytes;
  list->region_ids = std::move(columns.region_ids);
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

}  // namespace

Result<PageListState> Engine::prepare_addresses(std::span<const AddressPage> pages, const PageView* view) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(shape, shape_of(view));
  if (pages.empty()) return make_error(Code::invalid_argument, "the list has no pages: give at least one");
  PageColumnsBuilder builder(pages.size());
  std::shared_lock lock(regions_mutex_);
  while (!regions_.indexed()) {
    lock.unlock();
    {
      const std::unique_lock exclusive(regions_mutex_);
      regions_.index();
    }
    lock.lock();
  }
  std::uint64_t begin = 1, end = 0;  // of the region that held the page before: neighbours share it
  std::uint32_t id = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const AddressPage& page = pages[i];
    HEADRACE_TRY_VOID(check_length(page.length_bytes, i, shape));
    const std::uint64_t extent = extent_of(page.length_bytes, shape);
    const std::uint64_t last = page.address + extent;
    if (page.address < begin || last > end || last < page.address) {
      const auto found = regions_.find_address(page.address, extent);
      if (!found || !(*found->record)->live.load(std::memory_order_relaxed)) {
        return at_page(
            make_error(
                Code::not_found,
                "page {} (address {:#x}, {} bytes) lies in no registered region: register its memory first",
                i, page.address, extent),
            i);
      }
      id = found->id;
      begin = (*found->record)->info.address;
      end = begin + (*found->record)->info.length_bytes;
    }
    builder.add(id, page.address - begin, page.length_bytes);
  }
  lock.unlock();
  return finish_list(from_columns(std::move(builder).finish(), std::move(shape)), nullptr, false);
}

Result<PageListState> Engine::prepare_pages(std::string_view peer_name, bool local,
                                            std::span<const Page> pages, const PageView* view) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(shape, shape_of(view));
  if (pages.empty()) return make_error(Code::invalid_argument, "the list has no pages: give at least one");
  const bool far_side = !local && peer_name == settings_.name;
  std::shared_ptr<PeerLife> life;
  if (!local && !far_side) {
    HEADRACE_TRY(found, peer(peer_name));
    life = std::move(found);
  }
  PageColumnsBuilder builder(pages.size());
  std::shared_lock lock(life ? life->mutex : regions_mutex_);
  std::uint64_t region = 0;
  std::uint64_t region_length = 0;
  bool known = false;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Page& page = pages[i];
    HEADRACE_TRY_VOID(check_length(page.length_bytes, i, shape));
    if (!known || page.region != region) {
      known = false;
      region = page.region;
      if (region <= UINT32_MAX) {
        const auto id = static_cast<std::uint32_t>(region);
        if (life) {
          const RemoteRegion* const row = life->regions.find(id);
          known = row != nullptr;
          if (known) region_length = row->length;
        } else {
          const auto* const found = regions_.find(id);
          known = found != nullptr && (*found)->live.load(std::memory_order_relaxed);
          if (known) region_length = (*found)->info.length_bytes;
        }
      }
      if (!known) {
        const std::string whose = life ? "peer " + life->name + " has" : "this agent has";
        return at_page(
            make_error(Code::not_found, "page {} names region {}, and {} none of that id{}", i, region, whose,
                       life && !life->has_metadata ? ": import its metadata first" : " (any more)"),
            i);
      }
    }
    if (const std::uint64_t extent = extent_of(page.length_bytes, shape);
        !lies_inside(page.offset_bytes, extent, region_length))
      return past_the_end(i, page.offset_bytes, extent, region, region_length, shape.has_value());
    builder.add(static_cast<std::uint32_t>(region), page.offset_bytes, page.length_bytes);
  }
  lock.unlock();
  return finish_list(from_columns(std::move(builder).finish(), std::move(shape)), life, far_side);
}

Result<Engine::Owner> Engine::owner_of(std::string_view peer_name, bool local, RegionId region) const {
  const bool far_side = !local && peer_name == settings_.name;
  if (local || far_side) {
    const auto own = local_region(region.value);
    if (!own)
      return at_page(
          make_error(Code::not_found, "this agent has no region {}: register its memory first", region.value),
          0);
    return Owner{nullptr, far_side, own->info.length_bytes};
  }
  HEADRACE_TRY(life, peer(peer_name));
  const std::shared_lock lock(life->mutex);
  const RemoteRegion* const row = life->regions.find(region.value);
  if (row == nullptr)
    return at_page(
        make_error(Code::not_found,
                   "peer {} has no region {}: see peer_regions, and take in its metadata again if it is new",
                   life->name, region.value),
        0);
  return Owner{life, false, row->length};
}

Result<PageListState> Engine::prepare_region(std::string_view peer_name, bool local,
                                             const RegionPages& pages) {
  HEADRACE_TRY_VOID(usable());
  if (pages.count == 0) return make_error(Code::invalid_argument, "the list has no pages: give at least one");
  if (pages.offsets.first == nullptr || pages.lengths.first == nullptr)
    return make_error(Code::invalid_argument, "pages of a region without a column of {}: give both",
                      pages.offsets.first == nullptr ? "offsets" : "lengths");
  HEADRACE_TRY(owner, owner_of(peer_name, local, pages.region));
  auto columns = columns_of(pages, owner.region_length);
  if (!columns) {
    const std::uint64_t misfit = first_misfit(pages, owner.region_length).value_or(0);
    const Page page = page_at(pages, misfit);
    if (page.length_bytes == 0) return zero_length(misfit);
    return past_the_end(misfit, page.offset_bytes, page.length_bytes, page.region, owner.region_length);
  }
  return finish_list(from_columns(*std::move(columns), std::nullopt), owner.life, owner.far_side);
}

Result<PageListState> Engine::prepare_uniform(std::string_view peer_name, bool local,
                                              const UniformPages& pages, const PageView* view) {
  HEADRACE_TRY_VOID(usable());
  HEADRACE_TRY(shape, shape_of(view));
  if (pages.count == 0) return make_error(Code::invalid_argument, "the list has no pages: give at least one");
  const std::uint64_t page_bytes = pages.page_bytes == 0 && shape ? shape->bytes() : pages.page_bytes;
  HEADRACE_TRY_VOID(check_length(page_bytes, 0, shape));
  if (shape && pages.stride_bytes == 0 && pages.count > 1) {
    return make_error(Code::invalid_argument,
                      "the stride of {} pages that are views is 0: say how many bytes lie between two begins "
                      "of pages, which the view does not tell",
                      pages.count);
  }
  const std::uint64_t extent = extent_of(page_bytes, shape);
  HEADRACE_TRY(owner, owner_of(peer_name, local, pages.region));
  const std::uint64_t region_length = owner.region_length;
  const std::uint64_t stride = pages.stride_bytes == 0 ? page_bytes : pages.stride_bytes;
  // The first page that does not fit, without overflow on the way there.
  std::uint64_t fitting = 0;
  if (lies_inside(pages.base_bytes, extent, region_length)) {
    const std::uint64_t room = (region_length == 0 ? UINT64_MAX : region_length) - extent - pages.base_bytes;
    fitting = room / stride + 1;
  }
  if (pages.count > fitting) {
    return at_page(
        make_error(
            Code::invalid_argument,
            "page {} (offset {} + {} x {}, {}{} bytes) runs over the end of region {}, which has {} bytes",
            fitting, pages.base_bytes, fitting, stride, shape ? "spread over " : "", extent,
            pages.region.value, region_length),
        fitting);
  }
  auto list = std::make_shared<PageList::State>();
  list->count = pages.count;
  if (__builtin_mul_overflow(pages.count, page_bytes, &list->bytes)) {
    return make_error(Code::invalid_argument,
                      "{} pages of {} bytes are more than 2^64 bytes together: prepare fewer", pages.count,
                      page_bytes);
  }
  list->base_offset = pages.base_bytes;
  list->stride_bytes = stride;
  list->page_bytes = page_bytes;
  list->shape = std::move(shape);
  list->region_ids = {pages.region.value};
  return finish_list(std::move(list), owner.life, owner.far_side);
}

Result<PageListState> Engine::finish_list(std::shared_ptr<PageList::State> list,
                                          const std::shared_ptr<PeerLife>& life, bool far_side) {
  list->life = life;
  list->far_side = far_side;
  if (life) list->peer = life->name;
  if (far_side) list->peer = settings_.name;
  list->sorted_ids = list->region_ids;
  std::sort(list->sorted_ids.begin(), list->sorted_ids.end());
  if (life) {
    const std::shared_lock lock(life->mutex);
    for (const std::uint32_t id : list->sorted_ids) {
      const RemoteRegion* const row = life->regions.find(id);
      if (row != nullptr && !row->writable) list->read_only_ids.push_back(id);
    }
    return PageListState(std::move(list));  // checked_epoch 0: the first post looks at all regions once more
  }
  list->local_regions.reserve(list->region_ids.size());
  for (const std::uint32_t id : list->region_ids) {
    auto region = local_region(id);
    if (!region) return make_error(Code::not_found, "region {} was deregistered meanwhile", id);
    if (!region->info.writable) list->read_only_ids.push_back(id);
    list->local_regions.push_back(std::move(region));
  }
  return PageListState(std::move(list));
}

Status Engine::still_valid(const PageList::State& list) const {
  const std::uint64_t epoch = (list.life ? list.life->epoch : local_epoch_).load();
  if (list.checked_epoch.load(std::memory_order_relaxed) == epoch) return {};
  if (list.life) {
    if (list.life->fate.load() != Fate::alive) return {Code::peer_lost};
    const std::shared_lock lock(list.life->mutex);
    for (const std::uint32_t id : list.region_ids)
      if (list.life->regions.find(id) == nullptr) return {Code::not_found};
  } else {
    for (const auto& region : list.local_regions)
      if (!region->live.load()) return {Code::not_found};
  }
  list.checked_epoch.store(epoch, std::memory_order_relaxed);
  return {};
}

}  // namespace headrace::engine
