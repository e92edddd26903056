// SPDX-License-Identifier: Apache-2.0
#include "host_link/live_table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <new>

namespace headrace::host_link {
namespace {

constexpr std::uint32_t live_magic = 0x544c5248;  // "HRLT"
constexpr std::uint32_t live_version = 1;

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

Result<const RegionSlot*> LiveTable::set(std::uint32_t region_id, RegionState state, bool writable) {
  const auto step = static_cast<std::uint32_t>(region_id / live_step_bytes);
  const std::lock_guard lock(mutex_);
  auto at = steps_.find(step);
  if (at == steps_.end()) {
    if (step >= steps_in_file_) {
      if (::ftruncate(fd_.get(), static_cast<off_t>(table_bytes(step + 1ULL))) < 0) {
        return os_error(errno, "grow the table of live regions to region {}", region_id);
      }
      steps_in_file_ = step + 1ULL;
    }
    HEADRACE_TRY(mapping, Mapping::of_file(fd_.get(), table_bytes(step), live_step_bytes,
                                           Mapping::Access::read_write));
    at = steps_.emplace(step, std::move(mapping)).first;
  }
  auto* const slot = reinterpret_cast<RegionSlot*>(at->second.data() + region_id % live_step_bytes);
  const auto said = static_cast<std::uint8_t>(static_cast<unsigned>(state) | (writable ? 0U : read_only_bit));
  const std::uint8_t before = slot->exchange(said, std::memory_order_seq_cst);
  if (state == RegionState::gone && (before & ~read_only_bit) != said) count_gone_locked(region_id);
  return slot;
}

/// Once all regions of a page are gone, the page goes, too: peers find `unknown` there, which is as little
/// live.
void LiveTable::count_gone_locked(std::uint32_t region_id) {
  const std::uint32_t page = region_id / live_page_bytes;
  if (++gone_in_page_[page] < live_page_bytes) return;
  gone_in_page_.erase(page);
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(live_header_bytes + std::uint64_t{page} * live_page_bytes),
                    live_page_bytes);
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

Result<const RegionSlot*> LiveView::slot(std::uint32_t region_id) {
  const auto step = static_cast<std::uint32_t>(region_id / live_step_bytes);
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
  return reinterpret_cast<const RegionSlot*>(at->second.data() + region_id % live_step_bytes);
}

}  // namespace headrace::host_link
