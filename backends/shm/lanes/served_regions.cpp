// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/served_regions.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace headrace::shm {
namespace {

std::uintptr_t page_begin(const std::byte* address) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
}

}  // namespace

void ServedRegions::add(LocalRegion& region) {
  const std::lock_guard lock(mutex_);
  by_id_.emplace(region.region_id, &region);
}

void ServedRegions::remove(LocalRegion& region) {
  {
    const std::lock_guard lock(mutex_);
    by_id_.erase(region.region_id);
  }
  region.gone.store(true, std::memory_order_release);
  while (region.copied_out_of.load(std::memory_order_acquire) != 0) ::sched_yield();
}

ServedRegions::Pin ServedRegions::pin(std::uint32_t region_id) {
  using Readable = LocalRegion::Readable;
  std::unique_lock lock(mutex_);
  const auto at = by_id_.find(region_id);
  if (at == by_id_.end()) return {};
  LocalRegion& region = *at->second;
  region.copied_out_of.fetch_add(1, std::memory_order_relaxed);
  Pin pin(&region);  // `remove` waits for it: what follows may take its time without the lock
  Readable readable = region.readable;
  lock.unlock();
  if (readable == Readable::unknown) {
    const std::optional<bool> found = can_be_read(region.base, region.length_bytes);
    if (!found) return {};
    readable = *found ? Readable::yes : Readable::no;
    lock.lock();
    region.readable = readable;
    lock.unlock();
  }
  if (readable == Readable::no || !is_mapped(region.base, region.length_bytes)) return {};
  return pin;
}

std::optional<bool> can_be_read(const std::byte* begin, std::uint64_t length_bytes) {
  auto at = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t end = at + length_bytes;
  std::ifstream maps("/proc/self/maps");
  if (!maps) return std::nullopt;
  for (std::string line; at < end && std::getline(maps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    unsigned long inode = 0;
    char access[5] = {};
    // address range, access, offset, device, inode: proc(5)
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, access, &inode) != 4)
      return false;
    if (to <= at) continue;
    if (from > at || access[0] != 'r' || inode != 0) return false;
    at = to;
  }
  return at >= end;
}

bool is_mapped(const std::byte* begin, std::uint64_t length_bytes) {
  const std::uintptr_t from = page_begin(begin);
  const std::uintptr_t length = reinterpret_cast<std::uintptr_t>(begin) + length_bytes - from;
  // Has nothing to write back in memory without a file, and fails where a part is not mapped.
  return ::msync(reinterpret_cast<void*>(from), length, MS_ASYNC) == 0;
}

}  // namespace headrace::shm
