// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/imports.hpp"

namespace headrace::shm {

Result<std::shared_ptr<ImportedMemory>> ImportedMemory::map(const UniqueFd& fd, const SharedRegion& region) {
  HEADRACE_TRY(file, host_link::inspect_memory_file(fd.get()));
  if (region.length_bytes == 0 || region.offset_bytes > file.size_bytes ||
      region.length_bytes > file.size_bytes - region.offset_bytes) {
    return make_error(Code::corrupt, "region {} is said to be {} bytes at {} of a memory file of {}",
                      region.region_id, region.length_bytes, region.offset_bytes, file.size_bytes);
  }
  const std::uint64_t first = region.offset_bytes / file.page_bytes * file.page_bytes;
  const std::uint64_t skip = region.offset_bytes - first;
  const std::uint64_t length =
      (skip + region.length_bytes + file.page_bytes - 1) / file.page_bytes * file.page_bytes;
  const auto access = file.writable ? Mapping::Access::read_write : Mapping::Access::read;
  HEADRACE_TRY(mapping, Mapping::of_file(fd.get(), first, length, access));
  std::byte* const begin = mapping.data() + skip;
  return std::shared_ptr<ImportedMemory>(
      new ImportedMemory(std::move(mapping), {begin, region.length_bytes}, file.writable));
}

Result<void> Imports::add(const UniqueFd& file, const SharedRegion& region) {
  if (find(region.region_id).known) return {};  // sent twice: the link came up while it was being registered
  auto memory = ImportedMemory::map(file, region);
  const std::lock_guard lock(mutex_);
  by_id_.emplace(region.region_id, memory ? *memory : nullptr);
  if (!memory) return std::move(memory).error();
  return {};
}

void Imports::forget(std::uint32_t region_id) {
  std::shared_ptr<ImportedMemory> last;  // unmapped outside the lock
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(region_id);
  if (at == by_id_.end()) return;
  last = std::move(at->second);
  by_id_.erase(at);
}

Imports::Found Imports::find(std::uint32_t region_id) const {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(region_id);
  return at != by_id_.end() ? Found{true, at->second} : Found{};
}

void Imports::clear() {
  std::unordered_map<std::uint32_t, std::shared_ptr<ImportedMemory>> all;
  const std::lock_guard lock(mutex_);
  all.swap(by_id_);
}

}  // namespace headrace::shm
