// SPDX-License-Identifier: Apache-2.0
#include "host_link/live_table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <new>

namespace headrace::host_link {
namespace {

constexpr std::uint32_t live_magic = 0x544c5248;  // "HRLT"
constexpr std::uint32_t live_version = 2;

/// Of a region's place in its step.
std::uint64_t place_offset(std::uint32_t region_id) {
  return live_step_ids + region_id % live_step_ids * sizeof(RegionPlace);
}

std::uint64_t table_bytes(std::uint64_t steps) { return live_header_bytes + steps * live_step_bytes; }

UniqueFd read_only(int fd) {
  return UniqueFd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

Result<std::unique_ptr<LiveTable>> LiveTable::create() {
  std::unique_ptr<LiveTable> table(new LiveTable);
  HEADRACE_TRY(fd, create_memory_file("headrace-live", table_bytes(1)));
  HEADRACE_TRY_VOID(seal_memory_file(fd.get(), F_SEAL_SHRINK | F_SEAL_SEAL));
  HEADRACE_TRY(header, Mapping::of_file(fd.get(), 0, live_header_bytes, Mapping::Access::read_write));
  new (header.data()) LiveHeader{live_magic, live_version, {0}};
  table->shared_fd_ = read_only(fd.get());
  if (!table->shared_fd_) {
    HEADRACE_TRY(same, fd.dup());
    table->shared_fd_ = std::move(same);
  }
  table->fd_ = std::move(fd);
  table->header_ = std::move(header);
  table->steps_in_file_ = 1;
  return table;
}

Result<LiveTable::Step*> LiveTable::step_of(std::uint32_t region_id) {
  const auto step = static_cast<std::uint32_t>(region_id / live_step_ids);
  const auto at = steps_.find(step);
  if (at != steps_.end()) return &at->second;
  if (step >= steps_in_file_) {
    if (::ftruncate(fd_.get(), static_cast<off_t>(table_bytes(step + 1ULL))) < 0) {
      return os_error(errno, "grow the table of live regions to region {}", region_id);
    }
    steps_in_file_ = step + 1ULL;
  }
  HEADRACE_TRY(mapping,
               Mapping::of_file(fd_.get(), table_bytes(step), live_step_bytes, Mapping::Access::read_write));
  return &steps_.emplace(step, Step{std::move(mapping), {}}).first->second;
}

Result<const RegionSlot*> LiveTable::enter(std::uint32_t region_id, const RegionPlace& place,
                                           RegionState state, bool writable) {
  const std::lock_guard lock(mutex_);
  HEADRACE_TRY(step, step_of(region_id));
  std::byte* const begin = step->mapping.data();
  std::memcpy(begin + place_offset(region_id), &place, sizeof place);
  auto* const slot = reinterpret_cast<RegionSlot*>(begin + region_id % live_step_ids);
  slot->store(static_cast<std::uint8_t>(static_cast<unsigned>(state) | (writable ? 0U : read_only_bit)),
              std::memory_order_seq_cst);
  return slot;
}

void LiveTable::leave(std::uint32_t region_id) {
  const std::lock_guard lock(mutex_);
  const auto step = static_cast<std::uint32_t>(region_id / live_step_ids);
  const auto at = steps_.find(step);
  if (at == steps_.end()) return;
  auto* const slot = reinterpret_cast<RegionSlot*>(at->second.mapping.data() + region_id % live_step_ids);
  slot->store(static_cast<std::uint8_t>(RegionState::gone), std::memory_order_seq_cst);
  // Ids are not used again. A peer finds zeros in what was given back: `unknown`, which is as little live.
  const std::uint32_t ids = step == 0 ? live_step_ids - 1 : live_step_ids;  // there is no id 0
  if (++at->second.all_left == ids) {
    give_back(table_bytes(step), live_step_bytes);
    steps_.erase(at);
    return;
  }
  const std::uint64_t page = region_id % live_step_ids / ids_a_page;
  if (++at->second.left[page] == ids_a_page)
    give_back(table_bytes(step) + live_step_ids + page * ids_a_page * sizeof(RegionPlace),
              ids_a_page * sizeof(RegionPlace));
}

/// Of the file. What the system does not take back stays.
void LiveTable::give_back(std::uint64_t offset, std::uint64_t bytes) const {
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
}

void LiveTable::close() {
  reinterpret_cast<LiveHeader*>(header_.data())->closed.store(1, std::memory_order_seq_cst);
}

Result<std::unique_ptr<LiveView>> LiveView::open(UniqueFd fd) {
  HEADRACE_TRY(file, inspect_memory_file(fd.get()));
  if (file.size_bytes < live_header_bytes || file.page_bytes > live_header_bytes) {
    return make_error(Code::corrupt, "the peer's table of live regions has {} bytes in pages of {}",
                      file.size_bytes, file.page_bytes);
  }
  std::unique_ptr<LiveView> view(new LiveView);
  HEADRACE_TRY(header, Mapping::of_file(fd.get(), 0, live_header_bytes, Mapping::Access::read));
  view->header_ = std::move(header);
  view->fd_ = std::move(fd);
  if (view->header()->magic != live_magic || view->header()->version != live_version) {
    return make_error(
        Code::corrupt,
        "the peer's table of live regions begins with {:#x}, version {}; expected {:#x}, version {}",
        view->header()->magic, view->header()->version, live_magic, live_version);
  }
  return view;
}

Result<LiveView::Entry> LiveView::find(std::uint32_t region_id) {
  const auto step = static_cast<std::uint32_t>(region_id / live_step_ids);
  const std::lock_guard lock(mutex_);
  auto at = steps_.find(step);
  if (at == steps_.end()) {
    struct stat found {};
    if (::fstat(fd_.get(), &found) < 0) return os_error(errno, "look at the peer's table of live regions");
    if (static_cast<std::uint64_t>(found.st_size) < table_bytes(step + 1ULL)) {
      return make_error(Code::not_found, "region {} was never registered by its owner", region_id);
    }
    HEADRACE_TRY(mapping,
                 Mapping::of_file(fd_.get(), table_bytes(step), live_step_bytes, Mapping::Access::read));
    at = steps_.emplace(step, std::move(mapping)).first;
  }
  const std::byte* const begin = at->second.data();
  return Entry{reinterpret_cast<const RegionSlot*>(begin + region_id % live_step_ids),
               reinterpret_cast<const RegionPlace*>(begin + place_offset(region_id))};
}

std::optional<RegionPlace> LiveView::Entry::registered_at() const {
  const auto registered = [this] {
    const auto state = static_cast<RegionState>(slot->load(std::memory_order_acquire) & ~read_only_bit);
    return state == RegionState::registered || state == RegionState::allocated;
  };
  if (!registered()) return std::nullopt;
  RegionPlace found;
  std::memcpy(&found, place, sizeof found);
  copies_before_later_loads();
  // The owner clears the places of regions that have left.
  if (!registered()) return std::nullopt;
  return found;
}

}  // namespace headrace::host_link
